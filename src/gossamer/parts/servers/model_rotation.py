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
    mixing    the weights, from ``gossamer.parts.servers.GradientSimilarity``; until there are some, all count
    alike ready     from there too: who was compared, where each is once
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import memory_of
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, Download
from gossamer.core.random import Key, fold, permutation
from gossamer.core.server import MeasuredServer, ModelPerClient, Server
from gossamer.core.store import ClientStore
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.core.view import NestedView
from gossamer.parts.servers import mixing
from gossamer.parts.servers.mean import Mean

SLACK = 1e-9
"""A product a hair above the bound was not capped."""


@dataclass
class Round:
    """What happened to models in a round: where they were, how many losses were capped, and whose models moved where.

    ``moved`` has the owner of each model that moved, by its host.
    """

    assigned: Mapping[int, Assignment]
    capped: int
    moved: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmUp(Mean):
    """Averages what arrives, in the first rounds alone.

    Args:
        rounds: how many rounds
    """

    rounds: int = 0

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """All, in the first rounds."""
        return super().assign(state, cohort, clock, key) if clock.round < self.rounds else None


@dataclass(frozen=True)
class ModelRotation(Server):
    """Sends each client's model round all clients.

    Args:
        warmup: rounds before models go round, in which each is the global model
        largest: the largest number that a loss is multiplied by; none is no bound
        radius: the largest norm of a model, which is projected onto that ball after each epoch; none is no ball
    """

    warmup: int = 0
    largest: float | None = None
    radius: float | None = None

    def __post_init__(self) -> None:
        require(
            (self.warmup >= 0, wrong(self, "warmup", "must not be negative")),
            (self.largest is None or self.largest > 0, wrong(self, "largest", "must be positive")),
            (self.radius is None or self.radius > 0, wrong(self, "radius", "must be positive")),
        )

    def bind(self, context: Context) -> "BoundModelRotation":
        """With the number of clients, and where their models are; refuses what makes no sense with others' models."""
        exchange = context.exchange
        view, layout = exchange.view, Layout.of(context.network.outline())
        require(
            (
                isinstance(view, NestedView) and view.nested,
                "models that go from client to client must fit into each other: use Full() or static Channels",
            ),
            (
                not memory_of(exchange.codec).init(layout),
                f"{exchange.codec} remembers what it held back of another client's model",
            ),
            (
                exchange.send == "change",
                f"models that go from client to client need send='change', got {exchange.send!r}",
            ),
            (exchange.labels == "all", "models that go from client to client need labels='all'"),
        )
        return BoundModelRotation(**vars(self), clients=context.clients, models=context.models)


@dataclass(frozen=True)
class BoundModelRotation(ModelPerClient, MeasuredServer, ModelRotation):
    """The same with the number of clients, and the store that has their models once these have moved."""

    clients: int = field(kw_only=True)
    models: ClientStore = field(kw_only=True, repr=False, compare=False)

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Which models the hosts that are present train, after the warm-up."""
        if clock.round < self.warmup:
            return None
        met, epoch = self._met(state)
        order = permutation(fold(key, "shuffle", epoch), self.clients)
        found = mixing.visits(met | self._waiting(state), order, cohort)
        largest = self.largest or math.inf
        return {
            host: Assignment(found[host], min(scale, largest)) for host, scale in self._scales(state, found).items()
        }

    def _scales(self, state: State, owners: Mapping[int, int]) -> dict[int, float]:
        """What the loss at each host would be multiplied by, if there were no bound."""
        mixed = state.get("mixing", {})
        weights = mixing.looked_up(mixed, list(owners.values()), list(owners), self.clients)
        return {host: self.clients * weight for host, weight in zip(owners, weights.tolist(), strict=True)}

    def home(self, client: int) -> Assignment:
        """The client's own model."""
        return Assignment(client)

    def download(self, state: State, assignment: Assignment) -> Download:
        """The model of its owner; until it has moved, the one that all started with."""
        if assignment.owner is None:
            return Download((state["params"],))
        first: Params = state["origin" if "origin" in state else "params"]
        return Download((self.models.get(assignment.owner).get("params") or first,))

    def _met(self, state: State) -> tuple[Tensor, int]:
        met: Tensor = state.get("met", torch.zeros(self.clients, self.clients, dtype=torch.bool))
        return met.cpu(), int(state.get("epoch", 0))

    def _waiting(self, state: State) -> Tensor:
        """Which pairs cannot meet yet: one of them was not compared."""
        ready: Tensor = state.get("ready", torch.ones(self.clients, dtype=torch.bool)).cpu()
        return ~(ready[:, None] & ready)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Round:
        """Nothing has moved."""
        owners = {host: place.owner for host, place in assigned.items() if place.owner is not None}
        most = (1 + SLACK) * (self.largest or math.inf)
        return Round(assigned, sum(scale > most for scale in self._scales(state, owners).values()))

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
        assert arrival.owner is not None
        self.models.stage(arrival.owner, {"params": moved})
        acc.moved[arrival.client] = arrival.owner
        return acc

    def finish(self, state: State, acc: Round, clock: Clock) -> State:
        """Note who has met; models that were everywhere are projected, and when all were, the next epoch begins."""
        met, epoch = self._met(state)
        met = met.clone()
        pairs = [(to.owner, host) for host, to in acc.assigned.items() if not to.loss_scale or host in acc.moved]
        slots, hosts = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
        met[slots, hosts] = True
        done = met | self._waiting(state)
        if self.radius is not None:
            self._project(acc, done)
        over = bool(acc.assigned) and bool(done.all())
        device = tree.device(state["params"])
        return {
            **state,
            "origin": state.get("origin", state["params"]),
            "met": (torch.zeros_like(met) if over else met).to(device),
            "epoch": torch.tensor(epoch + over, device=device),
        }

    def _project(self, acc: Round, done: Tensor) -> None:
        ball = Mean(radius=self.radius)
        for owner in acc.moved.values():
            if bool(done[owner].all()):
                self.models.stage(owner, {"params": ball.projected(self.models.staged(owner)["params"])})

    def measure(self, state: State, acc: Round) -> dict[str, Any]:
        """How many models were trained, how many had nothing to train, and how many losses were capped."""
        skipped = sum(not to.loss_scale for to in acc.assigned.values())
        found = {"trained": len(acc.moved), "skipped": skipped, "capped": acc.capped, "epoch": int(state["epoch"])}
        return {"visits": found}
