"""The command ``run``, and what the commands that run a method share: arguments, notices, and carrying out.

Notices are about settings that have no effect, or not the expected one. They are no mistakes: the run starts. The page
of a run has what its request can still give: its data and the initial states of its clients.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.cli import trust, user_files
from gossamer.cli.build import OPTIONS, assemble, recorded_data, whole_task
from gossamer.cli.build_method import SECURE, find_recipe, make_method
from gossamer.cli.common import command, flag_word, say, sentence, warn
from gossamer.cli.flags import arguments, flags
from gossamer.cli.request import CLIENTS, DATA, PARTS, PRIVACY, SECAGG, TASK, Request, expanded
from gossamer.cli.run_args import (
    RUN_VERB,
    Followed,
    Verb,
    follow_plan,
    method_help,
    own_flags,
    scan,
    share_fleet,
    unknown_flag,
    verb_help,
)
from gossamer.core.errors import ConfigError, GossamerError, Mistakes, RunError
from gossamer.core.random import key
from gossamer.core.sampler import Sampler
from gossamer.core.view import CHANGE
from gossamer.engines.control import Paused, pausing
from gossamer.engines.options import Options
from gossamer.engines.privacy import Privacy
from gossamer.engines.run import FederatedRun
from gossamer.engines.simulation import Simulation
from gossamer.methods.secure import secure_changes
from gossamer.runs.checkpoint import read_split
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import check_vacant, checkpoints, read_about, read_metrics
from gossamer.runs.report import Folder, page, tables
from gossamer.runs.report.base import Starts
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.scores import primary
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.targets import Target
from gossamer.runs.report.text import count, screen
from gossamer.runs.trackers import Tracking
from gossamer.tasks.batch_norms import static_norms
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task


class Asked(NamedTuple):
    """The arguments of a command that runs a method."""

    method: str  # the name of the method
    given: dict[str, Any]  # values by flag
    sets: tuple[str, ...]  # values of ``--set``
    mistakes: Mistakes  # the mistakes found so far
    followed: Followed = Followed()  # the plan of ``--plan``

    def request(self) -> Request:
        """Take the request out of the given values; the remaining flags are those of the method."""
        recipe = Mistakes().attempt(find_recipe, self.method)
        known = (Mistakes().attempt(flags, recipe, self.method) if recipe else None) or ()
        own = {flag.name for flag in known}  # a method with ``--clip`` of its own keeps that
        task, privacy = self.take((*TASK, "task", *PARTS)), self.take([name for name in PRIVACY if name not in own])
        if privacy and "dp" not in privacy:
            words = " and ".join(map(flag_word, privacy))
            self.mistakes.note(f"{words}: needs --dp central, distributed, local or example")
            privacy = {}
        secure = SECAGG if self.given.pop("secure", False) else None
        return Request(self.method, self.given, self.sets, **task, secure=secure, privacy=privacy)

    def take(self, names: Iterable[str]) -> dict[str, Any]:
        """Take values out of the given ones."""
        return {name: self.given.pop(name) for name in names if name in self.given}


def read_words(words: list[str], verb: Verb) -> Asked | None:
    """Read the arguments after a command that runs a method; print help and return ``None`` if it is asked for."""
    if words[:1] in (["-h"], ["--help"]):
        print(verb_help(screen(), verb))
        return None
    words = expanded(words)
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
    mistakes.note(*typed.mistakes, *share_fleet(typed.given, own or []))
    followed = follow_plan(typed.given, own or [], CLIENTS, 0)
    mistakes.note(*followed.mistakes)
    if own is not None:  # otherwise an unknown flag may be one of the method
        mistakes.note(*(unknown_flag(word, name, own, verb) for word in typed.strange))
    return Asked(name, typed.given, tuple(typed.sets), mistakes, followed)


def run(words: list[str]) -> int:
    """``gossamer run METHOD [flags]``."""
    asked = read_words(words, RUN_VERB)
    return start(asked) if asked else 0


class Checked(NamedTuple):
    """A run whose arguments are right."""

    simulation: Simulation  # the run
    request: Request  # its request
    notes: tuple[str, ...]  # what the user should know


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
    report = try_to_write_page(path, run.task.data)
    print(tables.closing(summarise(read_about(path), read_metrics(path))))
    print(f"\nrun in {path}: {command('show', path)}" + (f"\nreport in {report}" if report else ""))
    return 0


WARMUP = "warmup"
"""The flag of methods with a first phase, in rounds."""


def notices(request: Request, task: Task, rounds: int) -> Iterator[str]:
    """Yield a line for each notice about a checked request."""
    if request.statistics and not static_norms(task.model()):
        yield (
            f"--statistics {request.statistics}: the network has no static batch norms, so only the batch size of the "
            "evaluation changes"
        )
    bare = replace(request, sets=tuple(setting for setting in request.sets if not setting.startswith(SECURE)))
    if request.secure:
        _, changes = secure_changes(make_method(replace(bare, secure=None, privacy={})))
        yield from (f"--secure: {change}" for change in changes)
    if request.privacy:
        before, after = (make_method(replace(bare, privacy=given)) for given in ({}, request.privacy))
        for name in ("codec", "solver", "server", "sampler"):
            if (old := getattr(before, name)) != (new := getattr(after, name)):
                yield f"--dp {request.privacy['dp']}: {name}: {old} becomes {new}"
    known = {flag.name: flag for flag in flags(find_recipe(request.method), request.method)}
    if WARMUP in known:
        asked = arguments([known[WARMUP]], request.given, Mistakes()).get(WARMUP, known[WARMUP].default)
        if asked >= rounds:
            yield f"--warmup is {asked}, and the run has {count(rounds, 'round')}: no round follows the warm-up"


HOPELESS = 20.0
"""Length of the noise of a round's mean, divided by the clipping norm, from which a run hardly learns."""


def statement(privacy: Privacy, rounds: int) -> str:
    """Return a line on the privacy of a run that starts."""
    about = privacy.guarantee
    spent = f"epsilon {privacy.spent(rounds):.4g} after {count(rounds, 'round')}, delta {privacy.delta:.3g}"
    ends = "" if privacy.allows(rounds) else f"; the budget ends the run after round {privacy.most_rounds(0, rounds)}"
    seeded = "; the noise follows from the seed, and protects nobody: see --secure-noise"
    public = "" if privacy.secure_noise else seeded
    return f"differential privacy of each {about.unit}: {about.mechanism}; {about.sampling}: {spent}{ends}{public}"


def rate_notice(sampler: Sampler, options: Options, clients: int) -> Iterator[str]:
    """Yield a notice if a sampler with a rate of its own draws another number of clients than ``--per-round``."""
    asked, drawn = options.per_round, sampler.expected(clients, options.cohort(clients))
    if asked is not None and abs(asked - drawn) >= 1:
        yield f"--per-round {asked} has no effect: {sampler} draws {drawn:g} clients on average"


def too_noisy(given: dict[str, Any]) -> Iterator[str]:
    """Yield a line if the noise of a round's mean is so large that a run hardly learns.

    ``given`` are the flags of differential privacy, with the noise and the numbers of clients and parameters.
    """
    if "size" not in given or given["dp"] == "example":
        return
    clients = math.sqrt(given["per_round"]) if given["dp"] == "local" else given["per_round"]
    ratio = float(given["noise_multiplier"]) * math.sqrt(given["size"]) / clients
    if ratio > HOPELESS:
        yield (
            f"the noise of a round's mean is about {ratio:.3g} times as long as the longest update: such a run hardly "
            "learns; use more clients per round, a smaller network, or a larger --epsilon"
        )


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
    data = None
    with suppress(GossamerError, ModuleNotFoundError):  # it may not load any more
        data = None if "task" in named else recorded_data(about)
    starts = lambda: None if named else _starts(path, about, data)  # noqa: E731 - called if a report needs it
    return page.write(Folder(path, about["task"]["clients"], data, starts), targets=targets)


def try_to_write_page(path: Path, data: Data) -> Path | None:
    """Write the page of a run that has just ended. If that fails, print why; the run is not affected."""
    try:
        about = read_about(path)
        return page.write(Folder(path, about["task"]["clients"], data, lambda: _starts(path, about, data)))
    except Exception as error:
        print(f"gossamer: no report.html was written: {error}", file=sys.stderr)
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
