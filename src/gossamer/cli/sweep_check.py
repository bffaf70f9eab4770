"""Check a sweep before anything starts: every point as ``gossamer run`` checks it, and all mistakes at once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.cli import trust, user_files
from gossamer.cli.build import find_recipe, keeping_data
from gossamer.cli.devices import PLAN
from gossamer.cli.flags import Flag, switches, value
from gossamer.cli.launch import read
from gossamer.cli.request import FLEET, PARTS, ROUNDS
from gossamer.cli.run import Checked, checked
from gossamer.cli.run_args import RUN, RUN_VERB, own_flags
from gossamer.core.errors import ConfigError, Mistakes, RunError
from gossamer.runs.sweeps import Sweep, SweepRun, label_of

SPECS = ("method", "task", *PARTS)
"""Settings that may name a user file, as ``file.py:name``."""

PATHS = ("data_dir", FLEET, PLAN, "init")
"""Settings that may be paths."""


def resolved(sweep: Sweep) -> Sweep:
    """Return a sweep whose files have full paths, so that it can be continued in another folder."""
    settings = {name: _full(name, text) for name, text in sweep.settings.items()}
    grid = {name: tuple(str(_full(name, text)) for text in texts) for name, texts in sweep.grid.items()}
    method = str(_full("method", sweep.method)) if sweep.method else None
    return replace(sweep, method=method, settings=settings, grid=grid)


def _full(name: str, text: Any) -> Any:
    """Return the value of a setting with the full path of its file, if it has one."""
    if name in SPECS and isinstance(text, str) and user_files.is_file(text):
        return user_files.full(text)
    return str(Path(text).resolve()) if name in PATHS and Path(text).exists() else text


def words_of(sweep: Sweep, run: SweepRun) -> list[str]:
    """Return the words after ``gossamer run`` that start a run, without its folder."""
    point = dict(run.point)
    method = point.pop("method", None) or sweep.method
    assert method is not None  # or the sweep was refused
    known = {flag.word: flag for flag in (*RUN, *own_flags(find_recipe(method), method))}
    settings = {**sweep.settings, **{name: text for name, text in point.items() if "." not in name}, "seed": run.seed}
    sets = [*sweep.sets, *(f"{name}={text}" for name, text in point.items() if "." in name)]
    words = [_word(name, text, known) for name, text in settings.items()]
    return [method, *words, *(f"--set={each}" for each in sets)]


def _word(name: str, text: Any, known: Mapping[str, Flag]) -> str:
    """Return a flag with its value: ``--lr=0.1``, or ``--no-coded``."""
    word = "--" + name.rstrip("_").replace("_", "-")
    if word in known and switches(known[word].kind) and str(text) not in ("none", "None"):
        given = value(word, text, bool)
        return next(each for each, implied in known[word].words.items() if implied is given)
    return f"{word}={text}"


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
    asked = read(words_of(sweep, run), RUN_VERB)
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
    for spec in dict.fromkeys(str(each) for each in named if each and user_files.is_file(str(each))):
        file = Path(spec.rpartition(":")[0])
        if spec not in sweep.digests or not file.is_absolute():
            raise RunError(f"{path}/sweep.json names {spec} without its full path and digest: nothing is executed")
        if not file.is_file():
            raise ConfigError(f"{path} was started with {file}, which is missing: restore it")
    user_files.check_unchanged(dict(sweep.digests))
    trust.require_trust(path, sweep.digests, trusted)
