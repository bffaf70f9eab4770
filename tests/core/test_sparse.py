"""Tensors as bitmap and values, and files that nobody can trust."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core import files, sparse
from gossamer.core.errors import PayloadError
from gossamer.engines.warm_start import Init

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def random(shape: tuple[int, ...], density: float, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(math.prod(shape))
    held = torch.rand(shape, generator=draw) < density
    return torch.randn(shape, generator=draw).to(dtype) * held


@given(
    st.lists(st.integers(0, 40), min_size=0, max_size=3), st.floats(0, 1), st.sampled_from(TYPES), st.integers(1, 90)
)
def test_a_file_comes_back_exactly_and_is_never_larger(
    shape: list[int], density: float, dtype: torch.dtype, length: int
) -> None:
    state = {"w" * length: random(tuple(shape), density, dtype), "count": torch.tensor(3)}
    small = sparse.compact(state)
    back = sparse.expand(small)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in state.items())
    if small.keys() != state.keys():
        assert len(files.to_tensors(small)) < len(files.to_tensors(state))


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, 4), (torch.float64, 8), (torch.bfloat16, 2)])
def test_a_bitmap_pays_below_the_density_where_it_is_smaller(dtype: torch.dtype, bytes_each: int) -> None:
    """One bit per entry is 1 / (8 bytes_each) of the dense tensor."""
    entries = 8 * bytes_each * 100
    for zeros in (99, 100, 101):
        tensor = torch.ones(entries, dtype=dtype)
        tensor[:zeros] = 0
        assert sparse.pays(tensor) == (zeros > 100)


def test_a_file_takes_bitmap_values_and_little_more() -> None:
    state = {"w": random((300, 200), 0.6)}
    held = int(state["w"].count_nonzero())
    assert len(files.to_tensors(sparse.compact(state))) - (300 * 200 // 8 + 4 * held) in range(400)


def test_bits_are_in_order_and_a_minus_in_front_of_a_zero_is_lost() -> None:
    tensor = torch.zeros(20, 30)
    tensor[0, 1], tensor[0, 9], tensor[0, 2] = -1.0, 5.0, -0.0
    small = sparse.compact({"w": tensor})
    assert small["w.values"].tolist() == [-1, 5]
    assert small["w.bitmap"].tolist() == [0b10, 0b10] + [0] * 73
    assert small["w.shape"].tolist() == [20, 30]
    assert not sparse.expand(small)["w"].signbit()[0, 2]


def test_small_tensors_whole_numbers_and_networks_with_bitmaps_stay_as_they_are() -> None:
    state = {"bias": torch.zeros(10), "counts": torch.zeros(5000, dtype=torch.int64)}
    assert sparse.compact(state).keys() == state.keys()
    named = {"mask.bitmap": torch.zeros(5000), "w": torch.zeros(5000)}
    assert sparse.compact(named).keys() == named.keys()


GOOD = {
    "w.values": torch.tensor([1.0, 2.0]),
    "w.bitmap": torch.tensor([0b10000001, 0b0], dtype=torch.uint8),
    "w.shape": torch.tensor([3, 4]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w.values": None}, "expected 2 float32 values named 'w.values'"),
        ({"w.shape": None}, "'w.shape' must be a list of sizes"),
        ({"w.shape": torch.tensor([3.0, 4.0])}, "'w.shape' must be a list of sizes"),
        ({"w.shape": torch.tensor([[3, 4]])}, "'w.shape' must be a list of sizes"),
        ({"w.shape": torch.tensor([-3, -4])}, "'w.shape' must be a list of sizes"),
        ({"w.shape": torch.tensor([2**40, 2**40])}, "expected 151,115,727,451,828,646,838,272 uint8"),
        ({"w.shape": torch.tensor([3, 6])}, "expected 3 uint8 values named 'w.bitmap'"),
        ({"w.shape": torch.tensor([3, 2])}, "expected 1 uint8 values named 'w.bitmap'"),
        ({"w.bitmap": torch.tensor([1, 0b10000], dtype=torch.uint8)}, "'w.bitmap' has ones after its 12 bits"),
        ({"w.bitmap": torch.tensor([0b111, 0], dtype=torch.uint8)}, "expected 3 float32 values named 'w.values'"),
        ({"w.bitmap": torch.tensor([0b10000001, 0])}, "expected 2 uint8 values named 'w.bitmap'"),
        ({"w.values": torch.tensor([1.0, math.nan])}, "1 of 2 values that are not finite"),
        ({"w.values": torch.tensor([1.0, math.inf])}, "1 of 2 values that are not finite"),
        ({"w.values": torch.tensor([1, 2])}, "'w.values' must be floating-point numbers"),
        ({"w.values": torch.tensor([[1.0, 2.0]])}, "in 2 dimensions"),
        ({"w": torch.zeros(3, 4)}, "'w' is there twice"),
    ],
)
def test_a_damaged_file_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert sparse.expand(GOOD)["w"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0]]
    damaged = {name: tensor for name, tensor in {**GOOD, **change}.items() if tensor is not None}
    (tmp_path / "bad.safetensors").write_bytes(files.to_tensors(damaged))
    with pytest.raises(PayloadError) as refused:
        sparse.read(tmp_path / "bad.safetensors")
    assert message in str(refused.value)


def test_a_run_can_start_from_a_sparse_file(tmp_path: Path) -> None:
    state = {"weight": random((40, 30), 0.5), "bias": torch.ones(40)}
    (tmp_path / "model.safetensors").write_bytes(files.to_tensors(sparse.compact(state)))
    found = Init.of(tmp_path / "model.safetensors").tensors
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
