"""Parametrizations: which tensors are trained and sent, and how the network's tensors follow from them.

By default (``Weights``), they are the network's own tensors. They can also be other tensors of the same shapes: with
``Supermask`` (FedPM: Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328), scores of masks over frozen random
weights. Every tensor of two or more dimensions is frozen at ``±c``, with ``c = scale / sqrt(fan-in)`` and the signs of
the network's initial weights. Clients train and send a score ``s`` per weight. Initial scores are normal. In each local
step, a mask is drawn as 1 with probability ``sigmoid(s)``. The network uses the mask times the frozen weights ``w``.
The gradient of the scores is a straight-through estimate: ``ds = dw w sigmoid'(s)``. Norms and biases are trained and
sent directly.

With ``around="start"``, a weight is its initial value plus ``c`` where the mask is 1, and minus ``c`` where it is 0.
All scores start at 0, so the mean network is the initial one. This is for adapters of a pretrained network, whose
product must be zero at the start.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import random, tree
from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.parametrization import Parametrization, Weights
from gossamer.core.random import Key
from gossamer.core.random.noise import draw
from gossamer.core.types import Params, State

__all__ = ["Parametrization", "Supermask", "Weights"]


@dataclass(frozen=True)
class Supermask(CheckedFields):
    """Trains scores of masks over frozen weights.

    FedPM, https://arxiv.org/abs/2209.15328.

    Args:
        scale: the magnitude of the frozen weights, times the square root of the fan-in
        sampled: evaluate the network with one fixed random mask instead of the mean of all masks
        around: zero, or start: masks shift the initial weights, so that training starts from the network as it is
    """

    scale: float = math.e
    sampled: bool = False
    around: Literal["zero", "start"] = "zero"

    def __post_init__(self) -> None:
        require(
            (0 < self.scale < math.inf, wrong(self, "scale", "must be a positive number")),
            (self.around in ("zero", "start"), wrong(self, "around", "must be zero or start")),
        )

    def hold(self, built: Params, key: Key) -> Params:
        """Return scores in place of weights: normal ones, or zeros for masks around the initial weights."""
        masked = _masked(built)
        tree.check_entries(masked, "Supermask")
        if self.around == "start":
            return {**built, **{name: torch.zeros_like(tensor) for name, tensor in masked.items()}}
        # Tensors of zeros, such as those of adapters, have no signs to freeze.
        blank = [name for name, tensor in masked.items() if not bool(tensor.any())]
        rest = (
            f": {', '.join(blank)} start at zero, so weights frozen at random would replace what the network computes: "
            "use {}, with a small {}"
        )
        about, use = (Setting("Supermask", "around", value) for value in (None, "start"))
        require((not blank, Mistake(rest, about, use, Setting("Supermask", "scale"))))
        scores = {n: draw("gauss", 1.0, random.fold(key, n), like.numel()) for n, like in masked.items()}
        return {**built, **{n: flat.to(masked[n]).view(masked[n].shape) for n, flat in scores.items()}}

    def context(self, built: Params, key: Key) -> State:
        """Return the values of a weight with and without its mask, and a key for the draws."""
        masked = self.frozen(built)
        some = next(iter(built.values()))
        return {**masked, "key": random.tensor(random.fold(key, "masks"), some.device)} if masked["on"] else {}

    def frozen(self, built: Params) -> dict[str, Params]:
        """Return the weights where a mask is 1, and those where it is 0 unless they are 0 too."""
        masked = _masked(built)
        sizes = {name: self.scale / math.sqrt(tensor[0].numel()) for name, tensor in masked.items()}
        if self.around == "start":
            shifts = {name: torch.tensor(size, dtype=torch.float64).to(masked[name]) for name, size in sizes.items()}
            on, off = ({n: masked[n] + sign * shift for n, shift in shifts.items()} for sign in (1, -1))
            return {"on": on, "off": off}
        return {"on": {n: torch.where(built[n] < 0, -size, size).to(built[n]) for n, size in sizes.items()}}

    def network(self, held: Params, context: State, step_index: Tensor) -> Params:
        """Return the weights under newly drawn masks."""
        on, off = _both(context)
        drawn = random.draws_like(context["key"], step_index, on)
        kept = {name: torch.where(drawn[name] < torch.sigmoid(held[name]), w, off[name]) for name, w in on.items()}
        return held | kept

    def pull(self, grads: Params, held: Params, context: State) -> Params:
        """Return the straight-through gradients of the scores."""
        on, off = _both(context)
        chance = {name: torch.sigmoid(held[name]) for name in on}
        return grads | {n: grads[n] * (on[n] - off[n]) * p * (1 - p) for n, p in chance.items() if n in grads}

    def deploy(self, held: Params, built: Params) -> Params:
        """Return the weights under the mean mask, or under one fixed mask with ``sampled``."""
        context: State = {**self.frozen(built)}
        if self.sampled:
            some = next(iter(built.values()))
            context["key"] = random.tensor(Key(0, 0), some.device)
            return self.network(held, context, torch.zeros((), dtype=torch.int64, device=some.device))
        on, off = _both(context)
        return held | {name: off[name] + (w - off[name]) * torch.sigmoid(held[name]) for name, w in on.items()}


def _both(context: State) -> tuple[Params, Mapping[str, Tensor | float]]:
    """Return the weights where a mask is 1, and those where it is 0."""
    on: Params = context["on"]
    return on, context.get("off") or dict.fromkeys(on, 0.0)


def _masked(built: Params) -> Params:
    return {name: tensor for name, tensor in built.items() if tensor.dim() >= 2}
