"""Sub-models that are narrower networks: a client holds some channels of every layer, and trains tensors of that size.

Which dimensions of tensors are channels, and which are the same, is the network's width rule
(``gossamer.tasks.widths``): it is derived from the network when a run begins, or stated by hand. Each group of n
channels is held to ceil(n times the client's capacity). Which of them depends on ``order``:

    static     the first ones, always (HeteroFL)
    rolling    neighbouring ones, which move back by one channel a round (FedRolex)
    shuffled   neighbouring ones, that begin in an epoch once at each of ``places`` places, in random order (Algorithm 2
               of Deng et al.); all clients of a round begin at the same place
    random     drawn anew for each client, round and group
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context, Network
from gossamer.core.random import Key, fold, permutation
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import NestedView, View
from gossamer.fleet.capacity import Capacities, Room, Shares, capacity, check_capacities, largest_share
from gossamer.fleet.fleet import AIR, Fleet
from gossamer.parts.views.windows import place
from gossamer.tasks.widths import Ties, Widths

Order = Literal["static", "rolling", "shuffled", "random"]
ORDERS = ("static", "rolling", "shuffled", "random")


@dataclass(frozen=True)
class WidthSlice(View):
    """A narrower network for each client.

    Args:
        capacities: shares of the channels, or memory (8MB) that the largest must fit; client c has that at c modulo n
        drawn: draw each client's capacity anew in every round instead
        order: which channels: static, rolling, shuffled or random
        places: how many places shuffled windows begin at, which is the number of rounds of an epoch
        seed: of the order of places, which all clients share; none takes the run's
        streams: whether layers that are added up hold the same channels; without, every layer draws its own
        ties: the width rule by hand (gossamer widths --toml shows its form); none derives it from the network
        fleet: the clients' devices: each client has the largest share that fits its memory; none means capacities count
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    order: Order = "rolling"
    places: int = 64
    seed: int | None = None
    streams: bool = True
    ties: Ties | None = None
    fleet: Fleet | None = None

    def __post_init__(self) -> None:
        check_capacities("WidthSlice", self.capacities)
        require(
            (self.order in ORDERS, wrong(self, "order", f"must be one of {', '.join(ORDERS)}")),
            (self.places >= 1, wrong(self, "places", "must be at least 1")),
            (
                not (self.drawn and self.fleet),
                f"Channels: drawn capacities would not heed the fleet: choose one; {AIR}",
            ),
        )

    def bind(self, context: Context) -> "BoundWidthSlice":
        """With the network's width rule, tried out at every capacity."""
        network = context.network
        widths: Widths = (
            network.widths(self.streams) if self.ties is None else Widths.stated(self.ties, network.outline())
        )
        require(
            (bool(widths.sizes), "this network has no channels that could be left out: all its dimensions are fixed")
        )
        shares = self._shares(context, widths)
        for share in sorted(set(shares)):
            tried(network, widths, share)
        fields = {**vars(self), "capacities": shares}
        return BoundWidthSlice(**fields, widths=widths, at=context.shared_key(self.seed))

    def _shares(self, context: Context, widths: Widths) -> Shares:
        """What each client can hold, where that is said in memory."""
        network, solver = context.network, context.exchange.solver
        needs = cache(lambda share: network.memory(tried(network, widths, share), solver))
        if self.fleet is not None:
            return self.fleet.capacities(network.clients, needs)
        return tuple(largest_share(c.size, needs) if isinstance(c, Room) else float(c) for c in self.capacities)


@dataclass(frozen=True)
class BoundWidthSlice(NestedView, WidthSlice):
    """The same with all that follows from the network: its width rule, and the key of the order of places."""

    widths: Widths = field(kw_only=True)
    at: Key = field(kw_only=True)

    @property
    def nested(self) -> bool:
        """The first channels of each layer are among more of its first ones."""
        return self.order == "static" and not self.drawn

    @property
    def loose(self) -> bool:
        """Whether layers draw channels without regard to each other: then their order matters, also of all of them."""
        return self.order == "random" and not self.streams

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """The client's channels of each group."""
        share = capacity(self.capacities, self.drawn, clock, key)
        start = place(self.places, self.at, clock.round) if self.order == "shuffled" else 0
        channels = {
            group: self._chosen(group, size, held(size, share), start, clock.round, key)
            for group, size in self.widths.sizes
            if held(size, share) < size or self.loose
        }
        return self.widths.part(channels, tree.device(like))

    def _chosen(self, group: str, size: int, many: int, start: int, round_: int, key: Key) -> Tensor:
        if self.order == "random":
            drawn = torch.from_numpy(permutation(fold(key, "channels", group), size)[:many])
            return drawn if self.loose else drawn.sort().values
        begins = {"static": 0, "rolling": -round_, "shuffled": start * size // self.places}[self.order]
        return ((torch.arange(many) + begins) % size).sort().values


def narrowed(widths: Widths, like: Params, share: float) -> Params:
    """The tensors of a network with the first channels alone, each in memory of its own, which may be counted."""
    first = {name: torch.arange(held(size, share)) for name, size in widths.sizes}
    return {name: tensor.clone() for name, tensor in widths.part(first, tree.device(like)).take(like).items()}


def tried(network: Network, widths: Widths, share: float) -> Params:
    """The same of a network, refused if it does not work with them."""
    found = narrowed(widths, network.outline(), share)
    try:
        network.check(found)
    except ConfigError as error:
        told = (
            f"the network does not work with {share:g} of its channels: {m}; where its code writes a width "
            "out, take that from a tensor's shape, or state a width rule by hand that leaves this layer alone"
            for m in error.mistakes
        )
        raise ConfigError(*told) from error
    return found


def held(size: int, share: float) -> int:
    """How many of so many channels a client with this capacity holds; what is whole but for rounding stays whole."""
    return max(1, math.ceil(size * share - 1e-9))
