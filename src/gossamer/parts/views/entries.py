"""Sub-models of single entries, which do not depend on the values of the model: all, random ones, or windows.

    Full         the whole model, as in ordinary federated averaging
    Bernoulli    each client trains a random subset of the entries, drawn anew in every round (Algorithm 1)
    Windows      contiguous windows over the entries, which move from round to round (Algorithm 2)

Algorithms 1 and 2 of Deng et al., On the convergence and stability of distributed sub-model training, 2025,
https://arxiv.org/abs/2511.06132; of Algorithm 1, the form with masks over single entries.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key, Purpose, fold, permutation, uniform
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import View
from gossamer.fleet.capacity import Capacities, capacity, check_shares

WINDOWS = "windows"
"""The purpose of the key that shuffles the offsets."""


@dataclass(frozen=True)
class Full(View):
    """The whole model, for every client in every round."""

    whole: ClassVar[bool] = True

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the whole model."""
        return Part()


@dataclass(frozen=True)
class Bernoulli(View):
    """Random masks: each entry is held independently, with the client's capacity as its probability.

    Args:
        capacities: fractions of the model that clients hold; client c takes value c modulo their number
        drawn: draw the capacity of each client at random in every round
        min_dim: tensors with fewer dimensions are held whole; with 2, biases and norms
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    min_dim: int = 2

    def __post_init__(self) -> None:
        check_shares("Bernoulli", self.capacities)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return a random mask for each tensor that is not held whole."""
        share = capacity(self.capacities, self.drawn, clock, key)
        keep = {}
        for name, tensor in like.items():
            if share < 1 and tensor.dim() >= self.min_dim:
                draws = uniform(fold(key, "mask", name), tensor.numel(), device=tensor.device)
                keep[name] = (draws < share).to(tensor.dtype).view(tensor.shape)
        return Part(keep=keep)


@dataclass(frozen=True)
class Windows(View):
    """A window of consecutive entries per client. Its length is the client's capacity.

    Windows start at evenly spaced offsets and wrap around at the end of the model. All clients of a round share the
    offset. An epoch has one round per offset. After an epoch, clients of equal capacity held each entry equally often,
    up to rounding.

    Args:
        capacities: fractions of the model that clients hold; client c takes value c modulo their number
        drawn: draw the capacity of each client at random in every round
        offsets: number of window offsets, which is the number of rounds until every offset was used once
        shuffled: visit the offsets in a new random order in every epoch, instead of in sequence
        seed: seed of the shuffled order, shared by all clients; none takes the run's seed
        min_dim: tensors with fewer dimensions are held whole; with 2, biases and norms
        at: the key that shuffles the offsets
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    offsets: int = 64
    shuffled: bool = True
    seed: int | None = None
    min_dim: int = 2
    at: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_shares("Windows", self.capacities)
        require((self.offsets >= 1, wrong(self, "offsets", "must be at least 1")))

    def bind(self, context: Context) -> Self:
        """Return the view with the random key of the shuffled order."""
        return self.filled(at=context.shared_key(self.seed))

    def offset_index(self, round_: int) -> int:
        """Return the number of the window offset in a round."""
        return offset_index(self.offsets, self.at, round_) if self.shuffled else round_ % self.offsets

    def purposes(self, client: int) -> Iterable[Purpose]:
        """Return the order of the offsets, which is that of all clients."""
        return [(WINDOWS,)] if self.shuffled and self.seed is None else ()

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the masks of the window. A capacity of 1 gives the whole model."""
        names = sorted(name for name, tensor in like.items() if tensor.dim() >= self.min_dim)
        total = sum(like[name].numel() for name in names)
        length = math.ceil(capacity(self.capacities, self.drawn, clock, key) * total)
        start = self.offset_index(clock.round) * total // self.offsets
        keep, offset = {}, 0
        for name in names if length < total else ():
            tensor = like[name]
            ahead = (torch.arange(tensor.numel(), device=tensor.device) + (offset - start)) % total
            keep[name] = (ahead < length).to(tensor.dtype).view(tensor.shape)
            offset += tensor.numel()
        return Part(keep=keep)


def offset_index(offsets: int, key: Key, round_: int) -> int:
    """Return the number of a round's offset, when each epoch visits all offsets in its own random order."""
    epoch, number = divmod(round_, offsets)
    return int(permutation(fold(key, WINDOWS, epoch), offsets)[number])
