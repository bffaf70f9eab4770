"""The trackers of one run: they start and end with it, continue when it is resumed, and never stop it.

The run folder keeps ``trackers.json``: for each tracker the ID of its run, and the last round that was logged. A round
that is repeated after a crash is not logged again. A round that was saved and not logged is logged when the run is
resumed.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.core import files
from gossamer.core.errors import ConfigError, RunError, require
from gossamer.core.specs import unknown
from gossamer.runs import inside
from gossamer.runs.records import Record
from gossamer.runs.report.summary import summarise
from gossamer.runs.trackers import TRACKERS
from gossamer.runs.trackers.base import Status, Tracker, flat, hyperparameters, numbers

KEPT = "trackers.json"

Track = str | Tracker | Iterable[str | Tracker] | None
"""What ``track=`` takes: a name, several names separated by commas, a tracker, or a list of these."""


class Tracking:
    """The trackers of one run.

    Args:
        trackers: the trackers
        warn: how the failure of a tracker is reported
    """

    def __init__(self, trackers: Sequence[Tracker] = (), warn: Callable[[str], None] = warnings.warn) -> None:
        self.trackers, self.warn = list(trackers), warn
        self.kept: dict[str, dict[str, Any]] = {}
        self.path: Path | None = None

    @classmethod
    def of(cls, track: Track, warn: Callable[[str], None] = warnings.warn) -> "Tracking":
        """Return the tracking that ``track`` asks for; refuse unknown names and missing packages before any work."""
        asked = list(track) if isinstance(track, Iterable) and not isinstance(track, str) else [track] if track else []
        names = [name for each in asked for name in (names_in(each) if isinstance(each, str) else [each])]
        return cls([_made(name) for name in names], warn)

    @classmethod
    def resumed(cls, path: Path, warn: Callable[[str], None] = warnings.warn) -> "Tracking":
        """Return the tracking that a run was started with; trackers of the user's own are left out."""
        return cls.of([name for name in read_kept(path) if name in TRACKERS], warn)

    @classmethod
    def started(cls, track: Track, kept: Path | None, warn: Callable[[str], None] = warnings.warn) -> "Tracking":
        """Return the tracking that ``track`` asks for; without it, that of the folder ``kept`` which is resumed."""
        return cls.resumed(kept, warn) if kept is not None and track is None else cls.of(track, warn)

    @contextmanager
    def run(self, about: dict[str, Any], metrics: Sequence[Record], folder: Path | None) -> Iterator[None]:
        """Start all trackers, and end them with the status of the block's run; ``metrics`` are its records."""
        if not self.trackers:
            yield
            return
        self._start(about, folder)
        for record in metrics:  # those that were saved and not logged, before the run was interrupted
            self.log(record)
        status: Status = "failed"
        try:
            yield
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            summary = dict(flat(summarise(about, metrics)))
            for tracker in self.trackers:
                self._try(tracker, lambda tracker=tracker: tracker.finish(status, summary))  # type: ignore[misc]

    def log(self, record: Record) -> None:
        """Log a round with every tracker that has not logged it."""
        due = [tracker for tracker in self.trackers if self.kept[tracker.name]["round"] < record["round"]]
        if not due:
            return
        found = numbers(record)
        for tracker in due:
            self.kept[tracker.name]["round"] = record["round"]
            self._try(tracker, lambda tracker=tracker: tracker.log(record["round"], found))  # type: ignore[misc]
        self._keep()

    def _start(self, about: dict[str, Any], folder: Path | None) -> None:
        self.path = folder / KEPT if folder else None
        self.kept = read_kept(folder) if folder else {}
        configuration = hyperparameters(about)
        for tracker in self.trackers:
            before = self.kept.get(tracker.name, {"id": None, "round": 0})
            try:
                found = tracker.start(configuration, before["id"], folder, before["round"] + 1)
            except Exception as error:  # a tracker may fail in any way
                raise RunError(f"tracker {tracker.name} cannot be started: {_reason(error)}{tracker.advice}") from error
            self.kept[tracker.name] = {"id": found, "round": before["round"]}
        self._keep()

    def _keep(self) -> None:
        if self.path is not None:
            with files.on_failure(f"{self.path} was not written"):
                files.write(self.path, files.to_json(self.kept))

    def _try(self, tracker: Tracker, call: Callable[[], None]) -> None:
        """Call a tracker; if it fails, report it and continue without it."""
        try:
            call()
        except Exception as error:  # a tracker may fail in any way
            self.trackers = [other for other in self.trackers if other is not tracker]
            self.warn(f"tracker {tracker.name} failed, the run goes on without it: {_reason(error)}")


def names_in(text: str) -> list[str]:
    """Return the names in a text such as ``tensorboard,wandb``."""
    return [name for name in text.split(",") if name]


def check_names(text: str) -> None:
    """Refuse unknown names of trackers. Their packages need not be installed here."""
    require(*((name in TRACKERS, unknown("tracker", name, TRACKERS)) for name in names_in(text)))


def _made(name: object) -> Tracker:
    if isinstance(name, Tracker):
        return name
    if isinstance(name, type) and issubclass(name, Tracker):
        raise ConfigError(f"track: {name.__name__} is a class: write {name.__name__}()")
    if not isinstance(name, str):
        known = ", ".join(TRACKERS)
        raise ConfigError(f"track must be a Tracker or one of {known}, got a {type(name).__name__}")
    check_names(name)
    return TRACKERS[name]()


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def read_kept(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the ID and the last logged round of each tracker of a run."""
    try:
        return inside.read_json(folder, KEPT)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / KEPT} cannot be used: {error}: delete it to start new tracker runs") from error
