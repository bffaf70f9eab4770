"""Sub-models that are windows over the model's entries, which move on from round to round."""

import math
from dataclasses import dataclass, field

import torch

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key, fold, permutation
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import BoundView, View
from gossamer.fleet.capacity import Capacities, capacity, check_shares


@dataclass(frozen=True)
class Windows(View):
    """A client holds as many neighbouring entries as it has room for, from where the round's window begins.

    Windows begin at evenly spaced places, and go on at the beginning where they reach the end. An epoch is as many
    rounds as there are places: in it the window begins once at each of them, for all clients at the same, so after an
    epoch every entry was held as often as any other by clients of equal capacity, up to rounding.

    Args:
        capacities: shares of the model; client c has the one at c modulo their number
        drawn: draw each client's capacity anew in every round instead
        places: how many places there are, which is the number of rounds of an epoch
        shuffled: take the places in a new random order in every epoch, rather than one after the other
        seed: of that order, which all clients share; none takes the run's
        min_dim: tensors of fewer dimensions (norms, biases, with 2) are held whole
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    places: int = 64
    shuffled: bool = True
    seed: int | None = None
    min_dim: int = 2

    def __post_init__(self) -> None:
        check_shares("Windows", self.capacities)
        require((self.places >= 1, wrong(self, "places", "must be at least 1")))

    def bind(self, context: Context) -> "BoundWindows":
        """With the key of the order."""
        return BoundWindows(**vars(self), at=context.shared_key(self.seed))


@dataclass(frozen=True)
class BoundWindows(BoundView, Windows):
    """Windows, and the key by which places are shuffled."""

    at: Key = field(kw_only=True)

    def place(self, round_: int) -> int:
        """Where the window of a round begins, as the number of a place."""
        return place(self.places, self.at, round_) if self.shuffled else round_ % self.places

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """A mask for each tensor that the window covers in part or not at all."""
        names = sorted(name for name, tensor in like.items() if tensor.dim() >= self.min_dim)
        total = sum(like[name].numel() for name in names)
        length = math.ceil(capacity(self.capacities, self.drawn, clock, key) * total)
        start = self.place(clock.round) * total // self.places
        keep, offset = {}, 0
        for name in names if length < total else ():
            tensor = like[name]
            ahead = (torch.arange(tensor.numel(), device=tensor.device) + (offset - start)) % total
            keep[name] = (ahead < length).to(tensor.dtype).view(tensor.shape)
            offset += tensor.numel()
        return Part(keep=keep)


def place(places: int, key: Key, round_: int) -> int:
    """The place of a round, where each epoch takes all places in a random order of its own."""
    epoch, number = divmod(round_, places)
    return int(permutation(fold(key, "windows", epoch), places)[number])
