"""The server of robust aggregation: a rule in place of the mean.

The messages of a round wait, encoded, until the last one has arrived. Each is decoded once on arrival: a message that
cannot be decoded is refused then, and its norm is noted. ``finish`` gives all of them to the rule. Its result takes the
place of the mean in the server that is replaced, with that server's learning rate, projection or optimizer.

Where clients hold parts of the model, the rule is computed over the holders of each entry. ``Mean.over`` keeps its
meaning: with ``cohort``, an entry is multiplied by its holders' share of the cohort. An entry without holders keeps its
value.

With fewer updates than the rule needs, the model keeps its value, and the record says so (``figures.aggregation``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gossamer.core.errors import Mistake, Setting, require
from gossamer.core.exchange import Arrival, Assignment, Context, Download
from gossamer.core.random import Key, fold
from gossamer.core.server import CohortServer, MeasuredServer, Server
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.clipping import whole_vector
from gossamer.parts.servers.mean import Mean, Sum
from gossamer.parts.servers.robust.rule import Aggregate, Rule
from gossamer.parts.servers.robust.updates import Kept, Received, length

MEMORY = "rule"
"""The entry of the server state with what the rule keeps."""


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
    """

    rule: Rule
    mean: Server = Mean()

    def __post_init__(self) -> None:
        name = type(self.mean).__name__
        reason = (
            f"{self.rule.to_text()} takes the place of a plain mean of updates, and {name} uses the updates in another "
            "way: use fedavg, or another method whose server is Mean or a server optimizer"
        )
        require((isinstance(self.mean, Mean) and self.mean.takes_any_mean(), reason))

    def bind(self, context: Context) -> "BoundRobust":
        """Return the server for one network and its clients."""
        return BoundRobust(self.rule, self.mean.bind(context), key=context.network.key)

    def tolerates(self, updates: int) -> int:
        """Return how many of a round's updates may be hostile."""
        return self.rule.tolerates(updates)


@dataclass(frozen=True)
class BoundRobust(Robust, MeasuredServer, CohortServer):
    """``Robust`` with a bound mean and the run's key."""

    key: Key = field(kw_only=True)

    def __post_init__(self) -> None:
        """Leave the check to ``Robust``: the mean is bound now."""

    def bind(self, context: Context) -> "BoundRobust":
        """Return the server itself."""
        return self

    @property
    def bound_mean(self) -> Mean:
        """The bound server whose mean the rule replaces."""
        assert isinstance(self.mean, Mean)
        return self.mean

    def check_cohort(self, clients: int) -> None:
        """Refuse rounds with fewer clients than the rule needs."""
        least, rule = self.rule.min_cohort, self.rule.to_text()
        few = f"{rule} needs at least {least} clients per round, and a round has {clients}"
        text = f"{few}: use more clients, a larger {{}}, or a rule that needs fewer"
        require((clients >= least, Mistake(text, None, Setting("", "per_round"))))

    def init(self, params: Params) -> State:
        """Return the state of the mean."""
        return self.bound_mean.init(params)

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Return the assignments of the mean."""
        return self.bound_mean.assign(state, cohort, clock, key)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the download of the mean."""
        return self.bound_mean.download(state, assignment)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Waiting:
        """Return an accumulator without updates."""
        return Waiting(state["params"], Layout.of(state["params"]))

    def fold(self, acc: Waiting, arrival: Arrival) -> Waiting:
        """Keep one client's update, encoded. It is decoded here once, so that a wrong one is refused now."""
        norm = length(whole_vector(arrival, acc.model, acc.layout))
        acc.kept.append(Kept(arrival, norm, self.bound_mean.weigh(arrival)))
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
        new = self.bound_mean.finish(state, self._sum(found, updates, acc), clock)
        return {**new, MEMORY: found.memory} if found.memory else new

    def _sum(self, found: Aggregate, updates: Received, acc: Waiting) -> Sum:
        """Return the aggregate in the form of the mean's accumulator."""
        vector = found.vector
        if updates.partial:
            share = updates.share(updates.weights if self.rule.weighted else updates.equal_weights)
            vector = vector * (share if self.bound_mean.over == "cohort" else share > 0)
        return Sum(acc.model, vector, acc.layout.unflatten(vector), None, 1.0)

    def measure(self, state: State, acc: Waiting) -> dict[str, Any]:
        """Return the number of updates and of tolerated hostile ones, which were used, and why the model was kept."""
        return {"aggregation": acc.figures}
