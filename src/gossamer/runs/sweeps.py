"""A sweep is a folder of runs: one for each point of a grid and each seed.

    sweep.json        the request: method, settings, grid, seeds, halving; and digests of the user files that it names
    RUN/              a run folder, such as ``lr=0.1_codec=eden-1_seed=0``
    logs/RUN.log      what a run printed
    sweep.lock        held while a process works in the folder

The runs follow from the request, so the folder holds no other list of them. What a run still has to do follows from
its own folder. So a sweep is continued after any interruption: finished runs stay, interrupted ones resume, and missing
ones start.

Successive halving (https://arxiv.org/abs/1502.07943) stops hopeless points early. After the rounds of each rung it
keeps the best ``1 / eta`` of the points, by the mean over seeds of the primary metric on held-out training samples, in
the last evaluated round up to the rung. Equal points are kept in the order of the grid, and a point with a run that has
no such value comes last. The decision depends on these records alone: neither on the order in which runs ended, nor on
later rounds. A stopped run is an ordinary run, which ``gossamer resume`` continues.

This module needs no torch.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.core import files
from gossamer.core.errors import RunError
from gossamer.runs import inside
from gossamer.runs.records import Record

FORMAT = 1
"""The format of ``sweep.json``."""

ABOUT = "sweep.json"
LOCK = "sweep.lock"
LOGS = "logs"

LONGEST = 120
"""The longest name of a run folder, in characters."""


class Halving(NamedTuple):
    """Successive halving.

    Args:
        eta: after each rung, one of ``eta`` points goes on
        first: the rounds of the first rung; none chooses it such that about ``eta`` points reach the last rung at most
    """

    eta: int
    first: int | None = None

    @classmethod
    def of_text(cls, text: str) -> "Halving":
        """Read ``3`` or ``3:5``; raise ``ValueError`` with what was expected."""
        found = re.fullmatch(r"([1-9][0-9]*)(?::([1-9][0-9]*))?", text.strip())
        if not found or int(found[1]) < 2:
            raise ValueError("a number from 2 and, after a colon, the rounds of the first rung, such as 3 or 3:5")
        return cls(int(found[1]), int(found[2]) if found[2] else None)

    @property
    def possible(self) -> bool:
        """Whether both numbers are possible ones."""
        first = self.first is None or (type(self.first) is int and self.first >= 1)
        return first and type(self.eta) is int and self.eta >= 2

    def rungs(self, points: int, rounds: int) -> list[int]:
        """Return the rounds after which points are compared; the last one is that of the whole run.

        >>> Halving(3).rungs(9, 27), Halving(3).rungs(4, 20), Halving(2, 5).rungs(9, 30)
        ([3, 9, 27], [7, 20], [5, 10, 20, 30])
        """
        if self.first:
            early = [self.first]
            while early[-1] * self.eta < rounds:
                early.append(early[-1] * self.eta)
            return [*(rung for rung in early if rung < rounds), rounds]
        steps = next(n for n in range(points) if self.eta ** (n + 1) > points)
        return sorted({-(-rounds // self.eta**step) for step in range(steps + 1)})

    def kept(self, values: Sequence[float | None], better: str) -> list[int]:
        """Return which points go on, in order, given the value of each; none is worse than any number.

        >>> Halving(2).kept([0.5, None, 0.9, 0.5], "higher")
        [0, 2]
        """
        sign = -1 if better == "higher" else 1
        order = sorted(range(len(values)), key=lambda i: (values[i] is None, sign * (values[i] or 0.0), i))
        return sorted(order[: -(-len(values) // self.eta)])


class SweepRun(NamedTuple):
    """One run of a sweep.

    Args:
        name: its folder in that of the sweep
        point: its values of the grid, by name
        seed: its seed
    """

    name: str
    point: tuple[tuple[str, str], ...]
    seed: int

    @property
    def label(self) -> str:
        """The point as text: ``lr=0.1 codec=eden:1``."""
        return label_of(self.point)


def label_of(point: Sequence[tuple[str, str]]) -> str:
    """Return a point as text; files of the user without their folders."""
    return " ".join(f"{name}={short(value)}" for name, value in point) or "all runs"


def short(value: str) -> str:
    """Return a value without folders: ``mine.py:Codec``."""
    return value.rpartition("/")[2] if ".py" in value else value


@dataclass(frozen=True)
class Sweep:
    """The request of a sweep.

    Args:
        method: the method; none if the grid has methods
        settings: values of the flags that all runs share, by name
        sets: values of ``--set`` that all runs share
        grid: values by name, in the order in which they were given
        seeds: the seeds of each point
        halving: successive halving, if any
        digests: the digests of the user files that the request names
    """

    method: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    halving: Halving | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def points(self) -> list[tuple[tuple[str, str], ...]]:
        """All combinations of the values of the grid; the last name changes fastest."""
        return [tuple(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    @property
    def runs(self) -> list[SweepRun]:
        """All runs: every point with the first seed, then every point with the second one, and so on."""
        taken: dict[str, int] = {}
        found = []
        for seed in self.seeds:
            for point in self.points:
                # The name of a folder, without signs that shells, archives or other systems read.
                pieces = (f"{name}={short(value)}" for name, value in (*point, ("seed", str(seed))))
                name = "_".join(re.sub(r"[^A-Za-z0-9.=+-]+", "-", piece) for piece in pieces)
                name = name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{files.digest_of(name.encode())[:8]}"
                taken[name] = taken.get(name, 0) + 1
                found.append(SweepRun(f"{name}-{taken[name]}" if taken[name] > 1 else name, point, seed))
        return found

    def plain(self) -> dict[str, Any]:
        """Return the request for ``sweep.json``."""
        halving = self.halving._asdict() if self.halving else None
        return json.loads(json.dumps({**asdict(self), "halving": halving}))  # type: ignore[no-any-return]

    def create(self, path: Path) -> None:
        """Make the folder of a new sweep."""
        with files.on_failure(f"no sweep was started in {path}"):
            (path / LOGS).mkdir(parents=True, exist_ok=True)
            files.write(path / ABOUT, files.to_json({"format": FORMAT, **self.plain()}))

    @staticmethod
    def discard(path: Path, folder: bool) -> None:
        """Remove what ``create`` made for a sweep without runs, also its folder if that is wanted."""
        for name in (ABOUT, LOCK):
            (path / name).unlink(missing_ok=True)
        for empty in (path / LOGS, *([path] if folder else [])):
            with suppress(OSError):  # somebody has put files there
                empty.rmdir()

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """Return the request of a recorded sweep; refuse another format and a file that was altered."""
        try:
            found = inside.read_json(path, ABOUT)
        except FileNotFoundError:
            raise RunError(f"{path} is not a sweep: there is no {ABOUT} in it") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path}/{ABOUT} cannot be used: {error}: restore it from a copy") from error
        if (number := found.pop("format", None)) != FORMAT:
            raise RunError(f"{path} has format {number} of sweeps, and this release reads format {FORMAT}")
        try:
            return cls._of(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path}/{ABOUT} has a request that this release cannot read: {error}") from error

    @classmethod
    def _of(cls, plain: Mapping[str, Any]) -> "Sweep":
        made = cls(
            plain["method"],
            dict(plain["settings"]),
            tuple(plain["sets"]),
            {name: tuple(values) for name, values in plain["grid"].items()},
            tuple(plain["seeds"]),
            Halving(**plain["halving"]) if plain["halving"] else None,
            dict(plain["digests"]),
        )
        made._expect_types()
        return made

    def _expect_types(self) -> None:
        """Raise ``ValueError`` for a request that no sweep writes."""
        values = [value for values in self.grid.values() for value in values]
        checks = {
            "method": isinstance(self.method, str | None) and (self.method is None) == ("method" in self.grid),
            "settings": all(isinstance(value, str | bool) for value in self.settings.values())
            and not {"out", "config", "seed"} & self.settings.keys(),
            "sets": all(isinstance(each, str) for each in self.sets),
            "grid": all(self.grid.values()) and all(isinstance(value, str) for value in values),
            "seeds": bool(self.seeds) and all(type(seed) is int and seed >= 0 for seed in self.seeds),
            "halving": self.halving is None or self.halving.possible,
            "digests": all(isinstance(value, str) for value in self.digests.values()),
        }
        if wrong := [name for name, right in checks.items() if not right]:
            raise ValueError(f"{', '.join(wrong)}: not what a sweep writes")

    def differences(self, other: "Sweep") -> list[str]:
        """Return what differs between two requests: ``seeds are 0, 1, were 0``."""
        mine, theirs = self.plain(), other.plain()
        names = [name for name in mine if mine[name] != theirs[name] and name != "digests"]
        found = [f"{name} is {_shown(mine[name])}, was {_shown(theirs[name])}" for name in names]
        changed = [spec for spec, digest in self.digests.items() if other.digests.get(spec, digest) != digest]
        return [*found, *(f"{short(spec)} was changed since" for spec in changed)]


def is_sweep(path: Path) -> bool:
    """Return whether a folder is that of a sweep."""
    return (path / ABOUT).is_file()


def value_at(metrics: Sequence[Record], rounds: int, metric: str) -> float | None:
    """Return the metric of the last evaluated round up to a rung; none if the run is not there, or it is not finite."""
    if len(metrics) < rounds and not (metrics and metrics[-1].get("stopped")):
        return None
    seen = [record for record in metrics[:rounds] if metric in record]
    value: float | None = seen[-1][metric] if seen else None
    return value


def survivors(
    sweep: Sweep,
    rung: int,
    points: Sequence[tuple[tuple[str, str], ...]],
    metrics_of: Callable[[SweepRun], Sequence[Record]],
    metric: str,
    better: str,
) -> list[tuple[tuple[str, str], ...]]:
    """Return the points that go on after a rung.

    Args:
        sweep: the sweep
        rung: the number of rounds
        points: the points that have reached the rung
        metrics_of: returns the records of a run
        metric: the metric on held-out samples
        better: whether higher or lower values are better
    """
    assert sweep.halving is not None
    values = [[value_at(metrics_of(run), rung, metric) for run in sweep.runs if run.point == point] for point in points]
    means = [None if None in found else sum(map(float, found)) / len(found) for found in values]  # type: ignore[arg-type]
    return [points[index] for index in sweep.halving.kept(means, better)]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_shown(each)}" for name, each in value.items()) or "nothing"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    return "none" if value is None else str(value)
