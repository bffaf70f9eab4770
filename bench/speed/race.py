"""Measure systems in turns, round by round. All others are stopped meanwhile.

A machine that is slow for a minute then slows all systems alike. The first round of each is not timed: it fills caches
and compiles programs; its time is reported separately. A round is unclean if other processes used more than a sixth of
a core. A median is over clean rounds if there are at least three.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import meter
from common.lane import SELDOM, LaneError
from lanes import OFTEN, Lane, System

CLEAN = 0.15
ENOUGH = 3

Say = Callable[[str], None]


@dataclass
class Outcome:
    """Measurements of a system on one workload, or the reason for their absence."""

    name: str
    family: str
    version: str = ""
    note: str = ""
    first_seconds: float = 0.0
    prepare_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    memory_first: int = 0
    memory: int = 0
    accuracy: float = 0.0
    skipped: str = ""

    @property
    def clean(self) -> list[float]:
        """Seconds of the rounds without other load."""
        return [seconds for seconds, others in zip(self.seconds, self.others, strict=True) if others < CLEAN]

    @property
    def median(self) -> float:
        """Median seconds per round."""
        return statistics.median(self.clean if len(self.clean) >= ENOUGH else self.seconds)

    @property
    def peak(self) -> int:
        """Peak memory of all rounds in bytes."""
        return max(self.memory_first, self.memory)

    def store(self) -> dict[str, Any]:
        """Return a JSON value; ``read`` is its inverse."""
        return {
            **asdict(self),
            "seconds": [round(s, 4) for s in self.seconds],
            "others": [round(o, 3) for o in self.others],
            "first_seconds": round(self.first_seconds, 3),
            "prepare_seconds": round(self.prepare_seconds, 3),
        }

    @classmethod
    def read(cls, stored: dict[str, Any]) -> "Outcome":
        """Return the outcome that ``store`` stored."""
        return cls(**stored)


@dataclass
class Runner:
    """A lane and its measurements."""

    lane: Lane
    outcome: Outcome

    def attempt(self, work: Callable[[], None], say: Say) -> None:
        """Run a step of the lane; a failure removes the system from the race."""
        if self.outcome.skipped:
            return
        try:
            self.lane.wake()
            work()
            self.lane.stop()
        except LaneError as error:
            self.outcome.skipped = str(error)
            say(f"{self.outcome.name}: skipped: {error}")
            self.lane.close()

    def start(self) -> None:
        """Load everything, and run the first round."""
        self.outcome.version = self.lane.ready()
        first = self.lane.round(OFTEN)
        self.outcome.first_seconds, self.outcome.prepare_seconds = first.seconds, first.prepare
        self.outcome.note, self.outcome.memory_first = first.note, first.memory

    def turn(self, patience: float) -> None:
        """Run one timed round."""
        meter.wait_for_quiet(patience, CLEAN)
        took = self.lane.round(SELDOM)
        self.outcome.seconds.append(took.seconds)
        self.outcome.others.append(took.others)
        self.outcome.memory = max(self.outcome.memory, took.memory)

    def finish(self) -> None:
        """Request the accuracy."""
        self.outcome.accuracy = self.lane.accuracy()


def race(
    systems: Sequence[System], workload: str, data: str, rounds: int, patience: float, limit: float, say: Say
) -> list[Outcome]:
    """Run all systems on one workload, with ``rounds`` timed rounds each."""
    runners: list[Runner] = []
    try:
        for system in systems:
            say(f"{workload}: starting {system.name}")
            setting = {"workload": workload, "data": data, "rounds": rounds + 1}
            runners.append(Runner(Lane(system, setting, limit), Outcome(system.name, system.family)))
            runners[-1].attempt(runners[-1].start, say)
        for number in range(rounds):
            say(f"{workload}: round {number + 1} of {rounds}")
            for runner in runners:
                runner.attempt(lambda runner=runner: runner.turn(patience), say)  # type: ignore[misc]
        for runner in runners:
            runner.attempt(runner.finish, say)
    finally:
        for runner in runners:
            if not runner.outcome.skipped:
                runner.lane.close()
    return [runner.outcome for runner in runners]
