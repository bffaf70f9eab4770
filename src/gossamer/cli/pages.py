"""The page of a run, with what the run's request can still give: its data and the initial states of its clients."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.cli import user_files
from gossamer.cli.build import make_method, recorded_data, whole_task
from gossamer.cli.common import warn
from gossamer.cli.request import Request
from gossamer.core.errors import GossamerError
from gossamer.core.random import key
from gossamer.core.view import CHANGE
from gossamer.runs.checkpoint import read_split
from gossamer.runs.records import read_about
from gossamer.runs.report import Folder, page
from gossamer.runs.report.base import Starts
from gossamer.runs.report.targets import Target
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task


def write_page(path: Path, about: dict[str, Any], targets: Sequence[Target] = ()) -> Path:
    """Write the page of a recorded run and return its file; no user file is executed.

    Without its task the page has no classes, and without its method no initial masks. It shows what was spent until
    each of the ``targets`` was reached.
    """
    request = Request.recorded(about)
    named = request.files() if request else {}
    if named:
        files = ", ".join(dict.fromkeys(Path(spec.rpartition(":")[0]).name for spec in named.values()))
        warn(
            f"{files}: not executed, so the page may lack classes and masks; load_run(RUN).report() in Python adds them"
        )
    data, clients = None if "task" in named else _data_of(about), about["task"]["clients"]
    starts = lambda: None if named else _starts(path, about, data)  # noqa: E731 - called if a report needs it
    return page.write(Folder(path, clients, data, starts), targets=targets)


def try_to_write(path: Path, data: Data) -> Path | None:
    """Write the page of a run that has just ended. If that fails, print why; the run is not affected."""
    try:
        about = read_about(path)
        return page.write(Folder(path, about["task"]["clients"], data, lambda: _starts(path, about, data)))
    except Exception as error:
        print(f"gossamer: no report.html was written: {error}", file=sys.stderr)
        return None


def _data_of(about: dict[str, Any]) -> Data | None:
    """Return the data of a run, or ``None`` if it cannot be loaded any more."""
    try:
        return recorded_data(about)
    except (GossamerError, ModuleNotFoundError):
        return None


def _starts(path: Path, about: dict[str, Any], data: Data | None) -> Starts | None:
    """Return the initial states of the clients' views, or ``None`` if they cannot be made again."""
    request, seed = Request.recorded(about), about["options"]["seed"]
    if data is None or request is None:
        return None
    try:
        user_files.check_unchanged((about["request"] or {}).get("digests", {}))
        method, split = make_method(request), Split.from_tensors(read_split(path))
        named = (data, request.model, request.split or data.split, split, request.statistics)
        task = whole_task(request.task) if request.task else Task.of_data(*named)
        objective = Objective(task.adapted(method.adapter), "cpu", key(seed))
        view = method.bind(objective).training.view
    except (GossamerError, ModuleNotFoundError):
        return None
    return view.first if view.section == CHANGE and method.describe() == about["method"] else None
