"""Solvers on vectors, for tests that think in tensors."""

from typing import TypeVar

import torch
from torch import Tensor

from gossamer.core.solver import Solver
from gossamer.core.types import Layout, Params

S = TypeVar("S", bound=Solver)


def on(solver: S, start: Params) -> tuple[S, Layout, Tensor]:
    """A solver for clients that hold these tensors, all of them trained; their layout, and their vector."""
    layout = Layout.of(start)
    return solver.on(layout, list(start), (), torch.device("cpu")), layout, layout.flatten(start)
