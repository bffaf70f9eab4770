"""Arithmetic on dictionaries, and nests as files hold them."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core import tree
from gossamer.core.types import State


def test_add_keeps_what_only_the_first_has_and_subtract_undoes_it() -> None:
    a, b = {"x": torch.tensor([1.0]), "n": torch.tensor([5])}, {"x": torch.tensor([2.0])}
    total = tree.add(a, b)
    assert total["x"].item() == 3
    assert total["n"] is a["n"]
    assert tree.subtract(total, b)["x"].item() == 1
    assert tree.subtract(total, b).keys() == {"x"}


def test_the_norm_is_that_of_all_entries_together() -> None:
    assert tree.norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}).item() == 5
    assert tree.norm({}).item() == 0


def test_nests_survive_being_flattened() -> None:
    nest = {"codec": {"left": {"a.weight": torch.ones(2)}}, "step": torch.tensor(3), "none": {}}
    flat = tree.flatten(nest)
    assert list(flat) == ["codec/left/a.weight", "step"]
    back = tree.unflatten(flat)
    assert torch.equal(back["codec"]["left"]["a.weight"], torch.ones(2))
    assert back.keys() == {"codec", "step"}
    assert tree.move(back, "cpu")["step"].item() == 3


NAMES = st.text(st.sampled_from("a/~01.é "), min_size=1, max_size=4)
NESTS = st.recursive(
    st.builds(torch.ones, st.just(1)), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=6
).filter(lambda nest: isinstance(nest, dict))


@given(NESTS)
def test_a_nest_with_any_names_comes_back(nest: State) -> None:
    flat = tree.flatten(nest)
    assert tree.unflatten(flat) == nest
    for path, tensor in flat.items():
        found: Any = nest
        for name in tree.names(path):
            found = found[name]
        assert found is tensor


def test_all_tensors_at_once_give_what_one_after_the_other_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    a = {name: torch.randn(shape, generator=draw) for name, shape in {"x": (3, 4), "y": (5,), "z": ()}.items()}
    b = {name: torch.randn(tensor.shape, generator=draw) for name, tensor in a.items()}

    def found() -> dict[str, torch.Tensor]:
        moved, written = tree.clone(a), {"there": tree.clone(a), "count": torch.zeros(())}
        tree.shift_(moved, b, 0.1)
        tree.put(written, ..., {"there": b, "count": torch.ones(())})
        rate = torch.tensor(0.3)
        others = {"by": tree.shift(a, b, 0.3), "at": tree.shift(a, b, rate), "scaled": tree.scale(a, rate)}
        return tree.flatten({**others, "moved": moved, "written": written, "norm": tree.norm(a)})

    slow = found()
    monkeypatch.setattr(tree, "_fused", lambda tensors, *others: bool(tensors))
    fast = found()
    assert slow.keys() == fast.keys()
    for name, tensor in slow.items():
        torch.testing.assert_close(fast[name], tensor)
    torch.testing.assert_close(slow["at/x"], a["x"] + 0.3 * b["x"])
    assert slow["written/count"] == 1
