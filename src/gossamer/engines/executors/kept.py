"""Compiled programs that are kept on disk, so that the next run need not compile.

A program is machine code, and loading it runs it. So a folder is used only if no other user can write to it. A file is
named after the key of its program and the digest of its content. A damaged file does not fit its name: it is deleted
with a notice, and the program is compiled again. Files are written aside and renamed, and one process at a time
compiles a program; so runs may share the folder. Programs that were not used for the longest time are deleted if all
take more than ``LIMIT`` bytes.
"""

import fcntl
import grp
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "GOSSAMER_CACHE"
OFF = ("off", "0", "")
LIMIT = 512 * 2**20
"""Bytes of all kept programs."""
ABANDONED = 3600.0
"""Seconds after which the files of a compilation that was interrupted are deleted."""
SUFFIX = ".program"
SIDECAR = ".json"
"""Suffix of a file that a program may need beside it, with the same name: torch's loader looks for it there."""


class KeptProgramWarning(UserWarning):
    """A kept program, or the folder of kept programs, cannot be used."""


class KeptPrograms:
    """A folder of compiled programs; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder, limit

    @classmethod
    def of_user(cls) -> "KeptPrograms":
        """Return the programs in the user's cache folder, or in the folder of the variable GOSSAMER_CACHE."""
        given = os.environ.get(VARIABLE)
        if given is not None and given.lower() in OFF:
            return cls(None)
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gossamer"
        return cls(_prepared((Path(given).absolute() if given else usual) / "programs"))

    def __contains__(self, key: str) -> bool:
        return self._find(key) is not None

    def obtain(self, key: str, build: Callable[[Path], Path], load: Callable[[Path], T]) -> T:
        """Load the program of a key; if it is not kept, build it in an empty folder and keep it."""
        known = self._load(key, load)
        if known is not None:
            return known
        with self._aside(key) as room:
            known = self._load(key, load)  # another process may have built it meanwhile
            return load(self._keep(key, build(room))) if known is None else known

    def _load(self, key: str, load: Callable[[Path], T]) -> T | None:
        path = self._find(key)
        try:
            return None if path is None else load(path)
        except Exception as error:  # it was written for another library, say
            assert path is not None
            _discard(path, str(error).partition("\n")[0])
            return None

    def _find(self, key: str) -> Path | None:
        """Return the file of a program, and note its use; a damaged one is deleted."""
        for path in [] if self.folder is None else self.folder.glob(f"{key}-*{SUFFIX}"):
            try:
                if path.stem.endswith(_digest(path)):
                    os.utime(path)
                    return path
            except OSError:  # deleted by another process
                continue
            _discard(path, "its content does not fit its name")
        return None

    def _keep(self, key: str, made: Path) -> Path:
        """Move a new program to its place, and delete old ones; without a folder it stays where it is."""
        if self.folder is None:
            return made
        name = f"{key}-{_digest(made)}"
        if (beside := made.with_suffix(SIDECAR)).exists():
            beside.replace(self.folder / f"{name}{SIDECAR}")
        made.chmod(stat.S_IRUSR | stat.S_IWUSR)
        path = made.replace(self.folder / f"{name}{SUFFIX}")
        self._prune(path)
        return path

    def _prune(self, newest: Path) -> None:
        assert self.folder is not None
        files = [(path.stat(), path) for path in _existing(self.folder.glob(f"*{SUFFIX}")) if path != newest]
        room = self.limit - newest.stat().st_size
        for facts, path in sorted(files, key=lambda file: -file[0].st_mtime):
            room -= facts.st_size
            if room < 0:
                _delete(path)
        for path in _existing(self.folder.glob("building-*")):
            if path.stat().st_mtime < time.time() - ABANDONED:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _aside(self, key: str) -> Iterator[Path]:
        """Yield an empty folder for building a program; other processes wait until it is built."""
        if self.folder is None:
            with tempfile.TemporaryDirectory(prefix="gossamer-") as room:
                yield Path(room)
            return
        lock = self.folder / f"{key}.lock"
        with lock.open("w") as file, tempfile.TemporaryDirectory(prefix="building-", dir=self.folder) as room:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield Path(room)
            finally:
                lock.unlink(missing_ok=True)


def _prepared(folder: Path) -> Path | None:
    """Return a folder that is created if necessary; none, with a notice, if it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unsafe = next((path for path in (folder, *folder.parents) if not _ours(path, path == folder)), None)
        if unsafe is None and os.access(folder, os.W_OK | os.X_OK):
            return folder
        reason = f"other users can write to {unsafe}" if unsafe else f"{folder} cannot be written"
    except OSError as error:
        reason = str(error)
    warnings.warn(f"compiled programs are not kept: {reason}", KeptProgramWarning, stacklevel=2)
    return None


def _ours(path: Path, last: bool) -> bool:
    """Return whether nobody but this user (and root) can replace what is in a folder."""
    facts = path.stat()
    others = stat.S_IWOTH | (0 if _only_ours(facts.st_gid) else stat.S_IWGRP)
    open_to_others = facts.st_mode & others and (last or not facts.st_mode & stat.S_ISVTX)
    return facts.st_uid in ((os.geteuid(),) if last else (os.geteuid(), 0)) and not open_to_others


def _only_ours(group: int) -> bool:
    """Return whether a group is the private group of this user, which has the user's name and no other members."""
    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _existing(paths: Iterator[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


def _digest(path: Path) -> str:
    """Return a digest of a program and its sidecar."""
    beside = path.with_suffix(SIDECAR)
    parts = (path.read_bytes(), beside.read_bytes() if beside.exists() else b"")
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _delete(path: Path) -> None:
    for file in (path, path.with_suffix(SIDECAR)):
        file.unlink(missing_ok=True)


def _discard(path: Path, reason: str) -> None:
    _delete(path)
    text = f"the kept program {path.name} was deleted and is compiled again: {reason}"
    warnings.warn(text, KeptProgramWarning, stacklevel=2)
