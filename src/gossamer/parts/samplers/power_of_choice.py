"""Power-of-choice (Cho et al., 2020, https://arxiv.org/abs/2010.01243): the candidates with the largest losses.

In each round, candidates are drawn with probabilities proportional to their number of samples. Each receives the global
model, and returns its mean training loss, one number. The clients with the largest losses then train, with equal
aggregation weights. If the number of candidates is the size of the cohort, this is sampling by size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Outcome
from gossamer.core.method import Exchange
from gossamer.core.random import Key, fold
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.samplers.by_size import drawn_by_size
from gossamer.parts.servers.mean import Listen
from gossamer.parts.solvers.probes import LossProbe
from gossamer.parts.views.entries import Full


@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    """Selects the clients with the largest losses among random candidates.

    See https://arxiv.org/abs/2010.01243.

    Args:
        candidates: the number of clients that compute their loss, at least the size of the cohort
    """

    candidates: int = 20

    def __post_init__(self) -> None:
        require(
            (self.candidates >= 1, wrong(self, "candidates", "must be at least 1")),
        )

    @property
    def weights(self) -> Literal["uniform"]:
        """Equal weights, as in the paper: candidates are drawn by size."""
        return "uniform"

    @property
    def probe(self) -> Exchange:
        """The exchange that sends the global model, and returns one loss per candidate."""
        return Exchange(Full(), LossProbe(), Dense(), Listen(), Dense(), send="sections")

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return the candidates."""
        return drawn_by_size(pool, max(self.candidates, pool.count), fold(key, "candidates", clock.round))

    def choose(self, outcomes: Sequence[Outcome], count: int) -> list[int]:
        """Return the candidates with the largest losses. Ties are broken by client number."""
        replied = [outcome for outcome in outcomes if outcome.folded]
        by_loss = sorted(replied, key=lambda outcome: (-float(outcome.sections["loss"]), outcome.client))
        return sorted(outcome.client for outcome in by_loss[:count])
