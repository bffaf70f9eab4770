"""Trackers: a run's configuration, numbers and summary, in TensorBoard, MLflow or Weights & Biases.

A complete tracker that prints:

    class Printed(Tracker):
        def start(self, about, id, folder, first):
            return id or "1"

        def log(self, round, numbers):
            print(round, numbers["accuracy"])

        def finish(self, status, summary):
            print(status)

``Tracking`` are the trackers of one run: they start and end with it, continue when it is resumed, and never stop it.
The run folder keeps ``trackers.json``: for each tracker the ID of its run, and the last round that was logged. A round
that is repeated after a crash is not logged again. A round that was saved and not logged is logged when the run is
resumed.
"""

import json
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gossamer.core import files
from gossamer.core.errors import ConfigError, RunError, require
from gossamer.core.extras import need
from gossamer.core.specs import unknown
from gossamer.runs import inside
from gossamer.runs.records import COUNTS, SUMS, Record
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.timeline import task_counts

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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


class TensorBoard(PackageTracker):
    """Writes event files with ``torch.utils.tensorboard``."""

    package: ClassVar[str] = "tensorboard"
    writer: "SummaryWriter"
    about: Mapping[str, Any]

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Open an event file; earlier events of the rounds from ``first`` on are discarded when they are read."""
        from torch.utils.tensorboard import SummaryWriter

        aside = Path("runs") / self.package / time.strftime("%Y%m%d-%H%M%S")
        path = folder / self.package if folder else _unused(aside)
        self.about, self.writer = about, SummaryWriter(str(path), purge_step=first if id else None)
        self.writer.add_text("run", f"```json\n{json.dumps(dict(about), indent=1)}\n```", first - 1)
        return str(path)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write one scalar per number, and flush."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Write the hyperparameters with the summary's numbers, and the status; close the file."""
        from torch.utils.tensorboard.summary import hparams

        final = {f"final/{name}": float(value) for name, value in summary.items() if not isinstance(value, str)}
        events: Any = self.writer._get_file_writer()  # add_hparams would write to another folder
        for event in hparams(dict(self.about), final):
            events.add_summary(event)
        for name, value in final.items():
            self.writer.add_scalar(name, value, int(summary["rounds"]))
        self.writer.add_text("status", status, int(summary["rounds"]))
        self.writer.close()


def _unused(path: Path) -> Path:
    """Return a path that does not exist: the same second may start two runs."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


EXPERIMENT = "gossamer"
"""The experiment if MLFLOW_EXPERIMENT_NAME is not set."""

ROUND = "round"
ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
LONGEST = 500
"""Characters of a parameter that every store of MLflow accepts."""


class MLflow(PackageTracker):
    """Logs with ``mlflow.MlflowClient``, so that it does not touch a run that the user has opened."""

    package: ClassVar[str] = "mlflow"
    client: Any
    id: str
    last: int

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Create a run with the configuration as parameters, or continue one."""
        from mlflow import MlflowClient

        self.client, self.last = MlflowClient(), 0
        if id is None:
            from mlflow.entities import Param

            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
            found = self.client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self.client.create_experiment(experiment)
            self.id = self.client.create_run(number, run_name=folder.name if folder else None).info.run_id
            self.client.log_batch(self.id, params=[Param(_named(k), str(v)[:LONGEST]) for k, v in about.items()])
        else:
            known = self.client.get_run(id).data.metrics
            self.id, self.last = id, int(known.get(ROUND, 0))
            self.client.update_run(id, status="RUNNING")
        return self.id

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log all numbers in one batch; a round that the run already has is left as it is."""
        if round > self.last:
            self._log({**numbers, ROUND: round}, round)
            self.last = round

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(_named(k), float(v), now, step) for k, v in numbers.items()])

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Log the numbers of the summary as ``final/...``, and end the run."""
        final = {f"final/{name}": value for name, value in summary.items() if not isinstance(value, str)}
        self._log(final, int(summary["rounds"]))
        self.client.set_terminated(self.id, ENDS[status])


def _named(name: str) -> str:
    """Return a name that MLflow accepts."""
    return re.sub(r"[^\w\-./ ]", "_", name)


PROJECT = "gossamer"
"""The project if WANDB_PROJECT is not set."""

EXITS = {"finished": 0, "interrupted": 255, "failed": 1}
"""Exit codes by which W&B shows a run as finished, killed or failed."""


class Wandb(PackageTracker):
    """Logs to a run of its own, so that it does not touch a run that the user has opened."""

    package: ClassVar[str] = "wandb"
    advice: ClassVar[str] = ": run wandb login, or set WANDB_MODE=offline"
    run: Any

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        """Create a run with the configuration, or continue one."""
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name if folder else None,
            id=id,
            resume="allow" if id else None,
            config=dict(about),
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        found: str = self.run.id
        return found

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log all numbers at the step of this round; W&B ignores a step that it already has."""
        self.run.log(dict(numbers), step=round, commit=True)  # else it is kept until the next round

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Set the summary as ``final/...``, and end the run."""
        self.run.summary.update({f"final/{name}": value for name, value in summary.items()} | {"status": status})
        self.run.finish(exit_code=EXITS[status])


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": Wandb}
"""Trackers by the name that the command line uses."""

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
