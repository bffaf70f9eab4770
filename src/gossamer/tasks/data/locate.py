"""Find the files of a data set on disk, download them, or explain which ones are missing.

A set may have several layouts (the original files, an archive of them, an ``.npz``). The first complete layout is used.
If there is none, known downloads are fetched with pooch: verified by a known checksum, with a progress bar, and never
left incomplete. Otherwise the error lists the files.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from gossamer.core.errors import ConfigError

NO_POOCH = "it can be downloaded with pooch, which is not installed: pip install 'gossamer[data]'"


class Remote(NamedTuple):
    """A file on the internet: its local name, its URL, and its checksum as ``md5:...`` or ``sha256:...``."""

    name: str
    url: str
    checksum: str


def fetch(folder: Path, remotes: Sequence[Remote]) -> str:
    """Download missing files into ``folder``; return why that was not enough, for an error message."""
    if not remotes:
        return "it cannot be downloaded"
    if find_spec("pooch") is None:
        return NO_POOCH
    for remote in remotes:
        if not (folder / remote.name).exists():
            try:
                _fetch(folder, remote)
            except (OSError, ValueError) as error:  # network errors are OSErrors, a wrong checksum is a ValueError
                import requests

                offline = isinstance(error, requests.ConnectionError)
                reason = "there is no connection" if offline else " ".join(str(error).split())
                return f"downloading {remote.url} failed: {reason}"
    return "the downloaded files are not sufficient"


def _fetch(folder: Path, remote: Remote) -> None:
    """Download into a temporary folder, and move the file in one step, so that a failure leaves nothing behind."""
    import pooch

    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=there, prefix=".gossamer-") as aside:
        got = pooch.retrieve(
            remote.url, remote.checksum, fname=remote.name, path=aside, progressbar=find_spec("tqdm") is not None
        )
        folder.mkdir(parents=True, exist_ok=True)
        Path(got).replace(folder / remote.name)


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

    def listed(files: Sequence[Sequence[str]]) -> str:
        """Write ``a[.gz]`` for names that differ by this suffix, ``a or b`` for others."""
        return ", ".join(f"{a[0]}[.gz]" if f"{a[0]}.gz" in a else " or ".join(a) for a in files)

    for layout in layouts:
        for name in layout.folders:
            absent = [names for names in layout.files if _first(root / name, names) is None]
            if len(absent) < len(layout.files):
                return f"{root / name} lacks {listed(absent)}: put it there"
    ways = []
    for layout in layouts:
        paths = " or ".join(str(root / name) for name in layout.folders)
        ways.append(f"    {listed(layout.files)} in {paths}")
    return "\n".join([f"files not found: put {'one of these' if len(ways) > 1 else 'these'}", *ways])
