"""Find the files of a data set on disk, or explain which ones are missing.

A set may have several layouts (the original files, an archive of them, an ``.npz``). The first complete layout is used.
If there is none, known downloads are fetched; otherwise the error lists the files.
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
    """One layout of a data set on disk.

    Args:
        files: for each file its possible names, the usual one first
        folders: possible folders of the files, relative to the data folder
        read: function that reads the files
    """

    files: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    read: T


@dataclass(frozen=True)
class Located(Generic[T]):
    """The files of a data set, in the order of its layout, and the function that reads them."""

    paths: tuple[Path, ...]
    read: T


def folder(data_dir: Path | None) -> Path:
    """Return the data folder: the given one, else the variable GOSSAMER_DATA, else ``data``."""
    if data_dir is not None and not data_dir.is_dir():
        raise ConfigError(f"there is no folder {data_dir}")
    return data_dir or Path(os.environ.get(VARIABLE) or DEFAULT)


def find(name: str, root: Path, layouts: Sequence[FileLayout[T]], remotes: Sequence[Remote] = ()) -> Located[T]:
    """Find the files of the set called ``name``; download them if they are missing."""
    found = _look(root, layouts)
    if found is not None:
        return found
    trouble = fetch(root / name, remotes)
    found = _look(root, layouts)
    if found is None:
        raise ConfigError(f"{name}: {_missing(root, layouts)}\n    {trouble}")
    return found


def _look(root: Path, layouts: Sequence[FileLayout[T]]) -> Located[T] | None:
    for layout in layouts:
        for name in layout.folders:
            paths = [_first(root / name, names) for names in layout.files]
            present = tuple(path for path in paths if path is not None)
            if len(present) == len(paths):
                return Located(present, layout.read)
    return None


def _first(directory: Path, names: Sequence[str]) -> Path | None:
    return next((directory / name for name in names if (directory / name).exists()), None)


def _missing(root: Path, layouts: Sequence[FileLayout[T]]) -> str:
    """Describe which files to put where; if a layout is incomplete, name only its missing files."""
    for layout in layouts:
        for name in layout.folders:
            absent = [names for names in layout.files if _first(root / name, names) is None]
            if len(absent) < len(layout.files):
                return f"{root / name} lacks {_all(absent)}: put it there"
    ways = [f"    {_all(layout.files)} in {_paths(root, layout.folders)}" for layout in layouts]
    return "\n".join([f"files not found: put {'one of these' if len(ways) > 1 else 'these'}", *ways])


def _all(files: Sequence[Sequence[str]]) -> str:
    return ", ".join(_either(names) for names in files)


def _either(names: Sequence[str]) -> str:
    """Return ``a[.gz]`` for names that differ by this suffix, ``a or b`` for others."""
    first = names[0]
    return f"{first}[.gz]" if f"{first}.gz" in names else " or ".join(names)


def _paths(root: Path, folders: Sequence[str]) -> str:
    return " or ".join(str(root / name) for name in folders)
