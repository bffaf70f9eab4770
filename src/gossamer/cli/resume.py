"""The command ``resume``."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossamer.cli import sweep, trust
from gossamer.cli.build import whole_task
from gossamer.cli.build_method import find_recipe, one_method
from gossamer.cli.common import TRUST, Parser, open_run, warn
from gossamer.cli.flags import flags, value
from gossamer.cli.reopen import check_files, reopened
from gossamer.cli.request import Request
from gossamer.cli.run import go
from gossamer.cli.run_args import CONFIG, RUN, SET, WHERE
from gossamer.core.errors import ConfigError, Mistakes
from gossamer.engines.control import Until
from gossamer.runs.sweeps import is_sweep
from gossamer.tasks.precision import FLOAT32

CONTROL = {"rounds": int, "until": Until, "patience": int}
"""The options that a run may change when it is continued, and their types."""

PLACE = {"cluster": str | None, "actors": int | None}
"""The options that say where a run is computed, and their types; a run may be moved when it is continued."""

KEPT = [flag for flag in (*RUN, SET, CONFIG) if flag.name not in (*CONTROL, *PLACE, "task")]
"""The flags of ``run`` whose values a run keeps."""


def resume(words: list[str]) -> int:
    """``gossamer resume RUN [flags]``; RUN may be a sweep."""
    if sweeps := [word for word in words if not word.startswith("-") and is_sweep(Path(word))]:
        return sweep.resume([sweeps[0], *(word for word in words if word != sweeps[0])])
    says = "Continue an interrupted run, or give a finished run more rounds."
    says += " RUN may be a sweep; then the flags are --jobs N, --seconds S, --cluster and --trust."
    parser = Parser(prog="gossamer resume", description=says)
    parser.add_argument("run", metavar="RUN", help="folder of the run, or of a sweep")
    parser.add_argument("--rounds", metavar="R", help="new number of rounds; finished rounds stay as they are")
    parser.add_argument("--until", metavar="METRIC=X", help="new target that ends the run")
    parser.add_argument("--patience", metavar="N", help="new number of evaluations without improvement")
    parser.add_argument("--cluster", metavar=f"{WHERE}|none", help="another Ray cluster, or none: without Ray")
    parser.add_argument("--actors", metavar="N", help="another number of Ray actors on each node")
    parser.add_argument("--method", metavar="FILE.py:NAME", help="the method of a run from Python")
    parser.add_argument("--task", metavar="FILE.py:NAME", help="the task of a run from Python")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    for flag in KEPT:  # read, to be refused with a reason
        parser.add_argument(flag.word, help=argparse.SUPPRESS)
    asked, strange = parser.parse_known_args(words)
    path, mistakes = Path(asked.run), Mistakes()
    about = mistakes.attempt(open_run, path)
    if about:
        check_files(path, about, asked.trust)  # first of all: the flags of a method are in its file
    own = [word.partition("=")[0] for word in strange] if about else []
    mistakes.note(*_kept([flag.word for flag in KEPT if getattr(asked, flag.name) is not None], own, about or {}))
    if strange and not mistakes.found:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    typed = {name: text for name in (*CONTROL, *PLACE) if (text := getattr(asked, name)) is not None}
    kinds = {**CONTROL, **PLACE}
    given = {name: mistakes.attempt(value, f"--{name}", text, kinds[name]) for name, text in typed.items()}
    control, place = ({name: given[name] for name in names if name in given} for names in (CONTROL, PLACE))
    method = mistakes.attempt(one_method, asked.method) if asked.method else None
    task = mistakes.attempt(whole_task, asked.task) if asked.task else None
    mistakes.settle()
    assert about is not None  # or there were mistakes
    if "deployment" in about:
        from gossamer.cli import deploy  # Flower is an extra

        if place:
            raise ConfigError(f"--{' and --'.join(place)}: a deployment trains on its nodes")
        trust.require_trust(path, trust.app_digest(path), asked.trust)
        return deploy.resume(path, about, control)
    simulation = reopened(path, about, method, task, warn, trusted=asked.trust, place=place)
    return go(simulation, simulation.reopen(path, **control))


def _kept(given: Sequence[str], strange: Sequence[str], about: dict[str, Any]) -> Iterator[str]:
    """Yield a mistake for each flag of ``run`` or of the run's method: their values are those of the start."""
    request = Request.recorded(about) if about else None
    recipe = Mistakes().attempt(find_recipe, request.method) if request else None
    own = {word for flag in flags(recipe, request.method) for word in flag.words} if recipe and request else set()
    options = {"precision": FLOAT32, "checkpointing": False} | about.get("options", {})  # defaults are not recorded
    for word in (*given, *(word for word in strange if word in own)):
        was = options.get(word[2:].replace("-", "_"))
        yield (
            f"{word}: a run keeps the value that it was started with{'' if was is None else f', {was}'}; "
            "resume can change --rounds, --until, --patience, --cluster and --actors"
        )
