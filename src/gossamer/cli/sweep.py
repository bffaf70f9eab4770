"""The command ``sweep``: a method over a grid of settings and several seeds.

    gossamer sweep fedavg --grid lr=0.01,0.03,0.1 --grid codec=dense,eden:1 --seeds 3 --validate 10 --out sweeps/x

All flags of ``gossamer run`` hold for every run. ``--grid NAME=V,V`` names any flag of ``run`` or of the method,
``method`` itself, or ``part.field`` as ``--set`` does. Values are separated by commas; a value that contains a comma is
put in double quotes, as in a spec. Given again, ``--grid NAME=V`` adds values. Every point is checked before anything
starts. ``gossamer.runs.sweeps`` describes the folder, and ``sweep_schedule`` the order of the work.

The same command, ``gossamer sweep --resume DIR`` and ``gossamer resume DIR`` continue a sweep. Another request for the
same folder is refused.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.cli import trust, user_files
from gossamer.cli.build import keeping_data
from gossamer.cli.build_method import find_recipe
from gossamer.cli.common import TRUST, Parser, command, say
from gossamer.cli.flags import Flag, value
from gossamer.cli.request import FLEET, PARTS, ROUNDS, expanded
from gossamer.cli.run import Checked, check_ground, checked, read_words
from gossamer.cli.run_args import PLAN, RUN, RUN_VERB, WHERE, Verb, own_flags, scan, unknown_flag
from gossamer.cli.sweep_schedule import Budget, carry_out, words_of
from gossamer.core.errors import ConfigError, Mistakes, RunError, require
from gossamer.core.extras import MissingExtraError
from gossamer.engines.options import known_cluster
from gossamer.runs.records import check_vacant
from gossamer.runs.report.sweep_points import compared
from gossamer.runs.sweeps import Halving, Sweep, SweepRun, is_sweep, label_of

GRID = Flag("grid", str, "", "values of a flag, of method or of part.field, one run each; may be repeated", "NAME=V,V")
OWN = [
    Flag("seeds", str, "one: that of --seed", "number of seeds from --seed on, or the seeds: 0,4,7", "N|S,S"),
    Flag("halving", str, "", "stop hopeless points: keep the best 1/N after each rung; needs --validate", "N[:ROUNDS]"),
    Flag("jobs", int, "one per core, or per GPU", "runs at once", "N"),
    Flag("seconds", float, "", "start no run after this time", "S"),
    Flag("cluster", str, "", "spread the runs over a Ray cluster, whose nodes must share the folder", WHERE),
    Flag("out", str, "required", "folder of the sweep; continued if it is this sweep's", "DIR"),
]

ELSEWHERE = ("out", "cluster", "actors")
"""Flags of ``run`` that a sweep has for itself, or not at all: a run of a sweep is on one machine."""
VERB = Verb("gossamer sweep METHOD --grid NAME=V,V", [*OWN, *(flag for flag in RUN if flag.name not in ELSEWHERE)])


def sweep(words: list[str]) -> int:
    """``gossamer sweep METHOD --grid NAME=V,V [flags]``."""
    if {"-h", "--help"} & set(words):
        named = [word for word in words[:1] if not word.startswith("-")]
        read_words([*named, "--help"], VERB._replace(flags=[GRID, *VERB.flags]))
        return 0
    if words[:1] == ["--resume"]:
        return resume(words[1:])
    words = expanded(words)
    method = words[0] if words and not words[0].startswith("-") else None
    rest, grids, mistakes = _take_grids(words[1:] if method else words)
    grid = grid_of(grids, method, mistakes)
    methods = (method,) if method else grid.get("method", ())
    known = [flag for name in methods for flag in mistakes.attempt(_own_flags, name) or ()]
    typed = scan(rest, known, VERB)
    mistakes.note(*typed.mistakes, *(unknown_flag(word, methods[0], known, VERB) for word in typed.strange if methods))
    asked = checked_sweep(method, grid, typed.given, typed.sets, mistakes)
    with opened(asked):
        return go(asked.path, asked.sweep, asked.budget)


@contextmanager
def opened(asked: "Asked") -> Iterator[None]:
    """Make the folder of a sweep; refuse one that has another sweep. What is refused later leaves no new folder."""
    if not is_sweep(asked.path):
        before = asked.path.exists()
        asked.sweep.create(asked.path)
        try:
            yield
        except (ConfigError, MissingExtraError):
            if not any((asked.path / run.name).exists() for run in asked.sweep.runs):
                Sweep.discard(asked.path, folder=not before)
            raise
        return
    if found := asked.sweep.differences(Sweep.read(asked.path)):
        way_out = f"choose another folder, or continue that one with {command('resume', asked.path)}"
        raise ConfigError(f"--out {asked.path} has another sweep: {'; '.join(found)}: {way_out}")
    yield


def resume(words: list[str]) -> int:
    """``gossamer resume SWEEP``, and ``gossamer sweep --resume SWEEP``: do what is left of a sweep."""
    parser = Parser(prog="gossamer resume", description="Continue a sweep: what is finished stays as it is.")
    parser.add_argument("sweep", metavar="SWEEP", help="folder of the sweep")
    parser.add_argument("--jobs", metavar="N", help="runs at once (default: one per core, or per GPU)")
    parser.add_argument("--seconds", metavar="S", help="start no run after this time")
    parser.add_argument("--cluster", metavar=WHERE, help="spread the runs over a Ray cluster")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    given = parser.parse_args(words)
    path, mistakes = Path(given.sweep), Mistakes()
    found = Sweep.read(path)
    limits = {name: text for name in ("jobs", "seconds", "cluster") if (text := getattr(given, name)) is not None}
    budget = mistakes.attempt(budget_of, limits)
    mistakes.settle()
    assert budget is not None  # or there were mistakes
    check_files(path, found, given.trust)
    check(found)
    return go(path, found, budget)


def go(path: Path, found: Sweep, budget: Budget) -> int:
    """Do what is left of a checked sweep, print its table, and return the exit status."""
    try:
        ended = carry_out(path, found, budget)
    except KeyboardInterrupt:
        say(f"stopped; continue with: {command('resume', path)}")
        return 130
    print(compared(path, found))
    print(f"\nsweep in {path}: {command('compare', path)}")
    if ended.left:
        say(f"{len(ended.left)} of {len(found.runs)} runs are left: {command('resume', path)} continues them")
    if ended.failed:
        reasons = "\n".join(f"  - {name}: {reason}" for name, reason in ended.failed.items())
        raise RunError(f"{len(ended.failed)} of {len(found.runs)} runs failed; {command('resume', path)}\n{reasons}")
    return 0


class Asked(NamedTuple):
    """The arguments of a new sweep."""

    sweep: Sweep  # the request
    path: Path  # its folder
    budget: Budget  # what the sweep may use


def _own_flags(method: str) -> list[Flag]:
    return own_flags(find_recipe(method), method, VERB)


def checked_sweep(
    method: str | None,
    grid: Mapping[str, tuple[str, ...]],
    settings: Mapping[str, Any],
    sets: Sequence[str],
    mistakes: Mistakes,
) -> Asked:
    """Return the sweep of a method, a grid and other flags, once all points are checked."""
    given = dict(settings)
    own = {flag.name: given.pop(flag.name) for flag in OWN if flag.name in given}
    seeds = mistakes.attempt(seeds_of, str(own.get("seeds", "1")), str(given.pop("seed", "0"))) or (0,)
    halving = mistakes.attempt(value, "--halving", own.get("halving"), Halving) if "halving" in own else None
    budget = mistakes.attempt(budget_of, own)
    path = Path(own.get("out", ""))
    mistakes.attempt(check_path, own.get("out"))
    if method is None and "method" not in grid:
        mistakes.note(f"name a method first: {VERB.command} [flags]; gossamer methods lists them")
    again = [name for name, values in grid.items() if len(set(values)) < len(values)]
    mistakes.note(*(f"--grid {name}: a value is given twice" for name in again))
    twice = [name for name in given if name.rstrip("_") in grid or name in grid]
    mistakes.note(*(f"--grid {name}: the flag was given for all runs too: leave one out" for name in twice))
    # Files have full paths, so that the sweep can be continued in another folder.
    given = {name: _full(name, text) for name, text in given.items()}
    grid = {name: tuple(str(_full(name, text)) for text in texts) for name, texts in grid.items()}
    method = str(_full("method", method)) if method else None
    made = Sweep(method, given, tuple(sets), grid, seeds, halving)
    if method is not None or "method" in grid:
        made = mistakes.attempt(check, made) or made
    mistakes.settle()
    assert budget is not None  # or there were mistakes
    return Asked(made, path, budget)


def check_path(out: str | None) -> None:
    """Refuse a folder to which no sweep can be written; one that has a sweep is compared later."""
    if out is None:
        raise ConfigError("--out must be given: the folder of the sweep, such as --out sweeps/x")
    check_ground(Path(out))
    if not is_sweep(Path(out)):
        try:
            check_vacant(Path(out))
        except RunError:
            raise ConfigError(f"--out {out} is not empty, and is no sweep: choose another folder") from None


def _take_grids(words: Sequence[str]) -> tuple[list[str], list[str], Mistakes]:
    """Return the other words, the values of ``--grid``, and mistakes."""
    rest, grids, mistakes = list[str](), list[str](), Mistakes()
    waiting = list(words)
    while waiting:
        word, equals, text = waiting.pop(0).partition("=")
        if word != GRID.word:
            rest.append(word + equals + text)
        elif equals or (waiting and not waiting[0].startswith("--")):
            grids.append(text if equals else waiting.pop(0))
        else:
            mistakes.note(f"--grid needs a value: {GRID.usage}")
    return rest, grids, mistakes


def grid_of(texts: Sequence[str], method: str | None, mistakes: Mistakes) -> dict[str, tuple[str, ...]]:
    """Return the values of a grid by name; what is wrong is noted and left out.

    >>> grid_of(['lr=0.1,1', 'split=iid,"dirichlet:0.3,min_samples=10"', "lr=3"], "fedavg", Mistakes())
    {'lr': ('0.1', '1', '3'), 'split': ('iid', 'dirichlet:0.3,min_samples=10')}
    """
    found = dict[str, tuple[str, ...]]()
    for text in texts:
        name, equals, rest = text.partition("=")
        name = name.strip().removeprefix("--")
        name = name if "." in name else name.replace("-", "_")
        values = tuple(each.strip() for each in next(csv.reader([rest]), []))
        why = REFUSED.get(name)
        if not equals or not name or not values or not all(values):
            why = "write it as NAME=V,V, such as lr=0.01,0.1"
        elif name == "method" and method is not None:
            why = f"the sweep is of {method}: leave out one of them"
        elif again := set(values) & set(found.get(name, ())) or {each for each in values if values.count(each) > 1}:
            why = f"{', '.join(sorted(again))} is given twice"
        if why:
            mistakes.note(f"--grid {text}: {why}")
        else:
            found[name] = (*found.get(name, ()), *values)
    return found


REFUSED = {
    "seed": "use --seeds N, or --seeds S,S: results are means over seeds",
    "out": "each run has a folder in that of the sweep",
    "config": "give one --config for all runs",
    "actors": "a run of a sweep is on one machine; --cluster spreads the runs",
    **dict.fromkeys(
        ("seeds", "jobs", "seconds", "halving", "cluster", "grid"), "it belongs to the sweep, not to a run"
    ),
}
"""Names that are no settings of a run, and what to do."""


def seeds_of(text: str, first: str) -> tuple[int, ...]:
    """Return the seeds of a number of them, from the first one on, or of a list.

    >>> seeds_of("3", "5"), seeds_of("0,4", "0")
    ((5, 6, 7), (0, 4))
    """
    start: int = value("--seed", first, int)
    given: tuple[int, ...] = value("--seeds", text, tuple[int, ...])
    seeds = given if "," in text or "+" in text else tuple(range(start, start + given[0])) if given else ()
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds must be a number from 1, or different seeds such as 0,4,7, got {text!r}")
    return seeds


def budget_of(given: dict[str, Any]) -> Budget:
    """Return what a sweep may use."""
    jobs = value("--jobs", given["jobs"], int) if "jobs" in given else None
    seconds = value("--seconds", given["seconds"], float) if "seconds" in given else inf
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    if not seconds > 0:
        raise ConfigError(f"--seconds must be a positive number, got {seconds}")
    cluster: str | None = value("--cluster", given["cluster"], str | None) if "cluster" in given else None
    if cluster is not None:
        require(known_cluster(cluster))
    return Budget(jobs, seconds, cluster)


SPECS = ("method", "task", *PARTS)
"""Settings that may name a user file, as ``file.py:name``."""

PATHS = ("data_dir", FLEET, PLAN, "init")
"""Settings that may be paths."""


def _full(name: str, text: Any) -> Any:
    """Return the value of a setting with the full path of its file, if it has one."""
    if name in SPECS and isinstance(text, str) and user_files.is_file(text):
        return user_files.full(text)
    return str(Path(text).resolve()) if name in PATHS and Path(text).exists() else text


def check(sweep: Sweep) -> Sweep:
    """Check every point of a sweep with its first seed; return the sweep with the digests of its user files.

    A mistake that all points share is named once; others with their points.
    """
    mistakes, digests = dict[str, list[str]](), dict[str, str]()
    points = [run for run in sweep.runs if run.seed == sweep.seeds[0]]
    with keeping_data():
        for run in points:
            found = Mistakes()
            made = found.attempt(_point, sweep, run)
            for mistake in found.found:
                mistakes.setdefault(mistake, []).append(label_of(run.point))
            digests |= made.request.plain()["digests"] if made else {}
            del made  # on a GPU it holds memory
    lines = [text if len(at) == len(points) else f"{_some(at)}: {text}" for text, at in mistakes.items()]
    lines += [] if sweep.halving is None else _halving(sweep)
    if lines:
        raise ConfigError(*lines)
    trust.remember(digests)
    return replace(sweep, digests=digests)


def _point(sweep: Sweep, run: SweepRun) -> Checked:
    asked = read_words(words_of(sweep, run), RUN_VERB)
    assert asked is not None  # no word asks for help
    return checked(asked)


def _some(labels: Sequence[str], most: int = 3) -> str:
    more = f" and {len(labels) - most} more points" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more


def _halving(sweep: Sweep) -> list[str]:
    """Return the mistakes in successive halving."""
    assert sweep.halving is not None
    names = {"rounds": ROUNDS, "eval_every": 1}
    found = [f"--grid {name}: points with different {name} cannot be halved" for name in names if name in sweep.grid]
    found += [f"--grid {name}: halving needs the same held-out samples" for name in ("validate",) if name in sweep.grid]
    if "validate" not in {**sweep.settings, **sweep.grid}:
        found.append("--halving needs --validate N: points are compared on held-out samples, never on the test set")
    if found:
        return found
    rounds, every = (int(sweep.settings.get(name, usual)) for name, usual in names.items())
    if (sweep.halving.first or 0) >= rounds:
        return [f"--halving: the first rung, {sweep.halving.first}, must be below --rounds, {rounds}"]
    first = sweep.halving.rungs(len(sweep.points), rounds)[0]
    if first < every:
        return [f"--halving: no round is evaluated before the first rung, {first}: lower --eval-every, or use N:ROUNDS"]
    return []


def check_files(path: Path, sweep: Sweep, trusted: bool) -> None:
    """Refuse a recorded sweep whose user files are missing, were changed, or may not be executed."""
    named = [sweep.method, *(sweep.settings.get(name) for name in SPECS)]
    named += [text for name in SPECS for text in sweep.grid.get(name, ())]
    specs = dict.fromkeys(str(each) for each in named if each and user_files.is_file(str(each)))
    trust.check_files(path, "sweep.json", specs, sweep.digests, trusted)
