"""The commands that run: ``run`` and ``resume``."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossamer.cli import sources
from gossamer.cli.looking import open_run, sentence, write_report
from gossamer.cli.mistakes import Mistakes
from gossamer.cli.request import DATA, OPTIONS, TASK, Request, assemble, find_recipe
from gossamer.cli.words import method_help, own_flags, run_help, scan, unknown_flag
from gossamer.data import Split
from gossamer.engines.simulate import Simulation
from gossamer.errors import ConfigError, RunError
from gossamer.report import tables
from gossamer.report.progress import Progress
from gossamer.report.text import count, screen
from gossamer.runs import RunFolder, check_vacant, checkpoints, read_split

NO_METHOD = "name a method first: gossamer run METHOD [flags]; gossamer methods lists them"


def run(words: list[str]) -> int:
    """``gossamer run METHOD [flags]``."""
    if words[:1] in (["-h"], ["--help"]):
        print(run_help(screen()))
        return 0
    if not words or words[0].startswith("-"):
        raise ConfigError(NO_METHOD)
    name, *rest = words
    mistakes = Mistakes()
    recipe = mistakes.attempt(find_recipe, name)
    own = mistakes.attempt(own_flags, recipe, name) if recipe else None
    if recipe and own is not None and {"-h", "--help"} & set(rest):
        print(method_help(name, sentence(recipe), own, screen()))
        return 0
    typed = scan(rest, own or [])
    mistakes.note(*typed.mistakes)
    if own is not None:  # else a strange flag may well be one of the method's
        mistakes.note(*(unknown_flag(word, name, own) for word in typed.strange))
    return _start(name, typed.given, tuple(typed.sets), mistakes)


def _start(method: str, given: dict[str, Any], sets: tuple[str, ...], mistakes: Mistakes) -> int:
    """Check everything, then run."""
    task = {name: given.pop(name) for name in (*TASK, "task", "codec", "down") if name in given}
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    out = given.pop("out", None)
    request = Request(method, given, sets, **task)
    mistakes.attempt(check_place, Path(out) if out is not None else next(_places(request)))
    simulation = mistakes.attempt(assemble, request, options)
    mistakes.settle()
    assert simulation is not None  # or there were mistakes
    return _go(simulation, simulation.create(Path(out)) if out is not None else _create(simulation, request))


def check_place(path: Path) -> None:
    """Refuse a place where no run can be kept, before any work is done."""
    if path.resolve() == Path.cwd():
        raise ConfigError(f"--out {path}: the run gets a folder of its own: name one that is not there yet")
    ground = next(parent for parent in (path, *path.parents) if parent.exists())
    if not ground.is_dir():
        raise ConfigError(f"--out {path}: {ground} is a file, not a folder: choose another place")
    if not os.access(ground, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {path}: you may not write in {ground}: choose another place")
    try:
        check_vacant(path)
    except RunError as error:
        raise ConfigError(f"--out {error}") from None


def _places(request: Request) -> Iterator[Path]:
    """``runs/fedavg-digits``, then ``runs/fedavg-digits-2`` and so on, those that are free."""
    names = (request.method, request.task or request.data or DATA)
    stem, number = "-".join(name.rpartition(":")[2] for name in names), 1
    while True:
        place = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not place.exists():
            yield place
        number += 1


def _create(simulation: Simulation, request: Request) -> RunFolder:
    """A folder in the first free place; another run may take one just before us."""
    for place in _places(request):
        try:
            return simulation.create(place)
        except RunError:
            if not place.exists():
                raise
    raise AssertionError("there is always another place")


def resume(arguments: argparse.Namespace) -> int:
    """Take up a run where it stands."""
    path = Path(arguments.run)
    about = open_run(path)
    if about["request"] is None:
        raise ConfigError(f"{path} was started from Python: run its script again with resume=True")
    sources.check_unchanged(about["request"]["digests"])
    split = Split.from_tensors(read_split(path))
    simulation = assemble(Request.read(about["request"]), about["options"], split)
    return _go(simulation, simulation.restore(path))


def _go(simulation: Simulation, folder: RunFolder) -> int:
    path, rounds, done = folder.path, simulation.options.rounds, len(simulation.metrics)
    for warning in folder.warnings:
        _say(f"gossamer: {warning}")
    _say(f"{path}: " + (f"{count(rounds - done, 'round')} to go" if done < rounds else "finished already"))
    try:
        with Progress(rounds, simulation.metrics) as progress:
            result = simulation.run(folder, progress)
    except KeyboardInterrupt:
        kept = max(checkpoints(path), default=0)
        _say(f"stopped after round {kept} of {rounds}; go on with: {_command('resume', path)}")
        return 130
    except RunError as error:
        raise RunError(f"{error}; what was finished is kept in {path}") from error
    finally:
        folder.close()
    report = write_report(path, simulation.task.data)
    print(tables.closing(result.summary()))
    print(f"\nkept in {path}: {_command('show', path)}" + (f"\nas a page: {report}" if report else ""))
    return 0


def _command(name: str, path: Path) -> str:
    return f"gossamer {name} {shlex.quote(str(path))}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
