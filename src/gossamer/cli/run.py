"""The command ``run``."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gossamer.cli import trust
from gossamer.cli.build import OPTIONS, assemble
from gossamer.cli.common import say, warn
from gossamer.cli.launch import Asked, announce, carry_out, check_run_path, read, unused_paths
from gossamer.cli.notices import notices
from gossamer.cli.private import rate_notice, statement, too_noisy
from gossamer.cli.request import Request
from gossamer.cli.run_args import RUN_VERB
from gossamer.core.errors import RunError
from gossamer.engines.control import Paused, pausing
from gossamer.engines.simulation import Simulation
from gossamer.runs.folder import RunFolder
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.scores import primary
from gossamer.runs.trackers import Tracking


def run(words: list[str]) -> int:
    """``gossamer run METHOD [flags]``."""
    asked = read(words, RUN_VERB)
    return start(asked) if asked else 0


class Checked(NamedTuple):
    """A run whose arguments are right.

    Args:
        simulation: the run
        request: its request
        notes: what the user should know
    """

    simulation: Simulation
    request: Request
    notes: tuple[str, ...]


def start(asked: Asked, pause: int | None = None) -> int:
    """Check all arguments, then run; ``pause`` is that of ``go``."""
    out = asked.given.pop("out", None)
    made = checked(asked, lambda request: check_run_path(Path(out) if out is not None else next(unused_paths(request))))
    trust.remember(made.request.plain()["digests"])
    for note in made.notes:
        say(f"gossamer: {note}")
    simulation = made.simulation
    folder = simulation.create(Path(out)) if out is not None else _create(simulation, made.request)
    return go(simulation, folder, pause)


def checked(asked: Asked, check_path: Callable[[Request], None] = lambda request: None) -> Checked:
    """Return the run of checked arguments; raise ``ConfigError`` with all mistakes."""
    options, init = asked.take(OPTIONS), asked.given.pop("init", None)
    tracking = asked.mistakes.attempt(Tracking.of, asked.given.pop("track", None), warn)
    request = asked.request()
    asked.mistakes.attempt(check_path, request)
    simulation = asked.mistakes.attempt(assemble, request, options, None, init)
    notes = asked.mistakes.attempt(asked.followed.check, simulation, asked.method) if simulation else None
    asked.mistakes.settle()
    assert simulation is not None  # or there were mistakes
    assert tracking is not None
    simulation.tracking = tracking
    task, chosen = simulation.task, simulation.options
    request = replace(request, privacy=simulation.about["request"]["privacy"])  # with the noise
    told = (*(notes or ()), *notices(request, task, chosen.rounds))
    told = (*told, *rate_notice(simulation.method.sampler, chosen, task.clients))
    if simulation.privacy:
        told = (*told, statement(simulation.privacy, chosen.rounds), *too_noisy(request.privacy))
    return Checked(simulation, request, told)


def _create(simulation: Simulation, request: Request) -> RunFolder:
    """Create a folder at the first unused path; another process may take a path just before us."""
    for path in unused_paths(request):
        try:
            return simulation.create(path)
        except RunError:
            if not path.exists():
                raise
    raise AssertionError("there is always another path")


def go(simulation: Simulation, folder: RunFolder, pause: int | None = None) -> int:
    """Carry out a simulation in its folder, and return the exit status.

    Args:
        simulation: the run
        folder: its folder
        pause: interrupt the run after this round, as Ctrl-C does; resuming it continues it
    """
    announce(folder, simulation)

    def work() -> None:
        shown = Progress(simulation.options.rounds, simulation.metrics, primary(simulation.about))
        with suppress(Paused), shown as progress:
            simulation.run(folder, progress if pause is None else pausing(progress, pause))

    try:
        return carry_out(work, folder.path, simulation)
    finally:
        folder.close()
