"""Power-of-choice: of a few candidates those take part on whose samples the global model is worst (Cho et al., 2020).

https://arxiv.org/abs/2010.01243

In each round candidates are drawn with a probability proportional to their number of samples. Each gets the global
model and answers with its mean training loss, one number. The clients with the largest losses then train, and all count
alike. With as many candidates as take part this is sampling by size.
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
from gossamer.parts.servers.listen import Listen
from gossamer.parts.solvers.loss_probe import LossProbe
from gossamer.parts.views.full import Full


@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    """The clients with the largest losses among some candidates.

    Args:
        candidates: how many clients are asked for their loss; at least as many as take part in a round are
    """

    candidates: int = 20

    def __post_init__(self) -> None:
        require(
            (self.candidates >= 1, wrong(self, "candidates", "must be at least 1")),
        )

    @property
    def weights(self) -> Literal["uniform"]:
        """One each, as in the paper: candidates are drawn by their size."""
        return "uniform"

    @property
    def probe(self) -> Exchange:
        """The global model down, one loss up."""
        return Exchange(Full(), LossProbe(), Dense(), Listen(), Dense(), send="sections")

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """The candidates."""
        return drawn_by_size(pool, max(self.candidates, pool.count), fold(key, "candidates", clock.round))

    def choose(self, outcomes: Sequence[Outcome], count: int) -> list[int]:
        """Those with the largest losses; of equals the first."""
        heard = [outcome for outcome in outcomes if outcome.folded]
        worst = sorted(heard, key=lambda outcome: (-float(outcome.sections["loss"]), outcome.client))
        return sorted(outcome.client for outcome in worst[:count])
