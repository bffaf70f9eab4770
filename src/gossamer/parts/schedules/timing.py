"""Schedules: rounds that wait for all, rounds with a deadline, and aggregation without rounds.

    Synchronous   the server waits for all clients of a round, however slow they are
    Deadline      rounds with a deadline and over-selection (Bonawitz et al., 2019, https://arxiv.org/abs/1902.01046)
    FedBuff       buffered asynchronous aggregation (Nguyen et al., 2022, https://arxiv.org/abs/2106.06639)
    FedAsync      each update changes the model at once (Xie et al., 2019, https://arxiv.org/abs/1903.03934)

The last two keep a number of clients in training, and multiply stale updates by a factor (``Staleness``).
"""

import math
from dataclasses import dataclass
from typing import Literal

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival
from gossamer.core.fields import CheckedFields
from gossamer.core.schedule import Schedule
from gossamer.core.types import Params
from gossamer.fleet.units import Duration


@dataclass(frozen=True)
class Synchronous(Schedule):
    """Waits for all clients of a round."""

    def slots(self, cohort: int) -> int:
        """Return the clients per round."""
        return cohort

    def goal(self, cohort: int) -> int | None:
        """Return none: all clients."""
        return None


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


HINGE = "hinge"


@dataclass(frozen=True)
class Staleness(CheckedFields):
    """The factor of an update by its staleness s, as in FedAsync.

    Polynomial: ``(1 + s) ** -exponent``; the exponent 0 is a factor of 1. Hinge: 1 up to the staleness ``after``, then
    ``1 / (slope * (s - after) + 1)``. On the command line: ``0.5``, or ``hinge/SLOPE/AFTER`` such as ``hinge/10/4``.

    Args:
        exponent: the exponent of the polynomial
        slope: the slope of the hinge; none for the polynomial
        after: the largest staleness with a factor of 1, for the hinge
    """

    exponent: float = 0.5
    slope: float | None = None
    after: int = 0

    def __post_init__(self) -> None:
        require(
            (0 <= self.exponent < math.inf, wrong(self, "exponent", "must not be negative")),
            (self.slope is None or 0 < self.slope < math.inf, wrong(self, "slope", "must be positive")),
            (self.after >= 0, wrong(self, "after", "must not be negative")),
        )

    @classmethod
    def of_text(cls, text: str) -> "Staleness":
        """Parse an exponent, or a hinge."""
        name, *numbers = text.split("/")
        try:
            if name != HINGE:
                return cls(float(text))
            slope, after = numbers
            return cls(0.0, float(slope), int(after))
        except ValueError as error:
            if hasattr(error, "mistakes"):
                raise
            raise ValueError("an exponent such as 0.5, or hinge/SLOPE/AFTER such as hinge/10/4") from None

    def to_text(self) -> str:
        """Return the text that ``of_text`` reads."""
        return f"{self.exponent}" if self.slope is None else f"{HINGE}/{self.slope}/{self.after}"

    def factor(self, staleness: int) -> float:
        """Return the factor of an update.

        >>> Staleness(0.5).factor(3), Staleness.of_text("hinge/10/4").factor(5)
        (0.5, 0.09090909090909091)
        """
        if self.slope is None:
            return float((1 + staleness) ** -self.exponent)
        return 1.0 if staleness <= self.after else 1 / (self.slope * (staleness - self.after) + 1)


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
        few, negative = self.concurrency is not None and self.concurrency < 1, (self.max_staleness or 0) < 0
        require(
            (not few, wrong(self, "concurrency", "must be at least 1, or none")),
            (not negative, wrong(self, "max_staleness", "must not be negative")),
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
        return None if stale else self.weight * self.staleness.factor(staleness)

    @property
    def weight(self) -> float:
        """The factor of an update without staleness."""
        return 1.0


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


@dataclass(frozen=True)
class FedAsync(Asynchronous):
    """Mixes the model v of each client into the global model w: w + a (v - w), with a = mix factor(s).

    The difference is relative to the current model, not to the one that the client received.

    Args:
        mix: weight of a client's model without staleness
    """

    mix: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 < self.mix <= 1, wrong(self, "mix", "must be in (0, 1]")))

    @property
    def weight(self) -> float:
        """The weight of a client's model."""
        return self.mix

    def goal(self, cohort: int) -> int | None:
        """Return 1: each update is an aggregation."""
        return 1

    def adapt(self, arrival: Arrival, model: Params) -> Arrival:
        """Return the arrival relative to the current model, multiplied by its weight."""
        return super().adapt(arrival.from_model(model), model)
