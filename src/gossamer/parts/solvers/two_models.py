"""Shared code of solvers that train two models in turn, a global and a personal one."""

from typing import TypeVar

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import Coding
from gossamer.core.errors import require
from gossamer.core.exchange import Context, LocalTrainingInfo, Sections
from gossamer.core.random import Key
from gossamer.core.solver import Hyperparams, SolverMemory
from gossamer.core.types import Layout, Params, State
from gossamer.parts.views.entries import Full

T = TypeVar("T")


def when(condition: Tensor, hyperparams: Hyperparams) -> bool | Tensor:
    """Return the condition as a bool. Return the tensor itself in a stacked step, where clients' phases may differ."""
    return condition if isinstance(hyperparams["rate"], Tensor) else bool(condition)


def either(condition: bool | Tensor, a: Params, b: Params) -> Params:
    """Return the tensors of ``a`` if the condition holds, else those of ``b``."""
    if isinstance(condition, bool):
        return a if condition else b
    return {name: torch.where(condition, a[name], tensor) for name, tensor in b.items()}


class OwnModel(SolverMemory):
    """A solver that keeps a personal model as client state, named ``personal``. The client deploys this model."""

    def bind(self: T, context: Context) -> T:
        """Refuse partial views, and codecs with a straight-through estimator: it would apply to both models."""
        name, (view, codec) = type(self).__name__, (context.exchange.view, context.exchange.codec)
        like = context.network.outline()
        surrogate = codec.surrogate_context(Coding(Layout.of(like), Key(0, 0)), 1, tree.device(like))
        require(
            (view == Full(), f"{name} needs clients that hold the whole model: use Full()"),
            (
                not surrogate,
                f"{name} trains two models and cannot use a codec with a straight-through estimator: {codec}; "
                "add learn_masks=False to the codec (--codec masked-noise:...,learn_masks=false)",
            ),
        )
        return self

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the floating-point tensors of the personal model, copied out of the memory of stacked clients."""
        own: Params = carry["personal"]
        floating = {name: tensor for name, tensor in own.items() if tensor.is_floating_point()}
        return {"personal": tree.clone(floating)}, {}

    def deploy(self, memory: State) -> Params | None:
        """Return the personal model, or ``None`` before the client's first round."""
        own: Params | None = memory.get("personal")
        return own
