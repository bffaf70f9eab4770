"""Multi-Krum: the mean of the updates with the best scores of Krum.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
https://arxiv.org/abs/1703.02757, section 4. m = 1 is Krum; more updates make the aggregate less noisy. Damaskinos et
al., AggregaThor, MLSys 2019, prove that f hostile updates are tolerated for m up to n - f - 2, which is the default and
the largest value here.

Breaking point: f hostile updates, and n >= 2 f + 3. If fewer updates arrive than in a full round, m is reduced to
n - f - 2.
"""

from dataclasses import dataclass

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.robust.krum import Krum, mean_of, ranking
from gossamer.parts.servers.robust.rule import Aggregate
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Mean of the updates with the smallest sums of distances to their neighbours.

    Args:
        m: the number of updates in the mean; none: the number of updates minus f + 2
    """

    m: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.m is None or self.m >= 1, wrong(self, "m", "must be at least 1")))

    @property
    def min_cohort(self) -> int:
        """The number of clients of which m can be selected."""
        return max(self.min_updates, (self.m or 1) + self.f + 2)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the mean of the best updates."""
        most = updates.count - self.f - 2
        return mean_of(updates, ranking(updates, self.f)[: min(self.m or most, most)])
