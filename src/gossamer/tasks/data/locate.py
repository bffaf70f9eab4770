"""Where the files of a data set lie, under which names, and what is said when they are not there.

A set may come in several forms (the original files, an archive of them, an ``.npz``). The first form whose files are
all there is read. If there is none, what is known to be on the internet is fetched; else the error lists the files.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.download import Remote, fetch

T = TypeVar("T")

VARIABLE = "GOSSAMER_DATA"
DEFAULT = "data"


@dataclass(frozen=True)
class FileLayout(Generic[T]):
    """One way in which a set may lie on disk.

    Args:
        files: for each file the names it may have, the usual one first
        folders: where they may lie side by side, within the data folder
        read: what reads them
    """

    files: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    read: T


@dataclass(frozen=True)
class Located(Generic[T]):
    """The files of a set, in the order of its form, and what reads them."""

    paths: tuple[Path, ...]
    read: T


def folder(data_dir: Path | None) -> Path:
    """The folder of all data: the one given, else that of the variable GOSSAMER_DATA, else ``data`` where we are."""
    if data_dir is not None and not data_dir.is_dir():
        raise ConfigError(f"there is no folder {data_dir}")
    return data_dir or Path(os.environ.get(VARIABLE) or DEFAULT)


def find(name: str, root: Path, forms: Sequence[FileLayout[T]], remotes: Sequence[Remote] = ()) -> Located[T]:
    """The files of the set called ``name``, fetched if they are on the internet only."""
    found = _look(root, forms)
    if found is not None:
        return found
    trouble = fetch(root / name, remotes)
    found = _look(root, forms)
    if found is None:
        raise ConfigError(f"{name}: {_missing(root, forms)}\n    {trouble}")
    return found


def _look(root: Path, forms: Sequence[FileLayout[T]]) -> Located[T] | None:
    for form in forms:
        for place in form.folders:
            paths = [_first(root / place, names) for names in form.files]
            present = tuple(path for path in paths if path is not None)
            if len(present) == len(paths):
                return Located(present, form.read)
    return None


def _first(place: Path, names: Sequence[str]) -> Path | None:
    return next((place / name for name in names if (place / name).exists()), None)


def _missing(root: Path, forms: Sequence[FileLayout[T]]) -> str:
    """What to put where; where some files of a form are there already, only what is missing beside them."""
    for form in forms:
        for place in form.folders:
            absent = [names for names in form.files if _first(root / place, names) is None]
            if len(absent) < len(form.files):
                return f"{root / place} lacks {_all(absent)}: put it there"
    ways = [f"    {_all(form.files)} in {_places(root, form.folders)}" for form in forms]
    return "\n".join([f"its files are not there: put {'one of these' if len(ways) > 1 else 'these'}", *ways])


def _all(files: Sequence[Sequence[str]]) -> str:
    return ", ".join(_either(names) for names in files)


def _either(names: Sequence[str]) -> str:
    """``a[.gz]`` for names that differ by their ending, ``a or b`` for others."""
    first = names[0]
    return f"{first}[.gz]" if f"{first}.gz" in names else " or ".join(names)


def _places(root: Path, places: Sequence[str]) -> str:
    return " or ".join(str(root / place) for place in places)
