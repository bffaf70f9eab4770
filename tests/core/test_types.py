"""Layouts and parts: what a client takes of the model goes back to where it came from."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer import ConfigError, Layout, Part
from gossamer.core import tree
from gossamer.core.types import Flops, Params


def test_a_layout_is_in_name_order_and_undoes_itself() -> None:
    params = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([9.0])}
    layout = Layout.of(params)
    vector = layout.flatten(params)
    assert vector.tolist() == [9, 0, 1, 2, 3, 4, 5]
    assert layout.size == 7
    back = layout.unflatten(vector)
    assert all(torch.equal(back[name], params[name]) for name in params)


def test_adjacent_tensors_are_joined_without_a_copy() -> None:
    params = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(9.0), "c": torch.zeros(0, 2)}
    layout = Layout.of(params)
    change = tree.difference(params, {name: torch.ones_like(tensor) for name, tensor in params.items()})
    assert list(change) == list(params)
    assert {name: tensor.shape for name, tensor in change.items()} == dict(layout.shapes)
    vector = layout.joined(change)
    assert vector.tolist() == layout.flatten(change).tolist() == [8, -1, 0, 1, 2, 3, 4]
    assert vector.data_ptr() == change["a"].data_ptr()


@pytest.mark.parametrize("names", ["ab", "ac", "bc", "abc"])
def test_tensors_with_a_gap_or_in_another_order_are_copied(names: str) -> None:
    whole = torch.arange(12.0)
    params = {"a": whole[:4].view(2, 2), "b": whole[4:8].view(2, 2).t(), "c": whole[8:]}
    some = {name: params[name] for name in names}
    vector = Layout.of(some).joined(some)
    assert torch.equal(vector, Layout.of(some).flatten(some))
    assert vector.data_ptr() != some[names[0]].data_ptr()


def test_the_entries_that_a_client_holds_are_joined() -> None:
    whole = torch.arange(4.0)
    params = {"a": whole[:2], "b": whole[2:]}
    layout = Layout.of(params, {"a": torch.tensor([0.0, 1.0])})
    assert layout.joined(params).tolist() == [1, 2, 3]


def test_a_model_of_two_precisions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one floating-point type, got torch.float32, torch.float64"):
        Layout.of({"a": torch.zeros(1), "b": torch.zeros(1, dtype=torch.float64)})


def test_operations_of_the_whole_model_count_as_done_and_as_useful() -> None:
    assert Flops(10, 5).plus(2) == Flops(done=12, useful=7)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Params, Part]:
    """A small model and a slice of it with a mask inside."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    params = {"w": torch.arange(1.0, rows * columns * 2 + 1).view(rows, columns, 2), "b": torch.arange(1.0, rows + 1)}
    subset = st.lists(st.integers(0, rows - 1), min_size=1, unique=True)
    index = torch.tensor(draw(subset))
    columns_kept = draw(st.none() | st.lists(st.integers(0, columns - 1), min_size=1, unique=True))
    second = None if columns_kept is None else torch.tensor(columns_kept)
    part = Part(index={"w": (index, second), "b": (index,)})
    keep = {
        n: torch.tensor(draw(st.lists(st.integers(0, 1), min_size=t.numel(), max_size=t.numel()))).view(t.shape)
        for n, t in part.take(params).items()
    }
    return params, Part(part.index, keep if draw(st.booleans()) else {}, keep if draw(st.booleans()) else {})


@given(parts(), st.sets(st.sampled_from(["w", "b"])))
def test_a_layout_with_masks_against_plain_selection(drawn: tuple[Params, Part], names: set[str]) -> None:
    """Of a masked tensor the kept entries are sent, of another one all; alone and together with others."""
    params, part = drawn
    held = part.take(params)
    layout, kept = part.layout(params), {n: part.keep.get(n, torch.ones_like(t)).bool() for n, t in held.items()}
    pieces = {name: held[name][kept[name]] for name in sorted(held)}
    vector = layout.flatten(held)
    assert torch.equal(vector, torch.cat(list(pieces.values())))
    assert (layout.size, layout.counts) == (len(vector), tuple(map(len, pieces.values())))
    assert all(torch.equal(piece, pieces[name]) for name, piece in layout.cut(vector))
    filled = {name: torch.where(kept[name], tensor, -1) for name, tensor in held.items()}
    assert all(torch.equal(t, filled[name]) for name, t in layout.unflatten(vector, -1).items())
    assert torch.equal(layout.spread(vector, -1), torch.cat([filled[name].reshape(-1) for name in sorted(filled)]))
    if names:
        some = layout.only(names)
        assert torch.equal(some.flatten(held), torch.cat([pieces[name] for name in sorted(names)]))
        assert some.unflatten(some.flatten(held)).keys() == names


@given(parts())
def test_take_and_spread_against_plain_indexing(drawn: tuple[Params, Part]) -> None:
    params, part = drawn
    held = part.take(params)
    spread = part.spread({name: torch.ones_like(t) for name, t in held.items()}, params)
    for name, tensor in params.items():
        ends = [np.arange(n) for n in tensor.shape]
        for dim, positions in enumerate(part.index[name]):
            if positions is not None:
                ends[dim] = positions.numpy()
        at = np.ix_(*ends)
        keep = part.keep[name].numpy() if name in part.keep else 1
        counts = part.count[name].numpy() if name in part.count else keep
        wanted = np.zeros(tensor.shape)
        wanted[at] = counts
        assert np.array_equal(held[name].numpy(), tensor.numpy()[at] * keep)
        assert np.array_equal(spread[name].numpy(), wanted)
        assert np.array_equal(part.coverage(params)[name].numpy(), wanted)


def test_the_whole_model_is_taken_without_a_copy() -> None:
    params = {"w": torch.zeros(3)}
    assert Part().take(params)["w"] is params["w"]
    assert Part().whole
