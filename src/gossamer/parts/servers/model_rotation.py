"""Model rotation: each client owns a model, and all clients train every model in turn (PERM).

Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761.

In an epoch each model is trained by each client (its host) once, in a shuffled order. A round is a row of a Latin
square: every host trains one model, and every model has one host. The loss of model i at a host is multiplied by N
times the mixing weight of i for that host. Over an epoch the model descends the mixture of losses of its owner.

A pair that fails, because the host is absent or its upload is lost, meets in a later round. Each host trains the first
model in its order that it has not met in this epoch and that no other host has in this round. The epoch ends when all
pairs have met. A pair with weight 0 counts as met, and nothing is sent. If clients are compared once, clients without a
comparison wait: their models are not trained, they host no models, and the epoch ends without them.

Server state in addition to the global model:

    origin    the global model at the start of the rotation, which initializes all models
    met       which model (row) has met which host (column) in this epoch
    epoch     the number of completed epochs
    mixing    the mixing weights of ``GradientSimilarity``; uniform before the first comparison
    ready     which clients were compared, from ``GradientSimilarity`` with ``once``
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
"""Relative tolerance when capped losses are counted."""


@dataclass
class Round:
    """Accumulator of a round: assignments, number of capped losses, and updated models.

    ``moved`` maps each host to the owner of the model that it updated.
    """

    assigned: Mapping[int, Assignment]
    capped: int
    moved: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmUp(Mean):
    """Weighted mean of client updates in the first rounds only.

    Args:
        rounds: number of warm-up rounds
    """

    rounds: int = 0

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Assign the global model to the cohort in the first rounds, and skip the exchange afterwards."""
        return super().assign(state, cohort, clock, key) if clock.round < self.rounds else None


@dataclass(frozen=True)
class ModelRotation(Server):
    """Rotation of one model per client over all clients.

    Args:
        warmup: rounds before the rotation starts; until then all clients use the global model
        largest: maximum factor of a loss; none disables the cap
        radius: maximum norm of a model, enforced by projection after each epoch; none disables it
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
        """Return the server with the number of clients and the store of their models.

        Raises ``ConfigError`` for parts that do not work with the models of other clients.
        """
        exchange = context.exchange
        view, layout = exchange.view, Layout.of(context.network.outline())
        require(
            (
                isinstance(view, NestedView) and view.nested,
                "ModelRotation needs nested views, as clients train each other's models: use Full() or "
                "WidthSlice(order='static')",
            ),
            (
                not memory_of(exchange.codec).init(layout),
                "ModelRotation needs a codec without client state, as clients train each other's models, "
                f"got {exchange.codec}",
            ),
            (
                exchange.send == "change",
                f"ModelRotation needs send='change', got {exchange.send!r}",
            ),
            (exchange.labels == "all", f"ModelRotation needs labels='all', got {exchange.labels!r}"),
        )
        return BoundModelRotation(**vars(self), clients=context.clients, models=context.models)


@dataclass(frozen=True)
class BoundModelRotation(ModelPerClient, MeasuredServer, ModelRotation):
    """``ModelRotation`` with the number of clients and the store of their models."""

    clients: int = field(kw_only=True)
    models: ClientStore = field(kw_only=True, repr=False, compare=False)

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Assign a model to each host of the cohort. Skip the exchange during the warm-up."""
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
        """Return the factor of the loss at each host, before the cap."""
        mixed = state.get("mixing", {})
        weights = mixing.looked_up(mixed, list(owners.values()), list(owners), self.clients)
        return {host: self.clients * weight for host, weight in zip(owners, weights.tolist(), strict=True)}

    def home(self, client: int) -> Assignment:
        """Return the assignment of a client's own model."""
        return Assignment(client)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the model of the assignment's owner, or the initial model if it was never updated."""
        if assignment.owner is None:
            return Download((state["params"],))
        first: Params = state["origin" if "origin" in state else "params"]
        return Download((self.models.get(assignment.owner).get("params") or first,))

    def _met(self, state: State) -> tuple[Tensor, int]:
        met: Tensor = state.get("met", torch.zeros(self.clients, self.clients, dtype=torch.bool))
        return met.cpu(), int(state.get("epoch", 0))

    def _waiting(self, state: State) -> Tensor:
        """Return the pairs that cannot meet yet, because one of the two clients was not compared."""
        ready: Tensor = state.get("ready", torch.ones(self.clients, dtype=torch.bool)).cpu()
        return ~(ready[:, None] & ready)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Round:
        """Return an accumulator without updated models."""
        owners = {host: to.owner for host, to in assigned.items() if to.owner is not None}
        most = (1 + SLACK) * (self.largest or math.inf)
        return Round(assigned, sum(scale > most for scale in self._scales(state, owners).values()))

    def fold(self, acc: Round, arrival: Arrival) -> Round:
        """Update the model that this host trained."""
        change = arrival.change(tree.device(arrival.model))
        if arrival.part.whole:
            moved = tree.add(arrival.model, change)
        else:
            moved = tree.clone(arrival.model)
            arrival.part.add(moved, change, 1.0)
        if not tree.finite(moved):
            raise PayloadError("the updated model would not be finite: use a smaller --lr or --bound")
        assert arrival.owner is not None
        self.models.stage(arrival.owner, {"params": moved})
        acc.moved[arrival.client] = arrival.owner
        return acc

    def finish(self, state: State, acc: Round, clock: Clock) -> State:
        """Record the pairs that met, project models that finished the epoch, and start a new epoch if all finished."""
        met, epoch = self._met(state)
        met = met.clone()
        pairs = [(to.owner, host) for host, to in acc.assigned.items() if not to.loss_scale or host in acc.moved]
        owners, hosts = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
        met[owners, hosts] = True
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
        """Return the numbers of models trained, pairs skipped and losses capped, and the epoch."""
        skipped = sum(not to.loss_scale for to in acc.assigned.values())
        found = {"trained": len(acc.moved), "skipped": skipped, "capped": acc.capped, "epoch": int(state["epoch"])}
        return {"visits": found}
