"""Notices about settings that have no effect, or not the expected one. They are no mistakes: the run starts."""

from collections.abc import Iterator
from dataclasses import replace

from gossamer.cli.build import SECURE, find_recipe, make_method
from gossamer.cli.flags import arguments, flags
from gossamer.cli.private import replaced
from gossamer.cli.request import Request
from gossamer.core.errors import Mistakes
from gossamer.methods.secure import secure_changes
from gossamer.runs.report.text import count
from gossamer.tasks.batch_norms import static_norms
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
    if request.secure:
        _, changes = secure_changes(
            make_method(replace(request, secure=None, privacy={}, sets=_without_secure(request)))
        )
        yield from (f"--secure: {change}" for change in changes)
    if request.privacy:
        sets = _without_secure(request)
        plain, private = (make_method(replace(request, privacy=given, sets=sets)) for given in ({}, request.privacy))
        yield from replaced(plain, private, request.privacy["dp"])
    known = {flag.name: flag for flag in flags(find_recipe(request.method), request.method)}
    if WARMUP in known:
        asked = arguments([known[WARMUP]], request.given, Mistakes()).get(WARMUP, known[WARMUP].default)
        if asked >= rounds:
            yield f"--warmup is {asked}, and the run has {count(rounds, 'round')}: no round follows the warm-up"


def _without_secure(request: Request) -> tuple[str, ...]:
    """Return the settings of a request that are not about secure aggregation."""
    return tuple(setting for setting in request.sets if not setting.startswith(SECURE))
