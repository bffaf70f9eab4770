"""Who should learn from whom: clients' gradients at the global model are compared, and mixing weights follow (PERM).

Clients send gradients, not training results. Their mean moves the global model by ``lr``; the distance of each two of
them tells how unlike their data are, and ``gossamer.parts.servers.mixing`` turns distances into weights. Gradients
of clients that are absent are not there to be compared: the distance of a pair is that of the last round in which both
were, and a pair that never met is infinitely far apart.

Where clients are compared once, at a model that stays, it does not matter when. Those who were absent, or whose message
was lost, are asked in later rounds until all were heard, and what the others sent is kept for that long.

What the server holds besides the global model:

    compared.samples, .noise, .size   of each client: samples, variance of its gradient, and parameters of its model
    compared.apart                    the last known distances, [clients, clients]
    compared.sketches                 instead of these, where few weights a client are kept: what gradients reduce to
    compared.rows                     where each is compared once, the gradients of those heard, until all were
    ready                             where each is compared once: who was
    mixing.weights                    [clients, clients], a row for each client
    mixing.who, .much                 instead of these: the clients that each learns from, and how much
    lam                               the strength of spreading, as it was chosen
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import Mistake, PayloadError, Setting, require, wrong
from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context
from gossamer.core.random import Key
from gossamer.core.random import key as make_key
from gossamer.core.server import MeasuredServer, Server
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers import mixing
from gossamer.parts.servers.mean import Mean, Sum

SKETCH = 4096
"""Numbers that a gradient is reduced to where few weights a client are kept."""


@dataclass
class Gathered:
    """What came of a round: the sum of gradients, the gradients themselves, and what is known of who sent them.

    ``layout`` is how gradients lie in a vector when they are compared.
    """

    total: Sum
    layout: Layout
    gallery: mixing.GradientTable
    facts: dict[int, dict[str, float]] = field(default_factory=dict)
    weights: bool = False


@dataclass(frozen=True)
class GradientSimilarity(Server):
    """Moves the global model by the mean gradient, and learns from the gradients who should learn from whom.

    Args:
        weights: what a client counts for in the global model: its samples, or one each (uniform)
        radius: the largest norm of the global model, which is projected onto that ball; none is no ball
        lr: the global model's learning rate; with 0 it stays
        lam: how strongly a client's weight is spread over others; none chooses it from the noise of gradients
        solve: exact (by water-filling), or so many projected gradient steps from the weights before
        every: whether weights are learned anew in each round, or in the first of each epoch
        once: each client is compared once, from this round on; none compares the round's clients in every round
        sketch: how many numbers a gradient is reduced to before it is compared; none compares whole gradients
        keep: how many weights a client has at most; none keeps all
        complexity: how much farther away a larger model is, times sqrt(parameters / samples), where models are unequal
    """

    weights: Literal["samples", "uniform"] = "uniform"
    over: Literal["cohort", "holders"] = "cohort"
    radius: float | None = None
    lr: float = 0.1
    lam: float | None = None
    solve: Literal["exact"] | int = "exact"
    every: Literal["round", "epoch"] = "round"
    once: int | None = None
    sketch: int | None = None
    keep: int | None = None
    complexity: float = 0.0

    def __post_init__(self) -> None:
        assert self.mean  # which says what is wrong with its fields
        steps = isinstance(self.solve, int) and not isinstance(self.solve, bool) and self.solve >= 1
        of = partial(Setting, "GradientSimilarity")
        require(
            (self.weights in ("samples", "uniform"), wrong(self, "weights", "must be samples or uniform")),
            (0 <= self.lr < math.inf, wrong(self, "lr", "must be a number from 0 on")),
            (self.lam is None or 0 <= self.lam < math.inf, wrong(self, "lam", "must be a number from 0 on")),
            (steps or self.solve == "exact", wrong(self, "solve", "must be exact or steps from 1")),
            (self.every in ("round", "epoch"), wrong(self, "every", "must be round or epoch")),
            (self.sketch is None or self.sketch >= 1, wrong(self, "sketch", "must be at least 1")),
            (self.keep is None or self.keep >= 1, wrong(self, "keep", "must be at least 1")),
            (
                self.once is None or self.lr == 0,
                Mistake("needs a model that stays: give {}", of("once"), Setting("", "lr", 0)),
            ),
            (
                self.keep is None or self.solve == "exact",
                Mistake("needs exact weights: leave {} as it is", of("keep"), of("solve")),
            ),
            (0 <= self.complexity < math.inf, wrong(self, "complexity", "must be a number from 0 on")),
            (self.keep is None or not self.complexity, Mistake("cannot tell models of unequal size apart", of("keep"))),
            (not steps or self.lam != 0, Mistake("by steps needs a positive lam", of("solve"))),
        )

    @property
    def mean(self) -> Mean:
        """What moves the global model."""
        return Mean(self.weights, self.over, self.radius)

    def bind(self, context: Context) -> "BoundGradientSimilarity":
        """With the number of clients, and the names of what is trained: others are statistics."""
        return BoundGradientSimilarity(**vars(self), clients=context.clients, trained=context.trained)


@dataclass(frozen=True)
class BoundGradientSimilarity(MeasuredServer, GradientSimilarity):
    """The same with the number of clients, and the names of what is trained."""

    clients: int = field(kw_only=True)
    trained: tuple[str, ...] = field(kw_only=True)

    @cached_property
    def _mean(self) -> Mean:
        return self.mean

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """All; where each is compared once, from that round on those who were not, until everybody was."""
        if self.once is None:
            return dict.fromkeys(cohort, GLOBAL)
        ready = self._ready(state)
        if clock.round < self.once or bool(ready.all()):
            return None
        return {client: Assignment(loss_scale=0.0) if ready[client] else GLOBAL for client in cohort}

    def _ready(self, state: State) -> Tensor:
        """Who was heard, where each is once."""
        ready: Tensor = state.get("ready", torch.zeros(self.clients, dtype=torch.bool))
        return ready.cpu()

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Gathered:
        """Nothing yet, but what is kept of those who were heard before, where each is once."""
        size = self.sketch or (SKETCH if self.keep else None)
        sketch = mixing.Sketch(size, make_key(0)) if size else None
        layout = Layout.of(state["params"]).only(self.trained)
        gathered = Gathered(self._mean.empty(state["params"]), layout, mixing.GradientTable(sketch))
        if "rows" in state.get("compared", {}):
            gathered.gallery.recall(self._ready(state).nonzero().view(-1).tolist(), state["compared"]["rows"])
        return gathered

    def fold(self, acc: Gathered, arrival: Arrival) -> Gathered:
        """Add one client's gradient."""
        noise = float(arrival.sections.get("noise", 0.0))
        if noise < 0:
            raise PayloadError(f"noise must not be negative, got {noise}")
        client, part, layout, like = arrival.client, arrival.part, arrival.layout, acc.total.like
        vector = arrival.vector(acc.total.vector.device)
        self._mean.fold(acc.total, Arrival.laid(client, part, layout, vector, arrival.samples))
        if not (part.whole and layout == acc.layout):
            vector = acc.layout.flatten(part.spread(layout.unflatten(vector), like))
        acc.gallery.add(client, vector, None if part.whole else acc.layout.flatten(part.coverage(like)))
        acc.facts[client] = {"samples": arrival.samples, "noise": noise, "size": layout.size}
        return acc

    def finish(self, state: State, acc: Gathered, clock: Clock) -> State:
        """Move the global model, and learn weights anew where that is due."""
        if self.once is not None:
            ready = self._ready(state).clone()
            ready[list(acc.facts)] = True
            state = {**state, "ready": ready.to(tree.device(state["params"]))}
        if not acc.facts:
            return state
        params: Params = state["params"]
        rates = {name: self.lr if name in self.trained else float(self.lr > 0) for name in params}
        moved = {name: params[name] + rates[name] * mean for name, mean in acc.total.mean().items()}
        new = {**state, "params": self._mean.projected(moved)}
        if self.every == "round" or not bool(state.get("met", torch.zeros(1)).any()):
            acc.weights = True
            new |= self._learned(state, acc)
        return new

    def _learned(self, state: State, acc: Gathered) -> State:
        """What is known of clients now, and the weights that follow."""
        before: State = tree.move(state.get("compared", {}), "cpu")
        known = {name: self._known(before, name, acc) for name in ("samples", "noise", "size")}
        seen = known["samples"] > 0
        lam = mixing.usual_lambda(known["noise"][seen], known["samples"][seen]) if self.lam is None else self.lam
        if self.keep is not None:
            compared, mixed = self._sparse(before, known, acc, lam)
        else:
            compared, mixed = self._dense(before, known, acc, lam, state)
        found = {"compared": {**known, **compared}, "mixing": mixed, "lam": torch.tensor(lam, dtype=torch.float64)}
        return tree.move(found, str(tree.device(state["params"])))

    def _known(self, before: State, name: str, acc: Gathered) -> Tensor:
        """A number for each client, as it was last told; 0 of those never heard of."""
        known: Tensor = before.get(name, torch.zeros(self.clients, dtype=torch.float64)).clone()
        known[list(acc.facts)] = torch.tensor([facts[name] for facts in acc.facts.values()], dtype=torch.float64)
        return known

    def _dense(self, before: State, known: State, acc: Gathered, lam: float, state: State) -> tuple[State, State]:
        """Distances of all pairs that ever met, and a weight for each."""
        count = self.clients
        apart: Tensor = before.get("apart", torch.full((count, count), torch.inf, dtype=torch.float64)).clone()
        clients, between = acc.gallery.distances()
        at = torch.tensor(clients)
        apart[at[:, None], at] = between
        z = apart
        if self.complexity:  # who was never heard of is infinitely far away as it is
            z = z + self.complexity * mixing.complexity(known["size"], known["samples"])
        seen = known["samples"] > 0
        weights = mixing.even(count).clone()
        if self.solve == "exact":
            weights[seen] = mixing.waterfill(z[seen], known["samples"], lam)
        else:
            old: Tensor = state.get("mixing", {}).get("weights", weights).cpu()
            weights[seen] = mixing.descend(z[seen], known["samples"], lam, old[seen], self.solve)
        late = self.once is not None and not bool(seen.all())
        return {"apart": apart, **({"rows": acc.gallery.kept()[1]} if late else {})}, {"weights": weights}

    def _sparse(self, before: State, known: State, acc: Gathered, lam: float) -> tuple[State, State]:
        """The last sketch of each client, and the few that it learns most from."""
        assert self.keep is not None
        clients, vectors = acc.gallery.vectors()
        nothing = torch.zeros(self.clients, vectors.shape[1], dtype=vectors.dtype)
        sketches: Tensor = before.get("sketches", nothing).clone()
        sketches[torch.tensor(clients)] = vectors
        keep = min(self.keep, self.clients)
        seen = (known["samples"] > 0).nonzero().view(-1)
        who, much = torch.zeros(self.clients, keep, dtype=torch.int64), torch.zeros(self.clients, keep).double()
        who[seen], much[seen] = mixing.nearest(seen, sketches, known["samples"], lam, keep)
        return {"sketches": sketches}, {"who": who, "much": much}

    def measure(self, state: State, acc: Gathered) -> dict[str, Any]:
        """How clients mix: how much of its own each keeps, and of how many it learns; medians."""
        if not acc.weights:
            return {}
        own, peers = mixing.summary(state["mixing"])
        return {"mixing": {"own": own, "peers": peers, "lam": float(state["lam"])}}
