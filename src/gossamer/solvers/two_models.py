"""What solvers share that step two models in turn: whose turn it is, what becomes of either, which one is deployed."""

import torch
from torch import Tensor

from gossamer import tree
from gossamer.solvers.base import Now
from gossamer.types import Params, State


def when(condition: Tensor, now: Now) -> bool | Tensor:
    """True or false where numbers are plain; else a tensor, as clients of a stack may be in different phases."""
    return condition if isinstance(now["rate"], Tensor) else bool(condition)


def either(condition: bool | Tensor, a: Params, b: Params) -> Params:
    """The tensors of ``a`` where the condition holds, else those of ``b``."""
    if isinstance(condition, bool):
        return a if condition else b
    return {name: torch.where(condition, a[name], tensor) for name, tensor in b.items()}


class OwnModel:
    """A solver that carries the client's own model as ``personal``, remembers it, and has it deployed."""

    def end(self, carry: State) -> State:
        """The personal model, as far as models travel; in memory of its own, not in that of a whole stack."""
        own: Params = carry["personal"]
        return {"personal": tree.clone({name: tensor for name, tensor in own.items() if tensor.is_floating_point()})}

    def personal(self, state: State) -> Params | None:
        """The personal model; before the client's first round there is none."""
        own: Params | None = state.get("personal")
        return own
