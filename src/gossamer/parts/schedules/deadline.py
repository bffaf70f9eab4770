"""Rounds with a deadline and over-selection, as in Bonawitz et al., 2019, https://arxiv.org/abs/1902.01046."""

import math
from dataclasses import dataclass
from typing import Literal

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.schedule import Schedule
from gossamer.fleet.units import Duration


@dataclass(frozen=True)
class Deadline(Schedule):
    """Starts more clients than it needs, and ends a round with the first updates, or at the deadline.

    Args:
        after: length of a round at most, such as 60s or 5min; a number is in seconds
        over: clients that start, as a multiple of the clients per round
        late: what happens to clients that have not finished: they stop (drop), or their updates are aggregated in a
            later round (fold)
    """

    after: Duration | str | float
    over: float = 1.0
    late: Literal["drop", "fold"] = "drop"

    def __post_init__(self) -> None:
        if not isinstance(self.after, Duration):
            try:
                object.__setattr__(self, "after", Duration.of_text(str(self.after)))
            except ValueError as error:
                raise ConfigError(wrong(self, "after", f"must be {error}")) from None
        require(
            (1 <= self.over < math.inf, wrong(self, "over", "must be at least 1")),
            (self.late in ("drop", "fold"), wrong(self, "late", "must be drop or fold")),
        )

    @property
    def deadline(self) -> int:
        """Nanoseconds to the deadline."""
        assert isinstance(self.after, Duration)  # others are converted above
        return self.after.nanoseconds

    @property
    def keeps_late(self) -> bool:
        """Whether late clients go on."""
        return self.late == "fold"

    def slots(self, cohort: int) -> int:
        """Return the clients that start together."""
        return math.ceil(round(self.over * cohort, 9))

    def goal(self, cohort: int) -> int | None:
        """Return the clients per round, which is fewer than start; none if just as many start."""
        return cohort if self.slots(cohort) > cohort else None
