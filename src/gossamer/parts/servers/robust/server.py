"""Robust aggregation: a rule in place of the mean of the updates.

A rule is a frozen dataclass with three members: how many updates it needs, how many hostile ones it tolerates, and the
aggregate of a round's updates. A complete rule, which takes the update with the smallest norm:

    @dataclass(frozen=True)
    class Shortest(Rule):
        @property
        def min_updates(self):
            return 2

        def tolerates(self, updates):
            return 0  # a hostile update of norm 0 stops the training

        def aggregate(self, updates, memory, key):
            shortest = int(updates.norms().argmin())
            return Aggregate(updates.vector(shortest), used=(shortest,))

``Robust`` is the server. The messages of a round wait, encoded, until the last one has arrived. Each is decoded once on
arrival: a message that cannot be decoded is refused then, and its norm is noted. ``finish`` gives all of them to the
rule. Its result takes the place of the mean in the server that is replaced, with that server's learning rate,
projection or optimizer.

Where clients hold parts of the model, the rule is computed over the holders of each entry. ``Mean.over`` keeps its
meaning: with ``cohort``, an entry is multiplied by its holders' share of the cohort. An entry without holders keeps its
value.

With fewer updates than the rule needs, the model keeps its value, and the record says so (``figures.aggregation``).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor

from gossamer.core.errors import Mistake, Setting, require
from gossamer.core.exchange import Arrival, Assignment, Context, Download
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, fold
from gossamer.core.server import Server
from gossamer.core.specs import spec
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.mean import Mean, Sum, WeightedMean, whole_vector
from gossamer.parts.servers.robust import RULES
from gossamer.parts.servers.robust.updates import Kept, Received, Updates, length

MEMORY = "rule"
"""The entry of the server state with what the rule keeps."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The result of a rule.

    Args:
        vector: the aggregate, for all entries of the model
        memory: what the rule keeps for the next round: tensors by name
        used: the indices of the updates that it was computed from, where the rule selects some; none: all
    """

    vector: Tensor
    memory: State = field(default_factory=dict)
    used: Sequence[int] | None = None


class Rule(CheckedFields, ABC):
    """Combines the updates of a round so that a limited number of hostile ones cannot control the result.

    Args:
        weighted: whether updates count by the weights of the mean that the rule replaces, or equally
    """

    weighted: ClassVar[bool] = False

    @property
    @abstractmethod
    def min_updates(self) -> int:
        """The smallest number of updates with which the rule protects. With fewer, the model is kept."""

    @property
    def min_cohort(self) -> int:
        """The smallest number of clients per round. Some of them may fail, so it may exceed ``min_updates``."""
        return self.min_updates

    @abstractmethod
    def tolerates(self, updates: int) -> int:
        """Return the breaking point: how many of a number of updates may be hostile."""

    @abstractmethod
    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the aggregate of at least ``min_updates`` updates.

        ``memory`` is that of the previous aggregate, empty before the first round. ``key`` is that of the round.
        """

    def to_text(self) -> str:
        """Return the rule as the command line takes it."""
        return spec(self, RULES)


@dataclass
class Waiting:
    """The updates of a round, encoded, and what the record will say about their aggregation."""

    model: Params
    layout: Layout
    kept: list[Kept] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Robust(Server):
    """A robust rule in place of the mean of the updates.

    Args:
        rule: the rule, such as ``Median()``
        mean: the server that it replaces, whose weights, learning rate and ``over`` hold
        key: the run's key
    """

    rule: Rule
    mean: Server = Mean()
    key: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = type(self.mean).__name__
        reason = (
            f"{self.rule.to_text()} takes the place of a plain mean of updates, and {name} uses the updates in another "
            "way: use fedavg, or another method whose server is Mean or a server optimizer"
        )
        require((isinstance(self.mean, WeightedMean) and self.mean.takes_any_mean, reason))

    def bind(self, context: Context) -> Self:
        """Return the server for one network and its clients."""
        return self.filled(mean=self.mean.bind(context), key=context.network.key)

    def tolerates(self, updates: int) -> int:
        """Return how many of a round's updates may be hostile."""
        return self.rule.tolerates(updates)

    @property
    def inner(self) -> WeightedMean:
        """The server whose mean the rule replaces."""
        assert isinstance(self.mean, WeightedMean)
        return self.mean

    def check_cohort(self, clients: int) -> None:
        """Refuse rounds with fewer clients than the rule needs."""
        least, rule = self.rule.min_cohort, self.rule.to_text()
        few = f"{rule} needs at least {least} clients per round, and a round has {clients}"
        text = f"{few}: use more clients, a larger {{}}, or a rule that needs fewer"
        require((clients >= least, Mistake(text, None, Setting("", "per_round"))))

    def init(self, params: Params) -> State:
        """Return the state of the mean."""
        return self.inner.init(params)

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Return the assignments of the mean."""
        return self.inner.assign(state, cohort, clock, key)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the download of the mean."""
        return self.inner.download(state, assignment)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Waiting:
        """Return an accumulator without updates."""
        return Waiting(state["params"], Layout.of(state["params"]))

    def fold(self, acc: Waiting, arrival: Arrival) -> Waiting:
        """Keep one client's update, encoded. It is decoded here once, so that a wrong one is refused now."""
        norm = length(whole_vector(arrival, acc.model, acc.layout))
        acc.kept.append(Kept(arrival, norm, self.inner.weigh(arrival)))
        return acc

    def finish(self, state: State, acc: Waiting, clock: Clock) -> State:
        """Combine the updates by the rule, and update the model by the result as the mean does."""
        arrived, least = len(acc.kept), self.rule.min_updates
        acc.figures |= {"updates": arrived, "tolerated": self.rule.tolerates(arrived)}
        if arrived < least:
            few = f"{arrived} updates arrived, and {self.rule.to_text()} needs {least}"
            acc.figures["kept_model"] = f"{few}: the model was kept"
            return state
        updates = Received(acc.kept, acc.model)
        found = self.rule.aggregate(updates, state.get(MEMORY, {}), fold(self.key, "aggregation", clock.round))
        if found.used is not None:
            acc.figures["used"] = [acc.kept[index].arrival.client for index in found.used]
        new = self.inner.finish(state, self._sum(found, updates, acc), clock)
        return {**new, MEMORY: found.memory} if found.memory else new

    def _sum(self, found: Aggregate, updates: Received, acc: Waiting) -> Sum:
        """Return the aggregate in the form of the mean's accumulator."""
        vector = found.vector
        if updates.partial:
            share = updates.share(updates.weights if self.rule.weighted else updates.equal_weights)
            vector = vector * (share if self.inner.over == "cohort" else share > 0)
        return Sum(acc.layout, vector, weight=1.0)

    def measure(self, state: State, acc: Waiting) -> dict[str, Any]:
        """Return the number of updates and of tolerated hostile ones, which were used, and why the model was kept."""
        return {"aggregation": acc.figures}
