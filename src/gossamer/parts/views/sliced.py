"""Sub-models that are smaller networks: a client holds some channels of every layer, or some ranks of every adapter.

**WidthSlice.** The network's width rule (``gossamer.tasks.widths``) defines which tensor dimensions are channels and
which of them are tied. It is derived from the network at the start of a run, or given by hand. A client holds
ceil(capacity n) of the n channels of a group. The choice of channels depends on ``order``:

    static     the first channels in every round (HeteroFL, https://arxiv.org/abs/2010.01264)
    rolling    consecutive channels that move back by one channel per round (FedRolex, https://arxiv.org/abs/2212.01548)
    shuffled   consecutive channels from one of ``offsets`` starts; each epoch visits all of them in random order, and
               all clients of a round share the offset (Deng et al., Algorithm 2, https://arxiv.org/abs/2511.06132)
    random     drawn anew for each client, round and group (Deng et al., Algorithm 1)

**RankSlice.** The two matrices of an adapted layer (``gossamer.parts.adapters.lora``) are A, rank x inputs, and B,
outputs x rank. A client with capacity c holds the first ceil(c rank) rows of A and columns of B, and all other tensors
whole. So the adapter of a client with a smaller rank is a truncation of that of one with a larger rank. The factor
alpha / rank of the product is that of the full rank, for every client.

With ``down="part"``, a client downloads only what it holds. With ``down="whole"``, all clients receive the same bytes,
with the whole model, and take their part of it. Stacking needs this (``gossamer.parts.servers.low_rank``), because the
next model follows from the adapters of all clients.

Adapters of the package peft are sliced too: their tensors are called ``lora_A.default.weight``, for example.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context, Network
from gossamer.core.random import Key, Purpose, fold, permutation
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import View
from gossamer.fleet.capacity import SHARES, Capacities, capacity, check_capacities, held
from gossamer.fleet.fleet import AIR, Fleet, fitting
from gossamer.parts.adapters.lora import rank_dimension
from gossamer.parts.views.entries import WINDOWS, offset_index
from gossamer.tasks.widths import Ties, Widths

Order = Literal["static", "rolling", "shuffled", "random"]
ORDERS = ("static", "rolling", "shuffled", "random")

Ranks = tuple[tuple[str, int, int], ...]
"""Name, dimension and rank of each tensor that is sliced."""


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
        widths: the width rule
        at: the key of the shuffled order
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    order: Order = "rolling"
    offsets: int = 64
    seed: int | None = None
    streams: bool = True
    ties: Ties | None = None
    fleet: Fleet | None = None
    widths: Widths = field(default=Widths((), ()), init=False, repr=False, compare=False)
    at: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)

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

    def bind(self, context: Context) -> Self:
        """Return the view with the network's width rule. Every capacity is tested on the network."""
        network = context.network
        widths: Widths = (
            network.widths(self.streams) if self.ties is None else Widths.stated(self.ties, network.outline())
        )
        require(
            (bool(widths.sizes), "WidthSlice: the network cannot be narrowed: the width rule finds no channels in it")
        )

        def needs(share: float) -> int:
            return network.memory(tried(network, widths, share), context.exchange.solver.bind(context))

        # A memory size becomes the largest width that fits into it.
        shares = fitting(self.capacities, self.fleet, network.clients, needs)
        for share in sorted(set(shares)):
            tried(network, widths, share)
        return self.filled(capacities=shares, widths=widths, at=context.shared_key(self.seed))

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


@dataclass(frozen=True)
class RankSlice(View):
    """The first ranks of every low-rank adapter.

    Args:
        capacities: fraction of the rank, or memory (8MB), per client; client c takes value c modulo n
        drawn: draw the capacity of each client at random in every round
        down: what a client receives: its own part, or the whole model, which is the same for all clients
        fleet: devices of the clients: each gets the largest rank that fits its memory; none uses capacities
        ranks: the ranks of the network's adapters
    """

    predictable: ClassVar[bool] = True

    capacities: Capacities = SHARES
    drawn: bool = False
    down: Literal["part", "whole"] = "part"
    fleet: Fleet | None = None
    ranks: Ranks = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_capacities("RankSlice", self.capacities)
        require(
            (self.down in ("part", "whole"), wrong(self, "down", "must be part or whole")),
            (
                not (self.drawn and self.fleet),
                f"RankSlice: drawn capacities would ignore the fleet: use either drawn or fleet; {AIR}",
            ),
        )

    def bind(self, context: Context) -> Self:
        """Return the view with the ranks of the network's adapters. Every capacity is tested on the network."""
        network, outline = context.network, context.network.outline()
        dims = {name: rank_dimension(name) for name, tensor in outline.items() if tensor.dim() >= 2}
        ranks = tuple((name, dim, outline[name].shape[dim]) for name, dim in dims.items() if dim is not None)
        require(
            (bool(ranks), "RankSlice: the network has no low-rank adapters: adapt it, LoRA(rank=8) or --adapter lora:8")
        )

        def needs(share: float) -> int:
            return network.memory(truncated(network, ranks, share), context.exchange.solver.bind(context))

        shares = fitting(self.capacities, self.fleet, network.clients, needs)
        for share in sorted(set(shares)):
            truncated(network, ranks, share)
        return self.filled(capacities=shares, ranks=ranks)

    @property
    def common(self) -> bool:
        """Whether all clients receive the whole model."""
        return self.down == "whole"

    @property
    def nested(self) -> bool:
        """True for fixed capacities: a smaller rank is contained in a larger one."""
        return not self.drawn

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the client's part, or the whole model."""
        return Part() if self.down == "whole" else self.part(like, clock, key, memory)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the client's first ranks of each adapter."""
        return _first(self.ranks, capacity(self.capacities, self.drawn, clock, key), tree.device(like))


def _first(ranks: Ranks, share: float, device: torch.device) -> Part:
    """Return the part with the first ranks of each adapter."""
    counts = {name: (dim, held(rank, share)) for name, dim, rank in ranks if held(rank, share) < rank}
    kept = {name: torch.arange(count, device=device) for name, (_, count) in counts.items()}
    return Part(index={name: (*[None] * dim, kept[name]) for name, (dim, _) in counts.items()})


def truncated(network: Network, ranks: Ranks, share: float) -> Params:
    """Return the tensors of a client. Raises ``ConfigError`` if the network fails with them."""
    outline = network.outline()
    found = {name: tensor.clone() for name, tensor in _first(ranks, share, tree.device(outline)).take(outline).items()}
    try:
        network.check(found)
    except ConfigError as error:
        problem = f"the network does not work with {share:g} of the rank of its adapters"
        raise ConfigError(*(f"{problem}: {mistake}" for mistake in error.mistakes)) from error
    return found
