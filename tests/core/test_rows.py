"""Helpers over the last dimension: a row of a matrix has the bits of the vector alone."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core import bits, exact, indices
from gossamer.core.errors import PayloadError
from gossamer.core.random import fold, fold_each, key, uniform
from gossamer.core.types import Layout
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs import scale
from gossamer.parts.codecs.rotated import least_squares_scale, nearest, unbiased_scale
from gossamer.parts.codecs.rotation import Rotation, hadamard_

RUN = key(17)
DTYPES = st.sampled_from([torch.float32, torch.float64])
LENGTHS = st.one_of(st.integers(0, 70), st.integers(0, 70_000))
ROWS = st.integers(1, 5)
steady = settings(deadline=None, derandomize=True, max_examples=30)


def code(x: Tensor, width: int) -> Tensor:
    return ((x + 0.5) * 2**width).to(torch.uint8)


def coded(width: int, x: Tensor) -> Tensor:
    return bits.codes(code(x, width), width)


def recoded(width: int, x: Tensor) -> Tensor:
    return bits.uncodes(coded(width, x), width, x.shape[-1])


FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "total": exact.total,
    "norm": exact.norm,
    "root": lambda x: exact.root(x.abs()),
    "log": lambda x: exact.log(x.abs() + 1e-3),
    "unit": lambda x: exact.unit(x)[0],
    "exponent": lambda x: exact.unit(x)[1],
    "shift": lambda x: exact.shift(x, (x * 30).int()),
    "largest": scale.largest,
    "ratio": lambda x: scale.ratio(x, scale.largest(x)),
    "blocks": lambda x: scale.blocks(x, 13, 1.0),
    "one block": lambda x: scale.blocks(x, scale.block_length(x.shape[-1], None)),
    "nearest": lambda x: nearest(x * 5, (-1.5, -0.45, 0.45, 1.5)),
    "unbiased scale": lambda x: unbiased_scale(x, x.round(decimals=1)),
    "least-squares scale": lambda x: least_squares_scale(x, x.round(decimals=1)),
    "bits": lambda x: bits.bits(x > 0),
    "unbits": lambda x: bits.unbits(bits.bits(x > 0), x.shape[-1]),
    "numbers": lambda x: bits.numbers(x > 0, x.dtype),
    "plus or minus": lambda x: bits.plus_minus(x > 0, x.dtype),
    "trits": lambda x: bits.trits((x * 3).round().to(torch.int8)),
    "untrits": lambda x: bits.untrits(bits.trits((x * 3).round().to(torch.int8)), x.shape[-1]),
    **{f"codes {width}": partial(coded, width) for width in range(1, 9)},
    **{f"uncodes {width}": partial(recoded, width) for width in range(1, 9)},
}


def matrix(rows: int, n: int, dtype: torch.dtype) -> Tensor:
    """Rows of numbers from -1/2 to 1/2, some of them far smaller, and one of zeros."""
    sizes = torch.tensor([1, 1e-30, 0, 1e-3, 1], dtype=dtype).repeat(rows)[:rows]
    return (uniform(fold(RUN, rows, n), rows * n, dtype=dtype).view(rows, n) - 0.5) * sizes.view(-1, 1)


@pytest.mark.parametrize("name", FLOATS)
@steady
@given(ROWS, LENGTHS, DTYPES)
def test_rows_have_the_bits_of_one(name: str, rows: int, n: int, dtype: torch.dtype) -> None:
    function, x = FLOATS[name], matrix(rows, n, dtype)
    found, single = function(x), [function(row.clone()) for row in x]
    assert torch.equal(found, torch.stack(single))
    assert found.dtype == single[0].dtype
    apart = matrix(2 * rows, n, dtype)[::2]  # rows that do not follow each other in memory
    assert torch.equal(function(apart), function(apart.clone()))


@pytest.mark.parametrize("shared", [False, True])
@steady
@given(ROWS, st.one_of(LENGTHS, st.sampled_from([0, 1, 8192, 2 * 8192, 8192 + 1])), DTYPES)
def test_rows_are_rotated_by_their_keys(shared: bool, rows: int, n: int, dtype: torch.dtype) -> None:
    x, keys = matrix(rows, n, dtype), fold_each(RUN, "client", range(rows))
    together, single = Rotation(n, RUN if shared else keys), [Rotation(n, RUN if shared else k) for k in keys]
    y = together.forward(x)
    assert torch.equal(y, torch.stack([one.forward(row) for one, row in zip(single, x, strict=True)]))
    assert torch.equal(together.inverse(y), torch.stack([one.inverse(row) for one, row in zip(single, y, strict=True)]))
    cut = torch.cat([piece.flatten(-2) for piece in together.cut(y)], -1)
    assert torch.equal(cut, y)
    assert sum(piece.shape[-2] for piece in together.cut(y)) == together.segments


def test_more_rows_than_fit_a_cache_are_rotated_alike() -> None:
    n = 1000
    x, keys = matrix(300, n, torch.float32), fold_each(RUN, "client", range(300))
    y = Rotation(n, keys).forward(x)
    for row in (0, 150, 299):
        assert torch.equal(y[row], Rotation(n, keys[row]).forward(x[row]))
    assert torch.allclose(Rotation(n, keys).inverse_(y), x, atol=1e-6)


@steady
@given(ROWS, st.integers(0, 9), DTYPES)
def test_each_row_is_transformed(rows: int, power: int, dtype: torch.dtype) -> None:
    x = matrix(rows, 2**power, dtype)
    assert torch.equal(hadamard_(x.clone()), torch.stack([hadamard_(row.clone()) for row in x]))


@steady
@given(ROWS, st.integers(0, 3000), st.data())
def test_values_are_spread_over_the_masks_of_rows(rows: int, n: int, data: st.DataObject) -> None:
    marked = data.draw(st.integers(0, n))
    masks = uniform(fold_each(RUN, "mask", range(rows)), n).argsort(-1) < marked
    values = matrix(rows, marked, torch.float32)
    found = indices.spread(values, masks)
    assert torch.equal(found, torch.stack([indices.spread(v, m) for v, m in zip(values, masks, strict=True)]))


# Checks


@steady
@given(ROWS, st.integers(1, 3000), st.integers(1, 8))
def test_messages_of_a_group_are_read_together(rows: int, n: int, width: int) -> None:
    x = matrix(rows, n, torch.float32)
    flags, codes, trits = x > 0, code(x, width), (x * 3).round().to(torch.int8)
    packed = {"bits": bits.bits(flags), "codes": bits.codes(codes, width), "trits": bits.trits(trits), "x": x}
    assert torch.equal(bits.expect_bits(packed, "bits", n), flags)
    assert torch.equal(bits.expect_packed(packed, "bits", n), packed["bits"])
    assert torch.equal(bits.expect_codes(packed, "codes", width, n), codes)
    assert torch.equal(bits.expect_trits(packed, "trits", n), trits)
    assert torch.equal(indices.unpack({"bitmap": packed["bits"]}, n), flags)
    assert expect(packed, "x", torch.float32, n) is finite(x, "x") is x


GROUP = Layout((("x", torch.Size([3])),))


@pytest.mark.parametrize(
    ("read", "array", "reason"),
    [
        (lambda p: bits.expect_bits(p, "a", 11), [[1, 0], [1, 8]], "'a' has ones after its 11 bits"),
        (lambda p: bits.expect_codes(p, "a", 3, 3), [[1, 0], [1, 2]], "'a' has ones after its 9 bits"),
        (lambda p: bits.expect_trits(p, "a", 6), [[1, 0], [1, 3]], "'a' has nonzero padding after its 6 trits"),
        (lambda p: bits.expect_trits(p, "a", 10), [[1, 0], [1, 243]], "'a' has a byte above 242"),
        (lambda p: bits.expect_bits(p, "a", 17), [[1, 0], [1, 0]], "got 4 uint8 values in 2 dimensions"),
        (lambda p: bits.expect_bits(p, "a", 16), [[[1, 0]]], "in 3 dimensions"),
        (
            lambda p: expect(p, "a", torch.uint8, None),
            [[1, 0]],
            "expected uint8 values named 'a', got 2 uint8 values in 2",
        ),
    ],
)
def test_one_bad_row_is_refused(
    read: Callable[[dict[str, Tensor]], Tensor], array: list[list[int]], reason: str
) -> None:
    with pytest.raises(PayloadError, match=reason):
        read({"a": torch.tensor(array, dtype=torch.uint8)})


def test_scales_of_a_group() -> None:
    good = torch.tensor([[1.0], [0.0]])
    assert scale.expect_scale({"scale": good}, GROUP) is good
    assert scale.expect_scales({"scales": good}, GROUP, 1) is good
    with pytest.raises(PayloadError, match="'scale' must be at least 0, got -2"):
        scale.expect_scale({"scale": torch.tensor([[1.0], [-2.0]])}, GROUP)
    with pytest.raises(PayloadError, match="'scales' holds a negative value"):
        scale.expect_scales({"scales": torch.tensor([[1.0, 2.0], [-0.0, 1.0]])}, GROUP, 2)
    with pytest.raises(PayloadError, match="'scale' holds 1 of 2 values that are not finite"):
        scale.expect_scale({"scale": torch.tensor([[1.0], [math.inf]])}, GROUP)
