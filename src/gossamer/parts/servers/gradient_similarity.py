"""Mixing weights from gradient similarity (PERM).

Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761.

Clients send their gradients at the global model. The mean gradient updates the global model with the rate ``lr``. The
distance between two gradients measures how different the data of two clients are. ``gossamer.parts.servers.mixing``
computes mixing weights from the distances. The distance of a pair dates from the last round with both clients. A pair
that never took part in the same round has infinite distance.

With ``once``, each client is compared once, at a model that does not change. Absent clients, and clients whose upload
was lost, are asked again in later rounds. The gradients of the other clients are kept until all clients were compared.

Server state in addition to the global model:

    compared.samples, .noise, .size   per client: samples, variance of its gradient, parameters of its model
    compared.apart                    last known distances, [clients, clients]
    compared.sketches                 with ``keep`` or ``clusters``, instead of distances: sketches of the gradients
                                      (with ``once``, until all clients were compared)
    compared.rows                     with ``once``: gradients received so far, until all clients were compared
    ready                             with ``once``: which clients were compared
    mixing.weights                    mixing weights, [clients, clients], one row per client
    mixing.who, .much                 with ``keep``, instead of these: indices and weights of the kept clients
    mixing.cluster, .share, .between  with ``clusters``: the cluster of each client or -1, its share of the samples of
                                      the cluster, and the weights between clusters
    lam                               regularization that was used
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, Self

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import Mistake, PayloadError, Setting, require, wrong
from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context
from gossamer.core.random import Key, fold
from gossamer.core.random import key as make_key
from gossamer.core.server import Server
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers import mixing
from gossamer.parts.servers.mean import Mean, Sum

SKETCH = 1024
"""Default size of a sketched gradient with ``keep`` or ``clusters``."""

PAIRS, CLUSTERS = 2000, 50
"""Above this number of clients, there is this number of clusters, unless ``keep`` or ``clusters`` is given."""

MOST_PAIRS = 20_000
"""The most clients with a weight of each pair: the weights take 3.2 GB, and their distances as much."""


@dataclass
class Gathered:
    """Accumulator of a round: the sum of gradients, the table of gradients, and facts about their clients.

    ``layout`` is the vector layout in which gradients are compared.
    """

    total: Sum
    layout: Layout
    table: mixing.GradientTable
    facts: dict[int, dict[str, float]] = field(default_factory=dict)
    weights: bool = False


@dataclass(frozen=True)
class GradientSimilarity(Server):
    """Updates the global model by the mean gradient, and computes mixing weights from gradient distances.

    Args:
        weights: client weights in the global model: number of samples, or equal (uniform)
        over: average each entry over all clients of the cohort, or over the holders of the entry
        radius: maximum norm of the global model, enforced by projection; none disables it
        lr: learning rate of the global model; 0 leaves it unchanged
        lam: regularization that spreads mixing weights; none estimates it from the gradient noise
        solve: exact (water-filling), or a number of projected gradient steps from the previous weights
        every: recompute mixing weights in every round, or in the first round of each epoch
        once: compare each client once, starting at this round; none compares the cohort in every round
        sketch: size of the sketched gradients that are compared; none compares full gradients
        keep: maximum number of mixing weights per client; none keeps all
        clusters: compute weights between this number of clusters; none has 50 if there are more than 2,000 clients
        complexity: penalty of larger models, in units of a typical distance; see ``mixing.penalty``
        clients: the number of clients
        trained: the names of the trained tensors
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
    clusters: int | None = None
    complexity: float = 0.0
    clients: int = field(default=0, init=False, repr=False, compare=False)
    trained: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.mean  # checks the fields of the mean
        steps = isinstance(self.solve, int) and not isinstance(self.solve, bool) and self.solve >= 1
        of = partial(Setting, "GradientSimilarity")
        require(
            (self.weights in ("samples", "uniform"), wrong(self, "weights", "must be samples or uniform")),
            (0 <= self.lr < math.inf, wrong(self, "lr", "must be finite and not negative")),
            (self.lam is None or 0 <= self.lam < math.inf, wrong(self, "lam", "must be finite and not negative")),
            (steps or self.solve == "exact", wrong(self, "solve", "must be exact or a positive number of steps")),
            (self.every in ("round", "epoch"), wrong(self, "every", "must be round or epoch")),
            (self.sketch is None or self.sketch >= 1, wrong(self, "sketch", "must be at least 1")),
            (self.keep is None or self.keep >= 1, wrong(self, "keep", "must be at least 1")),
            (
                self.once is None or self.lr == 0,
                Mistake("needs a fixed global model: give {}", of("once"), Setting("", "lr", 0)),
            ),
            (self.clusters is None or self.clusters >= 1, wrong(self, "clusters", "must be at least 1")),
            (
                self.keep is None or self.clusters is None,
                Mistake("cannot be combined with {}: give one of them", of("clusters"), of("keep")),
            ),
            *(
                (
                    vars(self)[name] is None or self.solve == "exact",
                    Mistake("needs exact weights: leave {} at its default", of(name), of("solve")),
                )
                for name in ("keep", "clusters")
            ),
            (0 <= self.complexity < math.inf, wrong(self, "complexity", "must be finite and not negative")),
            *(
                (
                    vars(self)[name] is None or not self.complexity,
                    Mistake("does not support models of unequal size", of(name)),
                )
                for name in ("keep", "clusters")
            ),
            (not steps or self.lam != 0, Mistake("with a number of steps needs a positive lam", of("solve"))),
        )

    @cached_property
    def mean(self) -> Mean:
        """The aggregation that updates the global model."""
        return Mean(self.weights, self.over, self.radius)

    def bind(self, context: Context) -> Self:
        """Return the server with the number of clients and the names of the trained tensors."""
        # Where the state of all pairs would be large, there are clusters, if they are possible.
        possible = self.keep is None and self.solve == "exact" and context.exchange.view.common
        usual = CLUSTERS if context.clients > PAIRS and possible else None
        clusters, gigabytes = self.clusters or usual, 8 * context.clients**2 / 1e9
        require(
            (
                context.clients <= MOST_PAIRS or bool(self.keep or clusters),
                Mistake(
                    f"weights of all pairs of {context.clients:,} clients take {gigabytes:,.0f} GB: give {{}} or {{}} "
                    f"with models of equal size and exact weights, or use at most {MOST_PAIRS:,} clients",
                    None,
                    *(Setting("", name, CLUSTERS) for name in ("clusters", "keep")),
                ),
            )
        )
        return self.filled(clusters=clusters, clients=context.clients, trained=context.trained)

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Assign the global model to the cohort. With ``once``, ask only clients that were not compared yet."""
        if self.once is None:
            return dict.fromkeys(cohort, GLOBAL)
        ready = self._ready(state)
        if clock.round < self.once or bool(ready.all()):
            return None
        return {client: Assignment(loss_scale=0.0) if ready[client] else GLOBAL for client in cohort}

    def _ready(self, state: State) -> Tensor:
        """Return which clients were compared."""
        ready: Tensor = state.get("ready", torch.zeros(self.clients, dtype=torch.bool))
        return ready.cpu()

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Gathered:
        """Return an accumulator, with the gradients kept from earlier rounds."""
        size = self.sketch or (SKETCH if self.keep or self.clusters else None)
        sketch = mixing.Sketch(size, make_key(0)) if size else None
        layout = Layout.of(state["params"]).only(self.trained)
        gathered = Gathered(self.mean.empty(state["params"]), layout, mixing.GradientTable(sketch))
        if "rows" in state.get("compared", {}):
            gathered.table.recall(self._ready(state).nonzero().view(-1).tolist(), state["compared"]["rows"])
        return gathered

    def fold(self, acc: Gathered, arrival: Arrival) -> Gathered:
        """Add one client's gradient."""
        noise = float(arrival.sections.get("noise", 0.0))
        if noise < 0:
            raise PayloadError(f"noise must not be negative, got {noise}")
        client, part, layout, like = arrival.client, arrival.part, arrival.layout, acc.total.total
        vector = compared = arrival.vector(acc.total.vector.device)
        if not (part.whole and layout == acc.layout):
            compared = acc.layout.flatten(part.spread(layout.unflatten(vector), like))
        # The table comes first: it refuses some gradients, and then nothing was added.
        acc.table.add(client, compared, None if part.whole else acc.layout.flatten(part.coverage(like)))
        self.mean.fold(acc.total, Arrival.laid(client, part, layout, vector, arrival.samples))
        acc.facts[client] = {"samples": arrival.samples, "noise": noise, "size": layout.size}
        return acc

    def finish(self, state: State, acc: Gathered, clock: Clock) -> State:
        """Update the global model, and recompute the mixing weights if due."""
        if self.once is not None:
            ready = self._ready(state).clone()
            ready[list(acc.facts)] = True
            state = {**state, "ready": ready.to(tree.device(state["params"]))}
        if not acc.facts:
            return state
        params: Params = state["params"]
        rates = {name: self.lr if name in self.trained else float(self.lr > 0) for name in params}
        moved = {name: params[name] + rates[name] * mean for name, mean in acc.total.mean().items()}
        new = {**state, "params": self.mean.projected(moved)}
        if self.every == "round" or "rotation" not in state:
            acc.weights = True
            new |= self._learned(state, acc)
        return new

    def _learned(self, state: State, acc: Gathered) -> State:
        """Return the client facts and mixing weights after this round."""
        before: State = tree.move(state.get("compared", {}), "cpu")
        known = {name: self._known(before, name, acc) for name in ("samples", "noise", "size")}
        seen = known["samples"] > 0
        lam = mixing.usual_lambda(known["noise"][seen], known["samples"][seen]) if self.lam is None else self.lam
        if self.keep is not None or self.clusters is not None:
            compared, mixed = self._sketched(before, known, acc, lam)
        else:
            compared, mixed = self._dense(before, known, acc, lam, state)
        found = {"compared": {**known, **compared}, "mixing": mixed, "lam": torch.tensor(lam, dtype=torch.float64)}
        return tree.move(found, str(tree.device(state["params"])))

    def _known(self, before: State, name: str, acc: Gathered) -> Tensor:
        """Return the last known value of a fact for each client, and 0 for clients without one."""
        known: Tensor = before.get(name, torch.zeros(self.clients, dtype=torch.float64)).clone()
        known[list(acc.facts)] = torch.tensor([facts[name] for facts in acc.facts.values()], dtype=torch.float64)
        return known

    def _dense(self, before: State, known: State, acc: Gathered, lam: float, state: State) -> tuple[State, State]:
        """Return the distances of all pairs that were compared, and a mixing weight per pair."""
        apart, samples, seen = self._apart(before, acc), known["samples"], known["samples"] > 0
        term = self.complexity * mixing.penalty(apart, known["size"], samples) if self.complexity else None
        old: Tensor | None = state.get("mixing", {}).get("weights")
        weights = mixing.even(self.clients)
        for rows in seen.nonzero().view(-1).split(mixing.block_rows(self.clients)):
            # Clients that were never compared have infinite distance already.
            z = apart[rows] if term is None else apart[rows] + term
            if self.solve == "exact":
                weights[rows] = mixing.waterfill(z, samples, lam)
            else:
                start = weights[rows] if old is None else old[rows.to(old.device)].cpu()
                weights[rows] = mixing.descend(z, samples, lam, start, self.solve)
        late = self.once is not None and not bool(seen.all())
        return {"apart": apart, **({"rows": acc.table.kept()[1]} if late else {})}, {"weights": weights}

    def _apart(self, before: State, acc: Gathered) -> Tensor:
        """Return the last known distance of each pair, [clients, clients]."""
        clients, between = acc.table.distances()
        if len(clients) == self.clients:
            return between
        nothing = torch.full((self.clients, self.clients), torch.inf, dtype=torch.float64)
        apart = before["apart"].clone() if "apart" in before else nothing
        at = torch.tensor(clients)
        apart[at[:, None], at] = between
        return apart

    def _sketched(self, before: State, known: State, acc: Gathered, lam: float) -> tuple[State, State]:
        """Return the last sketch of each client while it is needed, and the mixing weights that follow from them."""
        clients, vectors = acc.table.vectors()
        nothing = torch.zeros(self.clients, vectors.shape[1], dtype=acc.layout.dtype)
        sketches: Tensor = before["sketches"].clone() if "sketches" in before else nothing
        sketches[torch.tensor(clients)] = vectors.to(sketches.dtype)
        del vectors
        seen = (known["samples"] > 0).nonzero().view(-1)
        make = self._sparse if self.clusters is None else self._clustered
        finished = self.once is not None and len(seen) == self.clients
        return {} if finished else {"sketches": sketches}, make(sketches, known["samples"], seen, lam)

    def _sparse(self, sketches: Tensor, samples: Tensor, seen: Tensor, lam: float) -> State:
        """Return the largest mixing weights of each client."""
        assert self.keep is not None
        keep = min(self.keep, self.clients)
        who, much = torch.zeros(self.clients, keep, dtype=torch.int64), torch.zeros(self.clients, keep).double()
        who[seen], much[seen] = mixing.nearest(seen, sketches, samples, lam, keep)
        return {"who": who, "much": much}

    def _clustered(self, sketches: Tensor, samples: Tensor, seen: Tensor, lam: float) -> State:
        """Return the clusters of all clients that were compared, and the mixing weights between clusters."""
        assert self.clusters is not None
        count = min(self.clusters, self.clients)
        vectors, sizes = sketches[seen], samples[seen]
        labels = mixing.group(vectors, sizes, count, fold(make_key(0), "clusters"))
        cluster, share = torch.full((self.clients,), -1), torch.zeros(self.clients).double()
        cluster[seen], share[seen] = labels, mixing.shares(sizes, labels, count)
        return {"cluster": cluster, "share": share, "between": mixing.between(vectors, sizes, labels, count, lam)}

    def measure(self, state: State, acc: Gathered) -> dict[str, Any]:
        """Return the medians of the clients' own weights and of their effective numbers of peers, and lambda."""
        if not acc.weights:
            return {}
        own, peers = mixing.summary(state["mixing"])
        return {"mixing": {"own": own, "peers": peers, "lam": float(state["lam"])}}
