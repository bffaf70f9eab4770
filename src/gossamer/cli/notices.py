"""Notices about settings that have no effect, or not the expected one. They are no mistakes: the run starts."""

from collections.abc import Iterator

from gossamer.cli.build import find_recipe
from gossamer.cli.flags import arguments, flags
from gossamer.cli.request import Request
from gossamer.core.errors import Mistakes
from gossamer.runs.report.text import count
from gossamer.tasks.static_norms import static_norms
from gossamer.tasks.task import Task

WARMUP = "warmup"
"""The flag of methods with a first phase, in rounds."""


def notices(request: Request, task: Task, rounds: int) -> Iterator[str]:
    """Yield a line for each notice about a checked request."""
    if request.statistics and not static_norms(task.model()):
        yield (
            f"--statistics {request.statistics}: the network has no static batch norms, so only the batch size of the "
            "evaluation changes"
        )
    known = {flag.name: flag for flag in flags(find_recipe(request.method), request.method)}
    if WARMUP in known:
        asked = arguments([known[WARMUP]], request.given, Mistakes()).get(WARMUP, known[WARMUP].default)
        if asked >= rounds:
            yield f"--warmup is {asked}, and the run has {count(rounds, 'round')}: no round follows the warm-up"
