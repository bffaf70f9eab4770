"""What solvers share that step two models in turn: whose turn it is, what becomes of either, which one is deployed."""

from typing import TypeVar

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import surrogate_of
from gossamer.core.errors import require
from gossamer.core.exchange import Context, LocalTrainingInfo, Sections
from gossamer.core.random import Key
from gossamer.core.solver import Hyperparams, SolverMemory
from gossamer.core.types import Layout, Params, State
from gossamer.parts.views.full import Full

T = TypeVar("T")


def when(condition: Tensor, hyperparams: Hyperparams) -> bool | Tensor:
    """True or false where numbers are plain; else a tensor, as clients of a stack may be in different phases."""
    return condition if isinstance(hyperparams["rate"], Tensor) else bool(condition)


def either(condition: bool | Tensor, a: Params, b: Params) -> Params:
    """The tensors of ``a`` where the condition holds, else those of ``b``."""
    if isinstance(condition, bool):
        return a if condition else b
    return {name: torch.where(condition, a[name], tensor) for name, tensor in b.items()}


class OwnModel(SolverMemory):
    """A solver that carries the client's own model as ``personal``, remembers it, and has it deployed."""

    def bind(self: T, context: Context) -> T:
        """Refuse clients that hold a part of the model, and codecs that training feels: there are two models."""
        name, (view, codec) = type(self).__name__, (context.exchange.view, context.exchange.codec)
        like = context.network.outline()
        felt = surrogate_of(codec).surrogate_context(Layout.of(like), 1, Key(0, 0), tree.device(like))
        require(
            (view == Full(), f"{name} needs clients that hold the whole model: use Full()"),
            (
                not felt,
                f"{name} cannot go with a codec that training feels, as it trains two models: {codec}; "
                "give the codec rehearsed=False (--codec masked-noise:rehearsed=false)",
            ),
        )
        return self

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """The personal model, as far as models travel; in memory of its own, not in that of a whole stack."""
        own: Params = carry["personal"]
        travels = {name: tensor for name, tensor in own.items() if tensor.is_floating_point()}
        return {"personal": tree.clone(travels)}, {}

    def deploy(self, memory: State) -> Params | None:
        """The personal model; before the client's first round there is none."""
        own: Params | None = memory.get("personal")
        return own
