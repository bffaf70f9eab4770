"""Width slices: a client holds a fraction of the channels of every layer and trains a narrower network.

The network's width rule (``gossamer.tasks.widths``) defines which tensor dimensions are channels and which of them are
tied. It is derived from the network at the start of a run, or given by hand. A client holds ceil(capacity n) of the n
channels of a group. The choice of channels depends on ``order``:

    static     the first channels in every round (HeteroFL, https://arxiv.org/abs/2010.01264)
    rolling    consecutive channels that move back by one channel per round (FedRolex, https://arxiv.org/abs/2212.01548)
    shuffled   consecutive channels from one of ``offsets`` starts; each epoch visits all of them in random order, and
               all clients of a round share the offset (Deng et al., Algorithm 2, https://arxiv.org/abs/2511.06132)
    random     drawn anew for each client, round and group (Deng et al., Algorithm 1)
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context, Network
from gossamer.core.random import Key, Purpose, fold, permutation
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import NestedView, View
from gossamer.fleet.capacity import Capacities, Shares, capacity, check_capacities, held
from gossamer.fleet.fleet import AIR, Fleet, fitting
from gossamer.parts.views.windows import WINDOWS, offset_index
from gossamer.tasks.widths import Ties, Widths

Order = Literal["static", "rolling", "shuffled", "random"]
ORDERS = ("static", "rolling", "shuffled", "random")


@dataclass(frozen=True)
class WidthSlice(View):
    """A narrower network for each client: some channels of every layer.

    Args:
        capacities: width (fraction of channels) or memory (8MB) per client; client c takes value c modulo n
        drawn: draw the capacity of each client at random in every round
        order: choice of the channels: static, rolling, shuffled or random
        offsets: number of offsets of shuffled windows, which is the number of rounds until every offset was used once
        seed: seed of the shuffled order, shared by all clients; none takes the run's seed
        streams: give layers joined by a residual connection the same channels; otherwise each layer draws its own
        ties: width rule given by hand (see gossamer widths --toml); none derives it from the network
        fleet: devices of the clients: each gets the largest width that fits its memory; none uses capacities
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    order: Order = "rolling"
    offsets: int = 64
    seed: int | None = None
    streams: bool = True
    ties: Ties | None = None
    fleet: Fleet | None = None

    def __post_init__(self) -> None:
        check_capacities("WidthSlice", self.capacities)
        require(
            (self.order in ORDERS, wrong(self, "order", f"must be one of {', '.join(ORDERS)}")),
            (self.offsets >= 1, wrong(self, "offsets", "must be at least 1")),
            (
                not (self.drawn and self.fleet),
                f"WidthSlice: drawn capacities would ignore the fleet: use either drawn or fleet; {AIR}",
            ),
        )

    def bind(self, context: Context) -> "BoundWidthSlice":
        """Return the view with the network's width rule. Every capacity is tested on the network."""
        network = context.network
        widths: Widths = (
            network.widths(self.streams) if self.ties is None else Widths.stated(self.ties, network.outline())
        )
        require(
            (bool(widths.sizes), "WidthSlice: the network cannot be narrowed: the width rule finds no channels in it")
        )
        shares = self._shares(context, widths)
        for share in sorted(set(shares)):
            tried(network, widths, share)
        fields = {**vars(self), "capacities": shares}
        return BoundWidthSlice(**fields, widths=widths, at=context.shared_key(self.seed))

    def _shares(self, context: Context, widths: Widths) -> Shares:
        """Return the capacities as fractions. A memory size becomes the largest width that fits into it."""
        network, bind_solver = context.network, context.exchange.solver.bind
        return fitting(
            self.capacities,
            self.fleet,
            network.clients,
            lambda share: network.memory(tried(network, widths, share), bind_solver(context)),
        )


@dataclass(frozen=True)
class BoundWidthSlice(NestedView, WidthSlice):
    """``WidthSlice`` with the network's width rule and the random key of the shuffled order."""

    widths: Widths = field(kw_only=True)
    at: Key = field(kw_only=True)

    @property
    def nested(self) -> bool:
        """True for static order with fixed capacities: a narrower slice is contained in a wider one."""
        return self.order == "static" and not self.drawn

    @property
    def loose(self) -> bool:
        """Whether each layer draws its channels independently. Their order then matters, even at full width."""
        return self.order == "random" and not self.streams

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the client's channels of each group."""
        share = capacity(self.capacities, self.drawn, clock, key)
        start = offset_index(self.offsets, self.at, clock.round) if self.order == "shuffled" else 0
        channels = {
            group: self._chosen(group, size, held(size, share), start, clock.round, key)
            for group, size in self.widths.sizes
            if held(size, share) < size or self.loose
        }
        return self.widths.part(channels, tree.device(like))

    def purposes(self, client: int) -> Iterable[Purpose]:
        """Return the order of the offsets, which is that of all clients."""
        return [(WINDOWS,)] if self.order == "shuffled" and self.seed is None else ()

    def _chosen(self, group: str, size: int, count: int, start: int, round_: int, key: Key) -> Tensor:
        if self.order == "random":
            drawn = torch.from_numpy(permutation(fold(key, "channels", group), size)[:count])
            return drawn if self.loose else drawn.sort().values
        offset = {"static": 0, "rolling": -round_, "shuffled": start * size // self.offsets}[self.order]
        return ((torch.arange(count) + offset) % size).sort().values


def narrowed(widths: Widths, like: Params, share: float) -> Params:
    """Return copies of a network's tensors with their first channels only, at the given width."""
    first = {name: torch.arange(held(size, share)) for name, size in widths.sizes}
    return {name: tensor.clone() for name, tensor in widths.part(first, tree.device(like)).take(like).items()}


def tried(network: Network, widths: Widths, share: float) -> Params:
    """Return the narrowed tensors of a network. Raises ``ConfigError`` if the network fails with them."""
    found = narrowed(widths, network.outline(), share)
    try:
        network.check(found)
    except ConfigError as error:
        mistakes = (
            f"the network does not work with {share:g} of its channels: {m}; if its code contains a fixed width, "
            "read the width from a tensor's shape, or give a width rule without this layer"
            for m in error.mistakes
        )
        raise ConfigError(*mistakes) from error
    return found
