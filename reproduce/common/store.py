"""Results of reproductions: one JSON file per study in ``docs/reproduction/cells``, one line per entry.

Entries are sorted by name, so that a diff shows what a run added. A write takes a lock, then replaces the file: several
processes may write, and a killed process leaves the last complete file.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.core import files

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/reproduction"
CELLS = PAGES / "cells"
RUNS = ROOT / "runs/cells"
"""Run folders of unfinished cells, and the lock."""
LOCK_SECONDS = 60.0
"""How long a write waits for the writes of other processes."""

Facts = dict[str, Any]
"""The stored values of an entry."""


def read(study: str) -> dict[str, Any]:
    """Return all entries of a study by name. The values are shared: do not modify them."""
    path = CELLS / f"{study}.json"
    if not path.exists():
        return {}
    stat = path.stat()
    return _parse(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _parse(path: Path, *version: int) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(path.read_text())
    return entries


def write(study: str, name: str, value: Any) -> None:
    """Add an entry to a study, or replace it."""
    CELLS.mkdir(parents=True, exist_ok=True)
    RUNS.mkdir(parents=True, exist_ok=True)
    lock = files.take_lock(RUNS / ".lock", wait=LOCK_SECONDS)
    try:
        files.write(CELLS / f"{study}.json", _text({**read(study), name: value}).encode())
        _parse.cache_clear()
    finally:
        os.close(lock)


def kept(study: str, name: str, measure: Callable[[], list[Facts]]) -> list[Facts]:
    """Return a stored list of measurements; measure and store it if there is none."""
    if name not in read(study):
        write(study, name, measure())
    rows: list[Facts] = read(study)[name]
    return rows


def _text(entries: dict[str, Any]) -> str:
    lines = (f"{json.dumps(name)}: {_value(entries[name])}" for name in sorted(entries))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    """Return an entry on one line; the items of a list on one line each."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
