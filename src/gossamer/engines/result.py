"""The result of a run: its records, models, plots and tables."""

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import nn

from gossamer.core import files
from gossamer.core.binding import BoundMethod
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.extras import need
from gossamer.core.fields import problem
from gossamer.core.view import CHANGE
from gossamer.runs.records import Record
from gossamer.runs.report import Folder, page, series, tables
from gossamer.runs.report.anomalies import anomalies_of
from gossamer.runs.report.scores import primary, scores_of
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.to_target import Reached, targets_for, to_target
from gossamer.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class TrainedRun(Protocol):
    """What a result needs of a run: its method and task, and its models."""

    about: dict[str, Any]
    metrics: list[Record]
    method: BoundMethod
    task: Task

    def module(self) -> nn.Module:
        """Return the network with the global model."""
        ...

    def client_module(self, client: int) -> nn.Module:
        """Return the network that a client deploys."""
        ...


class Result:
    """A finished run: its metrics by round and its final models.

    Args:
        about: content of ``run.json``
        metrics: one record per round
        path: the run folder; none if the run was kept in memory
        get_run: returns the run itself, with the states of server and clients; called when a model is needed
    """

    def __init__(
        self, about: dict[str, Any], metrics: list[Record], path: Path | None, get_run: Callable[[], TrainedRun]
    ) -> None:
        self.about, self.metrics, self.path, self._get_run = about, metrics, path, get_run

    @classmethod
    def of(cls, run: TrainedRun, path: Path | None) -> "Result":
        """Return the result of a run."""
        return cls(run.about, run.metrics, path, lambda: run)

    def __repr__(self) -> str:
        where = f", {self.path}" if self.path else ""
        return f"<Result: {tables.headline(self.summary())}{where}>"

    @cached_property
    def run(self) -> TrainedRun:
        """The run itself, with the states of server and clients."""
        return self._get_run()

    @cached_property
    def model(self) -> nn.Module:
        """The trained global network, in evaluation mode."""
        if not (self.run.method.shared or self.run.method.pooled):
            name = tables.method(self.summary())
            raise RunError(f"{name} trains one model per client and no global model: use result.client_model(i)")
        return self.run.module().eval()

    def client_model(self, client: int) -> nn.Module:
        """Return the network that a client deploys, in evaluation mode."""
        if text := problem("client", client, int):
            raise ConfigError(f"client {text}: clients have numbers, in the order of the data that you gave")
        if not 0 <= client < (clients := self.about["task"]["clients"]):
            raise ConfigError(f"there is no client {client}: clients are numbered 0 to {clients - 1}")
        return self.run.client_module(client).eval()

    def summary(self) -> dict[str, Any]:
        """Return the summary that ``gossamer show --json`` prints."""
        return summarise(self.about, self.metrics)

    @property
    def stopped(self) -> str | None:
        """The reason why the run ended before its last round; none if it did not."""
        reason: str | None = self.summary()["stopped"]
        return reason

    @property
    def score(self) -> float:
        """The primary metric on the test set, after the last evaluated round; NaN if it is not finite."""
        return self.metric(primary(self.about).name)

    def metric(self, name: str) -> float:
        """Return a metric after the last evaluated round, such as ``rmse`` or ``personal_rmse``; NaN if not finite."""
        known = [entry for score in scores_of(self.about["task"]) for entry in score.entries]
        if name not in ("loss", *known):
            raise RunError(f"the run has no metric {name}: it has loss, {', '.join(known)}")
        value = self.summary()[name]
        return math.nan if value is None else float(value)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test set after the last evaluated round, if the task measures it."""
        return self.metric("accuracy")

    def to_target(self, target: str | None = None, /, **metrics: float) -> Reached:
        """Return what was spent until a target was reached: the round, virtual time, joules and bytes.

        The target is one metric and its value, ``result.to_target(accuracy=0.85)``, or a text such as ``"loss<0.3"``.
        It is reached in the first evaluated round that reaches it. Without one, ``round`` and all costs are none.
        """
        if (target is None) == (not metrics):
            raise ConfigError('to_target takes one target, such as accuracy=0.85 or "loss<0.3"')
        targets = targets_for(metrics if target is None else target, [self.about])
        if len(targets) > 1:
            raise ConfigError(f"to_target takes one target, got {len(targets)}")
        return to_target(targets[0], self.about, self.metrics)

    @property
    def anomalies(self) -> list[dict[str, Any]]:
        """The clients whose uploads were far from their cohort's, the one with most such rounds first.

        Each has its ``client`` number, the ``rounds`` in which it was named, the ``reasons`` (``norm`` and ``weight``:
        the largest factor; ``direction``: the smallest cosine), and whether it is ``excluded``.
        """
        return anomalies_of(self.metrics)

    def plot(self, *metrics: str, by: Literal["round", "bytes", "seconds", "time", "joules"] = "round") -> "Figure":
        """Return a matplotlib figure of metrics, which a notebook displays.

        Args:
            metrics: names of numbers in the records; by default the primary metric
            by: what is on the x axis: rounds, or so far: bytes sent by clients, seconds, virtual time, or joules
        """
        return series.figure(self.metrics, metrics or (primary(self.about).name,), by)

    def frame(self) -> "DataFrame":
        """Return a pandas data frame with one row per round and one column per number of the records."""
        rows = [series.numbers(record) for record in self.metrics]
        return need("pandas").DataFrame(rows).set_index("round")

    def report(self, file: str | Path | None = None) -> Path:
        """Write the HTML page of the run, and return its path.

        Args:
            file: the page; by default ``report.html`` in the run folder
        """
        if file is None and self.path is None:
            raise ConfigError('this run was kept in memory: name the page, as in result.report("report.html")')
        run, clients = self.run, self.about["task"]["clients"]
        view = run.method.training.view
        if self.path is not None:
            folder = Folder(self.path, clients, run.task.data, lambda: view.first if view.section == CHANGE else None)
            return page.write(folder, Path(file) if file else None)
        drawn = page.render(Path(str(file)).stem, self.about, self.metrics, run.task.split, run.task.data)
        with files.on_failure(f"{file} was not written"):
            files.write(Path(str(file)), drawn.encode())
        return Path(str(file))
