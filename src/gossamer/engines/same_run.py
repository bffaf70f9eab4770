"""A run is continued with the method, task and options that it was started with; anything else is refused by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer.core.errors import RunError
from gossamer.engines.warm_start import listed_tensors

DIGESTS = {"data_digest": "the data changed", "split_digest": "the split changed"}
"""Entries of a task that say nothing to people."""

EXTENDABLE = ("rounds", "until", "patience")
"""Options that ``resume`` may change."""

MOVABLE = ("cluster", "actors")
"""Options that say where a run is computed, which ``resume`` may change as well: results do not depend on them."""

About = Mapping[str, Any]
"""The content of ``run.json``."""


def check_same(recorded: About, now: About, path: Path) -> None:
    """Refuse a run that was started with another network, method, task or options, before anything is written."""
    if recorded.get("init", {}).get("digest") != now.get("init", {}).get("digest"):
        raise RunError(f"{path} was started with other initial weights: resume it without init, which it keeps")
    if problem := "; ".join(_other_tensors(recorded["tensors"], now["tensors"])):
        raise RunError(f"{path}: {problem}")
    if recorded["parameters"] != now["parameters"]:
        raise RunError(f"{path}: the network has {now['parameters']:,} parameters, the run {recorded['parameters']:,}")
    for what, kind in (("method", "another method"), ("task", "another task"), ("options", "other options")):
        if found := list(_differences(_fixed(recorded[what]), _fixed(now[what]))):
            raise RunError(f"{path} was started with {kind}: {', '.join(found)}{_advice(recorded, now, path)}")


def _fixed(entries: About) -> About:
    """Return what a run keeps: not where it is computed."""
    return {name: value for name, value in entries.items() if name not in MOVABLE}


def _other_tensors(before: Mapping[str, list[int]], now: Mapping[str, list[int]]) -> Iterator[str]:
    """Yield how the tensors of a network differ from those of the run."""
    if strange := [name for name in now if name not in before]:
        yield f"the network has tensors that the run lacks: {listed_tensors(strange)}"
        yield f"the run has {listed_tensors(list(before))}"
    elif missing := [name for name in before if name not in now]:
        yield f"the run has tensors that the network lacks: {listed_tensors(missing)}"
    shared = [name for name in now if name in before]
    if other := [f"{name} {now[name]}, not {before[name]}" for name in shared if now[name] != before[name]]:
        yield f"shapes differ: {listed_tensors(other)}"


def _differences(before: About, now: About) -> Iterator[str]:
    """Yield the entries that differ: ``seed is 6, was 5``."""
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            values = f"{name} is {_shown(now.get(name))}, was {_shown(before.get(name))}"
            yield DIGESTS.get(name, values)


def _shown(value: Any) -> str:
    if isinstance(value, list):  # metrics
        return " and ".join(str(each.get("name", each) if isinstance(each, dict) else each) for each in value)
    return "the default" if value is None else str(value)


def _advice(recorded: About, now: About, path: Path) -> str:
    """Return what to do: rounds, targets and patience may change when a run is extended."""
    before, after = _fixed(recorded["options"]), _fixed(now["options"])
    changed = [name for name in after if after[name] != before.get(name)]
    others = any(recorded[what] != now[what] for what in ("method", "task")) or before.keys() > after.keys()
    if others or not set(changed) <= set(EXTENDABLE):
        return ": resume it as it was started, or start a new run"
    own = [name for name, known in (("method", "recipe"), ("task", "task_call")) if not recorded.get(known)]
    words = (f'"{path}"', *(f"{name}={name}" for name in own), *(f"{name}={after[name]!r}" for name in changed))
    return f": use gossamer.resume({', '.join(words)})"
