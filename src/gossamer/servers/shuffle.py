"""Every client has a model, and models go round: each visits all clients, in an order drawn anew each epoch (PERM).

At a host the loss of model i is multiplied by N times i's mixing weight for that host, so that over an epoch, in which
it meets everybody once, it descends the mixture of losses that its client should learn from. A round is a row of a
Latin square: every host trains one model, and every model is at one host.

Who is absent, or whose message is lost, is met later: each host takes the first model in its order that it has not met
in this epoch and that nobody else has in this round, and the epoch ends when all have met. A pair without weight has
nothing to train: it counts as met, and nothing is sent. Where clients are compared once, those who were not yet wait:
their models stay at home, no other visits them, and an epoch ends without them.

What the server holds besides the global model:

    origin    the global model when models first went round, which is what each of them starts as
    met       which model (row) has met which host (column) in this epoch
    epoch     how many epochs are over
    mixing    the weights, from :class:`gossamer.servers.Compare`; until there are some, all count alike
    ready     from there too: who was compared, where each is once
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer import mixing, tree
from gossamer.clients import Clients
from gossamer.errors import ConfigError, PayloadError, require
from gossamer.random import Key, fold, permutation
from gossamer.servers.base import Arrival, Crowd, OneModel, Place
from gossamer.servers.mean import Mean
from gossamer.types import Clock, Params, State

SLACK = 1e-9
"""A product a hair above the bound was not capped."""


@dataclass
class Round:
    """What happened to models in a round: where they were, and those that moved."""

    places: Mapping[int, Place]
    hosts: list[int] = field(default_factory=list)
    models: Clients = field(default_factory=Clients)


@dataclass(frozen=True)
class WarmUp(Mean):
    """Averages what arrives, in the first rounds alone.

    weights: what a client counts for: its samples, its batches, or one each (uniform)
    over: cohort divides by all who arrived, holders divides each entry by those who hold it
    radius: the largest norm of the model, which is projected onto that ball after each round; none is no ball
    step: how far the model moves towards the mean: 1 all the way, less a share of it, more beyond
    rounds: how many rounds
    """

    rounds: int = 0

    def due(self, state: State, clock: Clock) -> bool:
        """In the first rounds."""
        return clock.round < self.rounds


@dataclass(frozen=True)
class Shuffle(OneModel):
    """Sends each client's model round all clients.

    warmup: rounds before models go round, in which each is the global model
    largest: the largest number that a loss is multiplied by; none is no bound
    radius: the largest norm of a model, which is projected onto that ball after each epoch; none is no ball
    """

    warmup: int = 0
    largest: float | None = None
    radius: float | None = None
    clients: int = field(default=0, repr=False)
    own: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            (self.warmup >= 0, f"Shuffle.warmup must not be negative, got {self.warmup}"),
            (self.largest is None or self.largest > 0, f"Shuffle.largest must be positive, got {self.largest}"),
            (self.radius is None or self.radius > 0, f"Shuffle.radius must be positive, got {self.radius}"),
        )

    def fit(self, crowd: Crowd) -> "Shuffle":
        """With the number of clients."""
        return replace(self, clients=crowd.clients)

    def weigh(self, samples: int, batches: int) -> float:
        """Nothing is averaged: every visit counts alike."""
        return 1.0

    def due(self, state: State, clock: Clock) -> bool:
        """After the warm-up."""
        return clock.round >= self.warmup

    def places(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> dict[int, Place]:
        """Which models the hosts that are present train."""
        if not self.clients:
            raise ConfigError("Shuffle does not know how many clients there are yet: Method.fit tells it")
        met, epoch = self._met(state)
        order = permutation(fold(key, "shuffle", epoch), self.clients)
        found = mixing.visits(met | self._waiting(state), order, cohort)
        weights = mixing.looked_up(state.get("mixing", {}), list(found.values()), list(found), self.clients)
        return {
            host: self._place(slot, self.clients * weight)
            for (host, slot), weight in zip(found.items(), weights.tolist(), strict=True)
        }

    def _met(self, state: State) -> tuple[Tensor, int]:
        met: Tensor = state.get("met", torch.zeros(self.clients, self.clients, dtype=torch.bool))
        return met.cpu(), int(state.get("epoch", 0))

    def _waiting(self, state: State) -> Tensor:
        """Which pairs cannot meet yet: one of them was not compared."""
        ready: Tensor = state.get("ready", torch.ones(self.clients, dtype=torch.bool)).cpu()
        return ~(ready[:, None] & ready)

    def _place(self, slot: int, scale: float) -> Place:
        largest = self.largest or math.inf
        return Place(slot, min(scale, largest), scale > (1 + SLACK) * largest)

    def empty(self, state: State, places: Mapping[int, Place] | None = None) -> Round:
        """Nothing has moved."""
        return Round(places or {})

    def fold(self, acc: Round, arrival: Arrival) -> Round:
        """Move the model that was at this host."""
        change = arrival.change(tree.device(arrival.model))
        if arrival.part.whole:
            moved = tree.add(arrival.model, change)
        else:
            moved = tree.clone(arrival.model)
            arrival.part.add(moved, change, 1.0)
        if not tree.finite(moved):
            raise PayloadError("with it the visiting model would not be finite: use a smaller --lr, or --bound")
        acc.models.put(acc.places[arrival.client].slot, {"params": moved})
        acc.hosts.append(arrival.client)
        return acc

    def finish(self, state: State, acc: Round, clock: Clock) -> State:
        """Note who has met; models that were everywhere are projected, and when all were, the next epoch begins."""
        met, epoch = self._met(state)
        met, moved = met.clone(), set(acc.hosts)
        pairs = [(place.slot, host) for host, place in acc.places.items() if not place.scale or host in moved]
        slots, hosts = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
        met[slots, hosts] = True
        done = met | self._waiting(state)
        if self.radius is not None:
            self._project(acc, done)
        over = bool(acc.places) and bool(done.all())
        device = tree.device(self.model(state))
        return {
            **state,
            "origin": state.get("origin", self.model(state)),
            "met": (torch.zeros_like(met) if over else met).to(device),
            "epoch": torch.tensor(epoch + over, device=device),
        }

    def _project(self, acc: Round, done: Tensor) -> None:
        ball = Mean(radius=self.radius)
        for slot in acc.models.known():
            if bool(done[slot].all()):
                acc.models.put(slot, {"params": ball.projected(acc.models.get(slot)["params"])})

    def moved(self, acc: Round) -> Iterator[tuple[int, Params]]:
        """The models that were trained."""
        for slot in acc.models.known():
            yield slot, acc.models.get(slot)["params"]

    def notes(self, state: State, acc: Round) -> dict[str, Any]:
        """How many models were trained, how many had nothing to train, and how many losses were capped."""
        places = acc.places.values()
        skipped, capped = sum(not place.scale for place in places), sum(place.capped for place in places)
        found = {"trained": len(acc.hosts), "skipped": skipped, "capped": capped, "epoch": int(state["epoch"])}
        return {"visits": found}
