"""What was found of a method's stability: values that print as tables and can be written as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gossamer.report.text import number, percent, table

HEAD = ("distance", "loss difference", "at the newcomer", "loss gap", "accuracy gap", "test accuracy")


class Swap(NamedTuple):
    """One training sample for another: of client ``client`` the one at place ``sample``, for test sample ``by``."""

    client: int
    sample: int
    by: int


@dataclass(frozen=True)
class Moment:
    """What was found after one round; differences are means over the samples that were replaced.

    round: after which round
    distance: of the two models, as the Euclidean norm over all trained tensors
    loss_difference: mean over the test samples of the losses' absolute difference
    newcomer_difference: the same at the sample that came in alone, which is Definition 4's
    train_loss: of the model trained on S, on all that clients train on
    test_loss: of the same model, on the test samples
    train_accuracy: as train_loss
    test_accuracy: as test_loss
    distances: the distance for each sample that was replaced
    """

    round: int
    distance: float
    loss_difference: float
    newcomer_difference: float
    train_loss: float
    test_loss: float
    train_accuracy: float
    test_accuracy: float
    distances: tuple[float, ...]

    @property
    def loss_gap(self) -> float:
        """Test loss above training loss."""
        return self.test_loss - self.train_loss

    @property
    def accuracy_gap(self) -> float:
        """Training accuracy above test accuracy."""
        return self.train_accuracy - self.test_accuracy

    def cells(self) -> tuple[str, ...]:
        """As a table shows it."""
        differences = (self.distance, self.loss_difference, self.newcomer_difference, self.loss_gap)
        return (*map(number, differences), percent(self.accuracy_gap), percent(self.test_accuracy))


@dataclass(frozen=True)
class Stability:
    """What was found, round by round; printed, it is a table.

    swaps: the samples that were replaced, one run each
    moments: what was found after each round that was looked at
    """

    swaps: tuple[Swap, ...]
    moments: tuple[Moment, ...]

    @property
    def last(self) -> Moment:
        """After the last round."""
        return self.moments[-1]

    def __str__(self) -> str:
        return table(("round", *HEAD), [(str(moment.round), *moment.cells()) for moment in self.moments])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        gaps = [{"loss_gap": moment.loss_gap, "accuracy_gap": moment.accuracy_gap} for moment in self.moments]
        rounds = [{**asdict(moment), **gap} for moment, gap in zip(self.moments, gaps, strict=True)]
        return {"swaps": [swap._asdict() for swap in self.swaps], "rounds": rounds}


@dataclass(frozen=True)
class Growth:
    """The same for one capacity after another; printed, it is a table of the last round."""

    found: tuple[tuple[Any, Stability], ...]

    def __str__(self) -> str:
        return table(("capacity", *HEAD), [(written(share), *each.last.cells()) for share, each in self.found])

    def plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [{"capacity": written(share), **each.plain()} for share, each in self.found]


def written(capacity: Any) -> str:
    """A capacity as a table shows it."""
    return number(capacity) if isinstance(capacity, float) else str(capacity)
