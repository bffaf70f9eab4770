"""Supermask (FedPM): train scores of masks over frozen random weights.

Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328. Every tensor of two or more dimensions is frozen at ``±c``,
with ``c = scale / sqrt(fan-in)`` and the signs of the network's initial weights. Clients train and send a score ``s``
per weight. Initial scores are normal. In each local step, a mask is drawn as 1 with probability ``sigmoid(s)``. The
network uses the mask times the frozen weights ``w``. The gradient of the scores is a straight-through estimate:
``ds = dw w sigmoid'(s)``. Norms and biases are trained and sent directly.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import random, tree
from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.random.noise import draw
from gossamer.core.types import Params, State


@dataclass(frozen=True)
class Supermask(CheckedFields):
    """Trains scores of masks over frozen weights.

    FedPM, https://arxiv.org/abs/2209.15328.

    Args:
        scale: the magnitude of the frozen weights, times the square root of the fan-in
        sampled: evaluate the network with one fixed random mask instead of the mean of all masks
    """

    scale: float = math.e
    sampled: bool = False

    def __post_init__(self) -> None:
        require((0 < self.scale < math.inf, wrong(self, "scale", "must be a positive number")))

    def hold(self, built: Params, key: Key) -> Params:
        """Return normal scores in place of weights."""
        tree.check_entries(_masked(built), "Supermask")
        return {**built, **{name: _normal(tensor, random.fold(key, name)) for name, tensor in _masked(built).items()}}

    def context(self, built: Params, key: Key) -> State:
        """Return the frozen weights, and a key for the draws."""
        frozen = self.frozen(built)
        some = next(iter(built.values()))
        return {"frozen": frozen, "key": random.tensor(random.fold(key, "masks"), some.device)} if frozen else {}

    def frozen(self, built: Params) -> Params:
        """Return the frozen weights."""
        sizes = {name: self.scale / math.sqrt(tensor[0].numel()) for name, tensor in _masked(built).items()}
        return {name: torch.where(built[name] < 0, -size, size).to(built[name]) for name, size in sizes.items()}

    def network(self, held: Params, context: State, step_index: Tensor) -> Params:
        """Return the frozen weights under newly drawn masks."""
        frozen: Params = context["frozen"]
        drawn = random.draws_like(context["key"], step_index, frozen)
        kept = {name: torch.where(drawn[name] < torch.sigmoid(held[name]), w, 0) for name, w in frozen.items()}
        return held | kept

    def pull(self, grads: Params, held: Params, context: State) -> Params:
        """Return the straight-through gradients of the scores."""
        chance = {name: torch.sigmoid(held[name]) for name in context["frozen"]}
        return grads | {n: grads[n] * context["frozen"][n] * p * (1 - p) for n, p in chance.items() if n in grads}

    def deploy(self, held: Params, built: Params) -> Params:
        """Return the frozen weights times the mean mask, or under one fixed mask with ``sampled``."""
        frozen = self.frozen(built)
        if self.sampled:
            some = next(iter(built.values()))
            context = {"frozen": frozen, "key": random.tensor(Key(0, 0), some.device)}
            return self.network(held, context, torch.zeros((), dtype=torch.int64, device=some.device))
        return held | {name: weights * torch.sigmoid(held[name]) for name, weights in frozen.items()}


def _masked(built: Params) -> Params:
    return {name: tensor for name, tensor in built.items() if tensor.dim() >= 2}


def _normal(like: Tensor, key: Key) -> Tensor:
    """Return standard normal values in the shape and type of a tensor."""
    return draw("gauss", 1.0, key, like.numel()).to(like).view(like.shape)
