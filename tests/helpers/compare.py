"""Compare nests of tensors."""

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.types import Params, State


def same(ours: State | None, theirs: State | None) -> bool:
    """Whether two nests have the same names and bit for bit the same tensors; None is an empty nest."""
    a, b = tree.flatten(ours or {}), tree.flatten(theirs or {})
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_close(ours: Params, theirs: Params, atol: float) -> None:
    """Check that all tensors of ``ours`` are in ``theirs``, up to ``atol``."""
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=atol, msg=name)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))
