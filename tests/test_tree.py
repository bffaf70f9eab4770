"""Arithmetic on dictionaries, and nests as files hold them."""

import torch

from gossamer import tree


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
