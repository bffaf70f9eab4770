"""FedBuff: buffered asynchronous aggregation (Nguyen et al., 2022, https://arxiv.org/abs/2106.06639)."""

from dataclasses import dataclass

from gossamer.core.errors import require, wrong
from gossamer.parts.schedules.asynchronous import Asynchronous


@dataclass(frozen=True)
class FedBuff(Asynchronous):
    """Keeps a number of clients in training, and aggregates whenever the buffer is full.

    An update D with staleness s counts as factor(s) D. The method's server aggregates the buffer, so its weights, its
    server learning rate and its optimizer hold as they do in synchronous rounds.

    Args:
        buffer: updates of an aggregation
    """

    buffer: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.buffer >= 1, wrong(self, "buffer", "must be at least 1")))

    def goal(self, cohort: int) -> int | None:
        """Return the size of the buffer."""
        return self.buffer
