"""Rank slices: a client holds the first ranks of every low-rank adapter, by its capacity.

The two matrices of an adapted layer (``gossamer.parts.adapters.lora``) are A, rank x inputs, and B, outputs x rank. A
client with capacity c holds the first ceil(c rank) rows of A and columns of B, and all other tensors whole. So the
adapter of a client with a smaller rank is a truncation of that of one with a larger rank. The factor alpha / rank of
the product is that of the full rank, for every client.

With ``down="part"``, a client downloads only what it holds. With ``down="whole"``, all clients receive the same bytes,
with the whole model, and take their part of it. Stacking needs this (``gossamer.parts.servers.stacking``), because the
next model follows from the adapters of all clients.

Adapters of the package peft are sliced too: their tensors are called ``lora_A.default.weight``, for example.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context, Network
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import NestedView, View
from gossamer.fleet.capacity import SHARES, Capacities, capacity, check_capacities, held
from gossamer.fleet.fleet import AIR, Fleet, fitting
from gossamer.parts.adapters.lora import rank_dimension

Ranks = tuple[tuple[str, int, int], ...]
"""Name, dimension and rank of each tensor that is sliced."""


@dataclass(frozen=True)
class RankSlice(View):
    """The first ranks of every low-rank adapter.

    Args:
        capacities: fraction of the rank, or memory (8MB), per client; client c takes value c modulo n
        drawn: draw the capacity of each client at random in every round
        down: what a client receives: its own part, or the whole model, which is the same for all clients
        fleet: devices of the clients: each gets the largest rank that fits its memory; none uses capacities
    """

    capacities: Capacities = SHARES
    drawn: bool = False
    down: Literal["part", "whole"] = "part"
    fleet: Fleet | None = None

    def __post_init__(self) -> None:
        check_capacities("RankSlice", self.capacities)
        require(
            (self.down in ("part", "whole"), wrong(self, "down", "must be part or whole")),
            (
                not (self.drawn and self.fleet),
                f"RankSlice: drawn capacities would ignore the fleet: use either drawn or fleet; {AIR}",
            ),
        )

    def bind(self, context: Context) -> "BoundRankSlice":
        """Return the view with the ranks of the network's adapters. Every capacity is tested on the network."""
        network, bind_solver = context.network, context.exchange.solver.bind
        ranks = _ranks(network.outline())
        require(
            (bool(ranks), "RankSlice: the network has no low-rank adapters: adapt it, LoRA(rank=8) or --adapter lora:8")
        )
        shares = fitting(
            self.capacities,
            self.fleet,
            network.clients,
            lambda share: network.memory(tried(network, ranks, share), bind_solver(context)),
        )
        for share in sorted(set(shares)):
            tried(network, ranks, share)
        kind = BoundRankSlice if self.down == "part" else BoundSharedRankSlice
        return kind(**{**vars(self), "capacities": shares}, ranks=ranks)


@dataclass(frozen=True)
class BoundRankSlice(NestedView, RankSlice):
    """``RankSlice`` with the ranks of the network's adapters."""

    predictable: ClassVar[bool] = True

    ranks: Ranks = field(kw_only=True)

    @property
    def nested(self) -> bool:
        """True for fixed capacities: a smaller rank is contained in a larger one."""
        return not self.drawn

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the client's first ranks of each adapter."""
        return _first(self.ranks, capacity(self.capacities, self.drawn, clock, key), tree.device(like))


@dataclass(frozen=True)
class BoundSharedRankSlice(BoundRankSlice):
    """A bound ``RankSlice`` whose clients all receive the whole model."""

    common: ClassVar[bool] = True

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the whole model."""
        return Part()


def _ranks(outline: Params) -> Ranks:
    """Return the tensors of low-rank adapters among those that are sent."""
    found = {name: rank_dimension(name) for name, tensor in outline.items() if tensor.dim() >= 2}
    return tuple((name, dim, outline[name].shape[dim]) for name, dim in found.items() if dim is not None)


def _first(ranks: Ranks, share: float, device: torch.device) -> Part:
    """Return the part with the first ranks of each adapter."""
    counts = {name: (dim, held(rank, share)) for name, dim, rank in ranks if held(rank, share) < rank}
    kept = {name: torch.arange(count, device=device) for name, (_, count) in counts.items()}
    return Part(index={name: (*[None] * dim, kept[name]) for name, (dim, _) in counts.items()})


def tried(network: Network, ranks: Ranks, share: float) -> Params:
    """Return the tensors of a client. Raises ``ConfigError`` if the network fails with them."""
    outline = network.outline()
    found = {name: tensor.clone() for name, tensor in _first(ranks, share, tree.device(outline)).take(outline).items()}
    try:
        network.check(found)
    except ConfigError as error:
        problem = f"the network does not work with {share:g} of the rank of its adapters"
        raise ConfigError(*(f"{problem}: {mistake}" for mistake in error.mistakes)) from error
    return found
