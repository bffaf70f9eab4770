"""Sweeps in Python: what ``gossamer sweep`` and ``gossamer compare`` do, with the results as objects."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.cli.reopen import load_run
from gossamer.cli.sweep import checked_sweep, opened
from gossamer.cli.sweep_schedule import carry_out
from gossamer.core.errors import ConfigError, Mistakes, RunError
from gossamer.core.extras import need
from gossamer.core.method import Method
from gossamer.engines.result import Result
from gossamer.methods import METHODS
from gossamer.runs.report import sweep_points
from gossamer.runs.report.sweep_points import Point, best_of, points_of, scores_of
from gossamer.runs.sweeps import Sweep, is_sweep

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class SweepResult:
    """A sweep: its points and its runs.

    Args:
        path: the folder of the sweep
        request: what was asked for
        failed: why runs failed, by name; empty for a sweep that was loaded
    """

    path: Path
    request: Sweep
    failed: Mapping[str, str]

    def __repr__(self) -> str:
        """Return the table, with the best point."""
        return sweep_points.compared(self.path, self.request)

    @cached_property
    def points(self) -> list[Point]:
        """The points, in the order of the grid, with what their runs have done."""
        return points_of(self.path, self.request)

    @property
    def best(self) -> Mapping[str, str] | None:
        """The values of the finished point that is best on held-out samples; none without such samples."""
        _, held = scores_of(self.points)
        found = best_of(self.points, held) if held else None
        return dict(found.values) if found else None

    @cached_property
    def runs(self) -> list[Result]:
        """The results of all runs that have started, seed after seed."""
        started = (self.path / run.name for run in self.request.runs if (self.path / run.name / "run.json").exists())
        return [load_run(path) for path in started]

    def frame(self) -> "DataFrame":
        """Return a pandas data frame with one row per run: its point, its seed, and the numbers of its summary."""
        rows = []
        for point in self.points:
            for run, standing in zip(point.runs, point.standings, strict=True):
                found = standing.summary if standing.about else {}
                numbers = {name: each for name, each in found.items() if isinstance(each, int | float)}
                rows.append({"run": run.name, **dict(run.point), **numbers, "seed": run.seed, "state": standing.state})
        return need("pandas").DataFrame(rows).set_index("run")

    def draw(self, picture: str | Path) -> Path:
        """Draw one curve per point, the mean over seeds with a band of one deviation, and return the file."""
        if not sweep_points.draw(self.path, self.request, Path(picture)):
            raise RunError(f"{self.path}: no run has started, or the runs have different metrics")
        return Path(picture)


def sweep(
    method: str | Callable[..., Method] | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path,
    seeds: int | Sequence[int] = 1,
    jobs: int | None = None,
    seconds: float | None = None,
    halving: int | str | None = None,
    cluster: str | None = None,
    progress: bool | None = None,
    sets: Sequence[str] = (),
    **settings: Any,
) -> SweepResult:
    """Run a method over a grid of settings and several seeds, or continue the sweep in ``out``.

    Runs are processes of their own, so that a method, a task or a part of yours is named by its file, as on the
    command line: ``task="mine.py:task"``.

    Args:
        method: a recipe or its name, or ``file.py:recipe``; none if the grid has ``method``
        grid: values by the name of a flag of ``gossamer run``, such as ``lr`` or ``per_round``, or by ``part.field``
        out: the folder of the sweep
        seeds: the number of seeds, or the seeds
        jobs: runs at once; none is one per core or, on GPUs, one per GPU
        seconds: start no run after this time
        halving: after each rung keep the best of this many points; ``"3:5"`` begins after 5 rounds. Needs ``validate``
        cluster: spread the runs over a Ray cluster: local, auto, or HOST:PORT; all nodes must share the folder
        progress: show the progress; by default it is shown
        sets: values as ``--set`` takes them, such as ``"solver.momentum=0.9"``
        settings: flags of ``gossamer run`` for all runs, such as ``rounds=20``
    """
    mistakes = Mistakes()
    if not isinstance(grid, Mapping) or any(
        isinstance(values, str) or not isinstance(values, Sequence) for values in grid.values()
    ):
        raise ConfigError(f'grid must map names to lists of values, such as {{"lr": [0.01, 0.1]}}, got {grid!r}')
    each = str(seeds) if isinstance(seeds, int) else "".join(f"{seed}," for seed in seeds)
    given = {name: _text(value) for name, value in settings.items()} | {"out": str(out), "seeds": each}
    limits = {"jobs": jobs, "seconds": seconds, "halving": halving, "cluster": cluster}
    given |= {name: str(value) for name, value in limits.items() if value is not None}
    values = {name.replace("-", "_"): tuple(str(_text(each)) for each in found) for name, found in grid.items()}
    mistakes.note(*(f"grid {name!r} has no values" for name, found in values.items() if not found))
    mistakes.settle()
    asked = checked_sweep(_name(method), values, given, sets, mistakes)
    with opened(asked):
        done = carry_out(asked.path, asked.sweep, asked.budget, progress)
    return SweepResult(asked.path, asked.sweep, done.failed)


def load_sweep(path: str | Path) -> SweepResult:
    """Return a recorded sweep."""
    if not is_sweep(Path(path)):
        raise ConfigError(f"{path} is not a sweep: there is no sweep.json in it")
    return SweepResult(Path(path), Sweep.read(Path(path)), {})


def _name(method: str | Callable[..., Method] | None) -> str | None:
    """Return the name of a method; refuse a recipe that has none."""
    if method is None or isinstance(method, str):
        return method
    name = getattr(method, "__name__", "").replace("_", "-")
    if name not in METHODS or METHODS[name] is not method:
        raise ConfigError('a recipe of yours is named by its file, as in "mine.py:recipe": runs are processes')
    return name


def _text(value: Any) -> Any:
    """Return a value as it is typed; booleans stay."""
    if isinstance(value, bool | str):
        return value
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)
