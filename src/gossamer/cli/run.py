"""The commands that run: ``run`` and ``resume``."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.cli import devices
from gossamer.cli import user_files as sources
from gossamer.cli.inspect import open_run, sentence, write_report
from gossamer.cli.request import CLIENTS, DATA, OPTIONS, PARTS, TASK, Request, assemble, find_recipe
from gossamer.cli.run_args import RUN_VERB, Verb, method_help, own_flags, scan, unknown_flag, verb_help
from gossamer.core.errors import ConfigError, Mistakes, RunError
from gossamer.engines.run import FederatedRun
from gossamer.engines.simulate import Simulation
from gossamer.runs.folder import RunFolder, check_vacant, checkpoints, read_about, read_metrics, read_split
from gossamer.runs.report import tables
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.text import count, screen
from gossamer.runs.summary import summarise
from gossamer.tasks.data.partition import Split


def run(words: list[str]) -> int:
    """``gossamer run METHOD [flags]``."""
    asked = read(words, RUN_VERB)
    return _start(asked) if asked else 0


class Asked(NamedTuple):
    """What was typed: a method, values by flag, settings, what was wrong with that, and the plan that is followed."""

    method: str
    given: dict[str, Any]
    sets: tuple[str, ...]
    mistakes: Mistakes
    followed: devices.Followed = devices.Followed()

    def request(self) -> Request:
        """The part that says what is run, taken out of what was given; flags that are left are the method's."""
        task = self.take((*TASK, "task", *PARTS))
        return Request(self.method, self.given, self.sets, **task)

    def take(self, names: Iterable[str]) -> dict[str, Any]:
        """Some of what was given."""
        return {name: self.given.pop(name) for name in names if name in self.given}


def read(words: list[str], verb: Verb) -> Asked | None:
    """What was typed after a command that runs a method; ``None``, where that was a question for help."""
    if words[:1] in (["-h"], ["--help"]):
        print(verb_help(screen(), verb))
        return None
    if not words or words[0].startswith("-"):
        raise ConfigError(f"name a method first: {verb.command} [flags]; gossamer methods lists them")
    name, *rest = words
    mistakes = Mistakes()
    recipe = mistakes.attempt(find_recipe, name)
    own = mistakes.attempt(own_flags, recipe, name, verb) if recipe else None
    if recipe and own is not None and {"-h", "--help"} & set(rest):
        print(method_help(name, sentence(recipe), own, screen(), verb))
        return None
    typed = scan(rest, own or [], verb)
    mistakes.note(*typed.mistakes, *devices.share(typed.given, own or []))
    followed = devices.follow(typed.given, own or [], CLIENTS, 0)
    mistakes.note(*followed.mistakes)
    if own is not None:  # else a strange flag may well be one of the method's
        mistakes.note(*(unknown_flag(word, name, own, verb) for word in typed.strange))
    return Asked(name, typed.given, tuple(typed.sets), mistakes, followed)


def _start(asked: Asked) -> int:
    """Check everything, then run."""
    options, out = asked.take(OPTIONS), asked.given.pop("out", None)
    request = asked.request()
    asked.mistakes.attempt(check_place, Path(out) if out is not None else next(places(request)))
    simulation = asked.mistakes.attempt(assemble, request, options)
    notes = asked.mistakes.attempt(asked.followed.check, simulation, asked.method) if simulation else None
    asked.mistakes.settle()
    assert simulation is not None  # or there were mistakes
    for note in notes or ():
        say(f"gossamer: {note}")
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


def places(request: Request) -> Iterator[Path]:
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
    for place in places(request):
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
    if "deployment" in about:
        from gossamer.cli import deploy as deploying  # Flower is an extra

        return deploying.resume(path, about)
    if about["request"] is None:
        raise ConfigError(f"{path} was started from Python: run its script again with resume=True")
    sources.check_unchanged(about["request"]["digests"])
    split = Split.from_tensors(read_split(path))
    simulation = assemble(Request.read(about["request"]), about["options"], split)
    return _go(simulation, simulation.restore(path))


def _go(simulation: Simulation, folder: RunFolder) -> int:
    announce(folder, simulation)

    def work() -> None:
        with Progress(simulation.options.rounds, simulation.metrics) as progress:
            simulation.run(folder, progress)

    try:
        return carry_out(work, folder.path, simulation)
    finally:
        folder.close()


def announce(folder: RunFolder, run: FederatedRun) -> None:
    """Say where a run stands, before it goes on."""
    left = run.options.rounds - len(run.metrics)
    for warning in folder.warnings:
        say(f"gossamer: {warning}")
    say(f"{folder.path}: " + (f"{count(left, 'round')} to go" if left else "finished already"))


def carry_out(work: Callable[[], None], path: Path, run: FederatedRun) -> int:
    """Do what is left of a run that is kept in ``path``, and show what it came to, or how to go on with it."""
    try:
        work()
    except KeyboardInterrupt:
        kept = max(checkpoints(path), default=0)
        say(f"stopped after round {kept} of {run.options.rounds}; go on with: {command('resume', path)}")
        return 130
    except RunError as error:
        raise RunError(f"{error}; what was finished is kept in {path}") from error
    report = write_report(path, run.task.data)
    print(tables.closing(summarise(read_about(path), read_metrics(path))))
    print(f"\nkept in {path}: {command('show', path)}" + (f"\nas a page: {report}" if report else ""))
    return 0


def command(name: str, path: Path) -> str:
    """What to type to do something with a run."""
    return f"gossamer {name} {shlex.quote(str(path))}"


def say(line: str) -> None:
    """Tell how it goes, apart from what is asked for."""
    print(line, file=sys.stderr, flush=True)
