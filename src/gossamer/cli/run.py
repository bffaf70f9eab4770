"""The command ``run``."""

from pathlib import Path

from gossamer.cli import trust
from gossamer.cli.build import OPTIONS, assemble
from gossamer.cli.common import say, warn
from gossamer.cli.launch import Asked, announce, carry_out, check_run_path, read, unused_paths
from gossamer.cli.notices import notices
from gossamer.cli.request import Request
from gossamer.cli.run_args import RUN_VERB
from gossamer.core.errors import RunError
from gossamer.engines.simulate import Simulation
from gossamer.runs.folder import RunFolder
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.scores import primary
from gossamer.runs.trackers.tracking import Tracking


def run(words: list[str]) -> int:
    """``gossamer run METHOD [flags]``."""
    asked = read(words, RUN_VERB)
    return _start(asked) if asked else 0


def _start(asked: Asked) -> int:
    """Check all arguments, then run."""
    options, out, init = asked.take(OPTIONS), asked.given.pop("out", None), asked.given.pop("init", None)
    tracking = asked.mistakes.attempt(Tracking.of, asked.given.pop("track", None), warn)
    request = asked.request()
    asked.mistakes.attempt(check_run_path, Path(out) if out is not None else next(unused_paths(request)))
    simulation = asked.mistakes.attempt(assemble, request, options, None, init)
    notes = asked.mistakes.attempt(asked.followed.check, simulation, asked.method) if simulation else None
    asked.mistakes.settle()
    assert simulation is not None  # or there were mistakes
    assert tracking is not None
    simulation.tracking = tracking
    trust.remember(request.plain()["digests"])
    for note in (*(notes or ()), *notices(request, simulation.task, simulation.options.rounds)):
        say(f"gossamer: {note}")
    return go(simulation, simulation.create(Path(out)) if out is not None else _create(simulation, request))


def _create(simulation: Simulation, request: Request) -> RunFolder:
    """Create a folder at the first unused path; another process may take a path just before us."""
    for path in unused_paths(request):
        try:
            return simulation.create(path)
        except RunError:
            if not path.exists():
                raise
    raise AssertionError("there is always another path")


def go(simulation: Simulation, folder: RunFolder) -> int:
    """Carry out a simulation in its folder, and return the exit status."""
    announce(folder, simulation)

    def work() -> None:
        with Progress(simulation.options.rounds, simulation.metrics, primary(simulation.about)) as progress:
            simulation.run(folder, progress)

    try:
        return carry_out(work, folder.path, simulation)
    finally:
        folder.close()
