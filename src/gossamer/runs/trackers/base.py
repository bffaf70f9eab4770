"""The interface of trackers, and what they are told about a run.

A complete tracker that prints:

    class Printed(Tracker):
        def start(self, about, id, folder, first):
            return id or "1"

        def log(self, round, numbers):
            print(round, numbers["accuracy"])

        def finish(self, status, summary):
            print(status)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

from gossamer.core.extras import need
from gossamer.runs.records import COUNTS, SUMS, Record
from gossamer.runs.report.timeline import task_counts

Status = Literal["finished", "interrupted", "failed"]

HIDDEN = ("request", "format", "rates", "tensors")
"""Entries of ``run.json`` that are no hyperparameters."""


class Tracker(ABC):
    """Receives a run's configuration, the numbers of each round, and the summary.

    An exception in ``start`` ends the run before its first round. After that, an exception is reported once, and the
    run continues without this tracker.
    """

    advice: ClassVar[str] = ""
    """What to do if it cannot be started: the end of the message, such as ``: log in``."""

    @property
    def name(self) -> str:
        """The name under which the run folder keeps the ID of the tracker's run."""
        return type(self).__name__

    @abstractmethod
    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Start a run of the tracker, or continue one, and return its ID.

        Args:
            about: the run's configuration, flat: ``task/data``, ``options/seed``, ``method/solver``
            id: the ID that ``start`` returned before the run was interrupted; none for a new run
            folder: the run folder; none if the run is kept in memory
            first: the first round that will be logged
        """

    @abstractmethod
    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round, flat: ``accuracy``, ``bytes_up``, ``seconds/train``."""

    @abstractmethod
    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """End the tracker's run.

        Args:
            status: finished, interrupted (Ctrl-C), or failed
            summary: the summary that ``gossamer show --json`` prints, flat
        """


class PackageTracker(Tracker):
    """Base of trackers that write with another package; its import name is also the tracker's name."""

    package: ClassVar[str]

    def __init__(self) -> None:
        need(self.package)

    @property
    def name(self) -> str:
        """The name of the package."""
        return self.package


def flat(nest: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a nest with their paths; lists and ``None`` are left out.

    >>> dict(flat({"a": {"b": 1, "c": [2]}, "d": "x", "e": None}))
    {'a/b': 1, 'd': 'x'}
    """
    for name, value in nest.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, str | bool | Real):
            yield prefix + name, value


def hyperparameters(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run for trackers, from the contents of its ``run.json``."""
    return dict(flat({name: value for name, value in about.items() if name not in HIDDEN}))


def numbers(record: Record) -> dict[str, float]:
    """Return the numbers of a round for trackers.

    >>> numbers({"round": 1, "loss": 0.5, "bytes_up": {"codec.values": 8, "overhead": 2}, "clients": [0, 3]})
    {'loss': 0.5, 'bytes_up/codec.values': 8.0, 'bytes_up/overhead': 2.0, 'bytes_up': 10.0, 'clients': 2.0}
    """
    found = {path: value for path, value in flat(record) if not isinstance(value, str) and path != "round"}
    found |= {name: sum(record[name].values()) for name in SUMS if name in record}
    found |= {name: len(record[name]) for name in COUNTS if name in record}
    found |= {f"tasks/{outcome}": number for outcome, number in task_counts(record).items()}
    return {path: float(value) for path, value in found.items()}
