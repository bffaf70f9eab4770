"""What the commands that run a method share: read the arguments, choose the folder, and carry out the run."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.cli import config, devices
from gossamer.cli.build import find_recipe
from gossamer.cli.common import command, say, sentence
from gossamer.cli.flags import flags
from gossamer.cli.pages import try_to_write
from gossamer.cli.request import CLIENTS, DATA, PARTS, PRIVACY, SECAGG, TASK, Request
from gossamer.cli.run_args import Verb, method_help, own_flags, scan, unknown_flag, verb_help
from gossamer.core.errors import ConfigError, Mistakes, RunError
from gossamer.engines.run import FederatedRun
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import check_vacant, checkpoints, read_about, read_metrics
from gossamer.runs.report import tables
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.text import count, screen


class Asked(NamedTuple):
    """The arguments of a command that runs a method.

    Args:
        method: the name of the method
        given: values by flag
        sets: values of ``--set``
        mistakes: the mistakes found so far
        followed: the plan of ``--plan``
    """

    method: str
    given: dict[str, Any]
    sets: tuple[str, ...]
    mistakes: Mistakes
    followed: devices.Followed = devices.Followed()

    def request(self) -> Request:
        """Take the request out of the given values; the remaining flags are those of the method."""
        task, privacy = self.take((*TASK, "task", *PARTS)), self.take(self._private())
        if privacy and "dp" not in privacy:
            words = " and ".join(f"--{name.replace('_', '-')}" for name in privacy)
            self.mistakes.note(f"{words}: needs --dp central, distributed, local or example")
            privacy = {}
        secure = SECAGG if self.given.pop("secure", False) else None
        return Request(self.method, self.given, self.sets, **task, secure=secure, privacy=privacy)

    def _private(self) -> list[str]:
        """Return the flags of differential privacy; a method with ``--clip`` of its own keeps that."""
        recipe = Mistakes().attempt(find_recipe, self.method)
        own = Mistakes().attempt(flags, recipe, self.method) if recipe else None
        return [name for name in PRIVACY if name not in {flag.name for flag in own or ()}]

    def take(self, names: Iterable[str]) -> dict[str, Any]:
        """Take values out of the given ones."""
        return {name: self.given.pop(name) for name in names if name in self.given}


def read(words: list[str], verb: Verb) -> Asked | None:
    """Read the arguments after a command that runs a method; print help and return ``None`` if it is asked for."""
    if words[:1] in (["-h"], ["--help"]):
        print(verb_help(screen(), verb))
        return None
    words = config.expanded(words)
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
    if own is not None:  # otherwise an unknown flag may be one of the method
        mistakes.note(*(unknown_flag(word, name, own, verb) for word in typed.strange))
    return Asked(name, typed.given, tuple(typed.sets), mistakes, followed)


def check_run_path(path: Path) -> None:
    """Refuse a path to which no run can be written, before any work is done."""
    check_ground(path)
    try:
        check_vacant(path)
    except RunError as error:
        raise ConfigError(f"--out {error}") from None


def check_ground(path: Path) -> None:
    """Refuse a path at which no folder can be made."""
    if path.resolve() == Path.cwd():
        raise ConfigError(f"--out {path}: the run needs a new folder: name one that does not exist yet")
    ground = next(parent for parent in (path, *path.parents) if parent.exists())
    if not ground.is_dir():
        raise ConfigError(f"--out {path}: {ground} is a file, not a folder: choose another path")
    if not os.access(ground, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {path}: {ground} is not writable: choose another path")


def unused_paths(request: Request) -> Iterator[Path]:
    """Yield unused paths: ``runs/fedavg-digits``, then ``runs/fedavg-digits-2`` and so on."""
    names = (request.method, request.task or request.data or DATA)
    stem, number = "-".join(name.rpartition(":")[2] for name in names), 1
    while True:
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists():
            yield path
        number += 1


def announce(folder: RunFolder, run: FederatedRun) -> None:
    """Print the warnings of the folder, and how many rounds the run has, or has left if it continues."""
    rounds = count(run.options.rounds - len(run.metrics), "round") + (" left" if run.metrics else "")
    for warning in folder.warnings:
        say(f"gossamer: {warning}")
    reason = f" after round {len(run.metrics)}: {run.stopped}" if run.stopped else ""
    more = f"; {command('resume', folder.path)} --rounds N gives it more rounds"
    say(f"{folder.path}: " + (f"already finished{reason}{more}" if run.finished else rounds))


def carry_out(work: Callable[[], None], path: Path, run: FederatedRun) -> int:
    """Do the remaining rounds of the run in ``path``; print its summary, or how to continue it."""
    try:
        work()
    except KeyboardInterrupt:
        kept = max(checkpoints(path), default=0)
        say(f"stopped after round {kept} of {run.options.rounds}; continue with: {command('resume', path)}")
        return 130
    except RunError as error:
        finished = f"finished rounds are kept in {path}"
        none = f"no round was finished: delete {path} to use the name again"
        raise RunError(f"{error}; {finished if checkpoints(path) else none}") from error
    report = try_to_write(path, run.task.data)
    print(tables.closing(summarise(read_about(path), read_metrics(path))))
    print(f"\nrun in {path}: {command('show', path)}" + (f"\nreport in {report}" if report else ""))
    return 0
