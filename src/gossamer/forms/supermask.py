"""Scores over frozen weights: training finds which weights of a random network to keep (FedPM).

Every tensor of two or more dimensions is frozen at ``±c``, with ``c = scale / sqrt(fan-in)`` and the signs that the
network was built with. Held is a score ``s`` for each weight, normal at first. In every step of training a mask is
drawn, 1 with probability ``sigmoid(s)``, and the network has the weights that the mask keeps. The gradient goes
straight through the draw: ``ds = dw w sigmoid'(s)``. Norms and biases are held and trained as they are.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer import random
from gossamer.codecs.noise import draw
from gossamer.errors import require, wrong
from gossamer.random import Key
from gossamer.types import Params, State


@dataclass(frozen=True)
class Supermask:
    """Scores of masks over frozen weights.

    scale: magnitude of the frozen weights, times the root of the fan-in
    sampled: evaluate the network with one mask drawn for good, rather than with the mean of all masks
    """

    scale: float = math.e
    sampled: bool = False

    def __post_init__(self) -> None:
        require((0 < self.scale < math.inf, wrong(self, "scale", "must be a positive number")))

    def hold(self, built: Params, key: Key) -> Params:
        """Normal scores in place of weights."""
        return {**built, **{name: _normal(tensor, random.fold(key, name)) for name, tensor in _masked(built).items()}}

    def aid(self, built: Params, key: Key) -> State:
        """The frozen weights, and a key for the draws."""
        frozen = self.frozen(built)
        some = next(iter(built.values()))
        return {"frozen": frozen, "key": random.tensor(random.fold(key, "masks"), some.device)} if frozen else {}

    def frozen(self, built: Params) -> Params:
        """The weights that masks are laid over."""
        sizes = {name: self.scale / math.sqrt(tensor[0].numel()) for name, tensor in _masked(built).items()}
        return {name: torch.where(built[name] < 0, -size, size).to(built[name]) for name, size in sizes.items()}

    def network(self, held: Params, aid: State, taken: Tensor) -> Params:
        """Frozen weights under masks drawn afresh."""
        frozen: Params = aid["frozen"]
        drawn = random.draws_like(aid["key"], taken, frozen)
        kept = {name: torch.where(drawn[name] < torch.sigmoid(held[name]), w, 0) for name, w in frozen.items()}
        return held | kept

    def pull(self, grads: Params, held: Params, aid: State) -> Params:
        """Straight through the draw."""
        chance = {name: torch.sigmoid(held[name]) for name in aid["frozen"]}
        return grads | {n: grads[n] * aid["frozen"][n] * p * (1 - p) for n, p in chance.items() if n in grads}

    def deploy(self, held: Params, built: Params) -> Params:
        """Frozen weights under the mean of all masks, or under one."""
        frozen = self.frozen(built)
        if self.sampled:
            some = next(iter(built.values()))
            aid = {"frozen": frozen, "key": random.tensor(Key(0, 0), some.device)}
            return self.network(held, aid, torch.zeros((), dtype=torch.int64, device=some.device))
        return held | {name: weights * torch.sigmoid(held[name]) for name, weights in frozen.items()}


def _masked(built: Params) -> Params:
    return {name: tensor for name, tensor in built.items() if tensor.dim() >= 2}


def _normal(like: Tensor, key: Key) -> Tensor:
    """Standard normal values in the shape and type of a tensor."""
    return draw("gauss", 1.0, key, like.numel()).to(like).view(like.shape)
