"""Measure the systems on one workload in turns, in blocks of a few rounds.

All systems train the same clients in the same rounds. The first round of each is not timed: with the construction, it
is the preparation, in which programs are compiled. Rounds are timed until a number of them, or a number of seconds, is
reached.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from common.lane import LaneError

from board.lane import Lane, System

BLOCK = 5
ENOUGH = 2
"""Rounds that are timed in any case."""

Say = Callable[[str], None]


@dataclass
class Outcome:
    """Measurements of a system on one workload, or the reason for their absence."""

    name: str
    family: str
    precision: str = ""
    version: str = ""
    note: str = ""
    ready_seconds: float = 0.0
    first_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    skipped: str = ""

    @property
    def median(self) -> float:
        """Median seconds of a timed round."""
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        """Mean seconds of a timed round."""
        return statistics.fmean(self.seconds)

    @property
    def prepare(self) -> float:
        """Seconds before the first round could have begun: the construction, and what the first round took longer."""
        return self.ready_seconds + max(0.0, self.first_seconds - self.median)

    def total(self, rounds: int, scale: float = 1.0) -> float:
        """Return the seconds of a whole run: the preparation, and the mean round times the number of rounds."""
        return self.prepare + rounds * scale * self.mean

    def store(self) -> dict[str, Any]:
        """Return a JSON value; ``read`` is its inverse."""
        return {**asdict(self), "seconds": [round(s, 5) for s in self.seconds]}

    @classmethod
    def read(cls, stored: dict[str, Any]) -> "Outcome":
        """Return the outcome that ``store`` stored."""
        return cls(**stored)


@dataclass(frozen=True)
class Runner:
    """A lane and its measurements on one workload."""

    lane: Lane
    outcome: Outcome
    setting: dict[str, Any]

    def attempt(self, work: Callable[[], None], say: Say) -> None:
        """Run a step; a failure removes the system from this workload, and its process is replaced."""
        if self.outcome.skipped:
            return
        try:
            work()
        except LaneError as error:
            self.outcome.skipped = str(error)
            say(f"{self.outcome.name}: skipped: {error}")
            self.lane.restart()

    def start(self) -> None:
        """Load the workload, and run the first round."""
        self.outcome.version = self.lane.about()["version"]
        self.outcome.ready_seconds = self.lane.load(self.setting)
        self.outcome.first_seconds = self._round()

    def _round(self) -> float:
        took = self.lane.round()
        self.outcome.note, self.outcome.memory = took["note"], max(self.outcome.memory, took["memory"])
        return float(took["seconds"])

    def block(self, rounds: int, limit: float) -> None:
        """Time some rounds."""
        for _ in range(BLOCK):
            if not self.finished(rounds, limit):
                self.outcome.seconds.append(self._round())

    def finished(self, rounds: int, limit: float) -> bool:
        """Return whether enough rounds are timed, or the system is left out."""
        taken = self.outcome.seconds
        long = len(taken) >= min(ENOUGH, rounds) and sum(taken) >= limit
        return bool(self.outcome.skipped) or len(taken) >= rounds or long


def empty(system: System) -> Outcome:
    """Return the outcome of a system before it is measured."""
    return Outcome(system.name, system.family, system.options.get("precision", ""))


def race(lanes: Sequence[Lane], setting: dict[str, Any], rounds: int, limit: float, say: Say) -> list[Outcome]:
    """Run all systems on one workload."""
    runners = [Runner(lane, empty(lane.system), setting) for lane in lanes]
    for runner in runners:
        say(f"{setting['workload']}: {runner.outcome.name} prepares")
        runner.attempt(runner.start, say)
    while waiting := [runner for runner in runners if not runner.finished(rounds, limit)]:
        for runner in waiting:
            runner.attempt(lambda runner=runner: runner.block(rounds, limit), say)  # type: ignore[misc]
    for runner in runners:
        runner.attempt(runner.lane.end, say)
    return [runner.outcome for runner in runners]
