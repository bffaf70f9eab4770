"""How much a stale update counts, as in FedAsync (Xie et al., 2019, https://arxiv.org/abs/1903.03934)."""

import math
from dataclasses import dataclass

from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields

HINGE = "hinge"


@dataclass(frozen=True)
class Staleness(CheckedFields):
    """The factor of an update by its staleness s.

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
