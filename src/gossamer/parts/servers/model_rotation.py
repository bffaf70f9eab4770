"""Model rotation: each client owns a model, and other clients train it in turn (PERM).

Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761.

In an epoch each model is trained by each client (its host) for which it has a positive mixing weight, in random order.
``gossamer.parts.servers.mixing.schedule`` draws the schedule: as few rounds as possible, and in each round at most one
model per host and one host per model. Let L be the largest number of hosts of a model, or of models of a host. The loss
of model i at a host is multiplied by L times the mixing weight of i for that host. Over an epoch the model descends the
mixture of losses of its owner. If all weights are positive, L is the number of clients N, as in the paper. Otherwise
the paper has N rounds per epoch and the factor N: the same progress per round.

A factor above ``largest`` is divided among several visits of the pair in the same epoch, so that weights are honoured.
Weights may change within an epoch. A visit uses the current weight. A visit whose weight became 0 is skipped, and
nothing is sent. A factor that grew beyond ``largest`` since the schedule was drawn is capped. A pair that gained
a weight waits for the next epoch.

With weights between clusters of clients, the hosts of an epoch are drawn by the weights at its start instead, and all
visits have the same factor: L divided by the number of visits of the model.

A visit that fails, because the host is absent or its upload is lost, is repeated in a later round. The epoch ends when
all visits are done. If clients stay away, it ends at the latest when a client was called, on average, ``PATIENCE``
times as often as the epoch has rounds. Clients that were not compared yet wait: their models are not trained, and they
host no models. When clients are compared for the first time, their pairs are added to the current epoch; with clusters,
hosts are drawn again, and a new epoch begins.

Server state in addition to the global model:

    origin             the global model at the start of the rotation, which initializes all models
    epoch              the number of completed epochs
    rotation           the current epoch; absent between epochs
      .table           the schedule: the model that a host trains in a round, or -1, [clients, rounds]
      .done            which of these visits are done
      .length          L
      .known           the number of clients that were compared when the schedule was drawn
      .rounds, .calls  the rounds of the epoch so far, and the sum of their cohort sizes
    mixing             the mixing weights of ``GradientSimilarity``; uniform before the first comparison
    compared.samples   from the same server: 0 for clients that were not compared yet
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from gossamer.core import tree
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context, Download
from gossamer.core.random import Key, fold
from gossamer.core.server import Server
from gossamer.core.store import ClientStore
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers import mixing
from gossamer.parts.servers.mean import Mean, Sum, WeightedMean

SLACK = 1e-9
"""Relative tolerance when capped losses are counted."""


PATIENCE = 3
"""An epoch ends at the latest when a client was called this number of times, on average, for each of its rounds."""

IDLE = Assignment(loss_scale=0.0)
"""The assignment of a host without a model."""


class Epoch(NamedTuple):
    """The current epoch: the entry ``rotation`` of the state."""

    table: mixing.Table
    done: mixing.Flags
    length: int
    known: int
    rounds: int = 0
    calls: int = 0

    @classmethod
    def of(cls, state: State) -> Self:
        """Return the epoch from tensors."""
        whole = {name: int(state[name]) for name in ("length", "known", "rounds", "calls")}
        return cls(state["table"].cpu().numpy(), state["done"].cpu().numpy(), **whole)

    def tensors(self, device: torch.device) -> State:
        """Return the epoch as tensors."""
        found = {name: torch.from_numpy(value) for name, value in (("table", self.table), ("done", self.done))}
        whole = {name: torch.tensor(getattr(self, name)) for name in ("length", "known", "rounds", "calls")}
        return tree.move({**found, **whole}, str(device))

    def after(self, visits: Mapping[int, int], calls: int) -> "Epoch":
        """Return the epoch after a round. ``visits`` maps hosts to the models of visits that are done."""
        done = self.done.copy()
        for host, model in visits.items():
            done[host, mixing.slot(self.table, self.done, self.rounds, host, model)] = True
        return self._replace(done=done, rounds=self.rounds + 1, calls=self.calls + calls)

    @property
    def over(self) -> bool:
        """Whether all visits are done, or too many clients stayed away."""
        clients, rounds = self.table.shape
        return not (self.pending.any() and self.calls < PATIENCE * clients * rounds)

    @property
    def pending(self) -> mixing.Indices:
        """The number of pending visits of each model."""
        return mixing.pending(self.table, self.done, len(self.table))

    def times(self, host: int, model: int) -> int:
        """Return the number of visits of a model to a host."""
        return int((self.table[host] == model).sum())


@dataclass
class Round:
    """Accumulator of a round: the epoch, assignments, number of capped losses, and updated models.

    ``moved`` maps each host to the owner of the model that it updated.
    """

    epoch: Epoch
    assigned: Mapping[int, Assignment]
    capped: int
    moved: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmUp(WeightedMean):
    """Weighted mean of client updates in the first rounds only.

    Args:
        rounds: number of warm-up rounds
    """

    rounds: int = 0

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Assign the global model to the cohort in the first rounds, and skip the exchange afterwards."""
        return dict.fromkeys(cohort, GLOBAL) if clock.round < self.rounds else None

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Add the mean update, multiplied by the server learning rate, to the model."""
        return self.moved(state, acc)


@dataclass(frozen=True)
class ModelRotation(Server):
    """Rotation of one model per client over all clients.

    Args:
        warmup: rounds before the rotation starts; until then all clients use the global model
        largest: maximum factor of a loss; a larger one is divided among several visits; none disables it
        radius: maximum norm of a model, enforced by projection after each epoch; none disables it
        clients: the number of clients
        models: the store of their models
        key: the run's key
    """

    warmup: int = 0
    largest: float | None = None
    radius: float | None = None
    clients: int = field(default=0, init=False, repr=False, compare=False)
    models: ClientStore = field(default_factory=ClientStore, init=False, repr=False, compare=False)
    key: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            (self.warmup >= 0, wrong(self, "warmup", "must not be negative")),
            (self.largest is None or self.largest > 0, wrong(self, "largest", "must be positive")),
            (self.radius is None or self.radius > 0, wrong(self, "radius", "must be positive")),
        )

    def bind(self, context: Context) -> Self:
        """Return the server with the number of clients and the store of their models.

        Raises ``ConfigError`` for parts that do not work with the models of other clients.
        """
        exchange = context.exchange
        layout = Layout.of(context.network.outline())
        require(
            (
                exchange.view.nested,
                "ModelRotation needs nested views, as clients train each other's models: use Full() or "
                "WidthSlice(order='static')",
            ),
            (
                not exchange.codec.init(layout),
                "ModelRotation needs a codec without client state, as clients train each other's models, "
                f"got {exchange.codec}",
            ),
            (
                exchange.send == "change",
                f"ModelRotation needs send='change', got {exchange.send!r}",
            ),
            (exchange.labels == "all", f"ModelRotation needs labels='all', got {exchange.labels!r}"),
        )
        return self.filled(clients=context.clients, models=context.models, key=context.network.key)

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Assign a model to each host of the cohort; some may be idle. Skip the exchange during the warm-up."""
        if clock.round < self.warmup:
            return None
        epoch = self._epoch(state)
        found = mixing.visits(epoch.table, epoch.done, epoch.rounds, cohort)
        most, scales = self.largest or math.inf, self._scales(state, epoch, found)
        return {host: Assignment(found[host], min(scales[host], most)) if host in found else IDLE for host in cohort}

    def _epoch(self, state: State) -> Epoch:
        """Return the current epoch. Draw a schedule if a new one begins, or if more clients were compared."""
        known = self._known(state)
        before = Epoch.of(state["rotation"]) if "rotation" in state else None
        if before is not None and before.known == known.sum():
            return before
        key = fold(self.key, "shuffle", int(state.get("epoch", 0)))
        mixed = state.get("mixing", {})
        pairs, weights = mixing.support(mixed, known, key)
        table = mixing.draw(pairs.repeated(self._parts(pairs.most, weights)), self.clients, key)
        if before is None or mixing.sampled(mixed):
            return Epoch(table, np.zeros_like(table, dtype=np.bool_), pairs.most, int(known.sum()))
        done = mixing.carried(table, before.table, before.done)
        return before._replace(table=table, done=done, length=pairs.most, known=int(known.sum()))

    def _parts(self, length: int, weights: mixing.Weights) -> mixing.Indices:
        """Return the number of visits among which the factor of each pair is divided."""
        parts = length * weights
        parts /= self.largest or math.inf
        parts -= SLACK
        return np.ceil(parts, out=parts).clip(min=1, out=parts).astype(np.int32)

    def _known(self, state: State) -> mixing.Flags:
        """Return which clients were compared; all of them if clients are not compared at all."""
        if "compared" not in state:
            return np.full(self.clients, "ready" not in state)
        found: mixing.Flags = (state["compared"]["samples"] > 0).cpu().numpy()
        return found

    def _scales(self, state: State, epoch: Epoch, owners: Mapping[int, int]) -> dict[int, float]:
        """Return the factor of the loss at each host, before the cap. Hosts that were drawn by weight count alike."""
        mixed = state.get("mixing", {})
        if mixing.sampled(mixed):
            visits = mixing.pending(epoch.table, np.zeros_like(epoch.done), self.clients)
            return {host: epoch.length / float(visits[owner]) for host, owner in owners.items()}
        weights = mixing.looked_up(mixed, list(owners.values()), list(owners), self.clients)
        scales = zip(owners.items(), weights.tolist(), strict=True)
        return {host: epoch.length * weight / epoch.times(host, owner) for (host, owner), weight in scales}

    def home(self, client: int) -> Assignment:
        """Return the assignment of a client's own model."""
        return Assignment(client)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the model of the assignment's owner, or the initial model if it was never updated."""
        if assignment.owner is None:
            return Download((state["params"],))
        first: Params = state["origin" if "origin" in state else "params"]
        return Download((self.models.get(assignment.owner).get("params") or first,))

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Round:
        """Return an accumulator without updated models."""
        owners = {host: to.owner for host, to in assigned.items() if to.owner is not None}
        epoch, most = self._epoch(state), (1 + SLACK) * (self.largest or math.inf)
        capped = sum(scale > most for scale in self._scales(state, epoch, owners).values())
        return Round(epoch, assigned, capped)

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
        """Record the visits that are done, project models that finished the epoch, and end the epoch if all did."""
        skipped = {host: to.owner for host, to in acc.assigned.items() if to.owner is not None and not to.loss_scale}
        before, after = acc.epoch, acc.epoch.after({**skipped, **acc.moved}, len(acc.assigned))
        if self.radius is not None:
            finished = (before.pending > 0) & ((after.pending == 0) | after.over)
            self._project(np.flatnonzero(finished).tolist())
        rest = {name: value for name, value in state.items() if name != "rotation"}
        device, ended = tree.device(state["params"]), after.over and after.table.size > 0
        return {
            **rest,
            "origin": state.get("origin", state["params"]),
            "epoch": torch.tensor(int(state.get("epoch", 0)) + ended, device=device),
            **({} if after.over else {"rotation": after.tensors(device)}),
        }

    def _project(self, owners: Sequence[int]) -> None:
        """Project models that finished an epoch, whether their last visit was trained or skipped."""
        ball = Mean(radius=self.radius)
        for owner in owners:
            found = self.models.staged(owner) or self.models.get(owner)
            if found:
                self.models.stage(owner, {"params": ball.projected(found["params"])})

    def measure(self, state: State, acc: Round) -> dict[str, Any]:
        """Return the numbers of trained, skipped, capped and idle visits, the rounds of the epoch, and the epoch."""
        hosts = [to for to in acc.assigned.values() if to.owner is not None]
        found = {
            "trained": len(acc.moved),
            "skipped": sum(not to.loss_scale for to in hosts),
            "capped": acc.capped,
            "idle": len(acc.assigned) - len(hosts),
            "epoch_rounds": acc.epoch.table.shape[1],
            "epoch": int(state["epoch"]),
        }
        return {"visits": found}
