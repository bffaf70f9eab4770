"""What asynchronous schedules share: a number of clients in training, and factors of stale updates."""

from dataclasses import dataclass

from gossamer.core.errors import require, wrong
from gossamer.core.schedule import Schedule
from gossamer.parts.schedules.staleness import Staleness


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Schedule):
    """Base of schedules that fill a free slot at once.

    Args:
        concurrency: clients that train at the same time; none means the clients per round
        staleness: exponent of the factor (1 + s)^-x of an update with staleness s, or hinge/SLOPE/AFTER
        max_staleness: staleness above which an update is not aggregated; none means no such limit
    """

    concurrency: int | None = None
    staleness: Staleness = Staleness()
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        require(
            (
                self.concurrency is None or self.concurrency >= 1,
                wrong(self, "concurrency", "must be at least 1, or none"),
            ),
            (
                self.max_staleness is None or self.max_staleness >= 0,
                wrong(self, "max_staleness", "must not be negative"),
            ),
        )

    @property
    def refills(self) -> bool:
        """True: a free slot is filled at once."""
        return True

    def slots(self, cohort: int) -> int:
        """Return the concurrency."""
        return cohort if self.concurrency is None else self.concurrency

    def factor(self, staleness: int) -> float | None:
        """Return the factor of an update; none above ``max_staleness``."""
        stale = self.max_staleness is not None and staleness > self.max_staleness
        return None if stale else self.staleness.factor(staleness)
