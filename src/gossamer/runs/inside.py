"""Files of a run folder that somebody else may have written: no symbolic link inside it is followed.

A name such as ``checkpoints/3/manifest.json`` is opened part by part, each relative to the folder before it. A part
that is a symbolic link is refused, so nothing outside the run folder is read, changed or deleted. The path of the run
folder itself is the user's own, and may be a link. This module needs no torch.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from gossamer.core import files
from gossamer.core.errors import RunError

REAL = "a run folder may not hold one there: replace it by what it points to, if you know that"


@contextmanager
def folder(root: Path, name: str) -> Iterator[int]:
    """Open a folder inside a run folder; the handle is for ``dir_fd``."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in _parts(root, name):
            inner = _open(root, name, part, os.O_RDONLY | os.O_DIRECTORY, handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


@contextmanager
def opened(root: Path, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a plain file inside a run folder, and return its handle."""
    above, last = os.path.split(name)
    with folder(root, above) as where:
        # Without O_NONBLOCK a pipe in place of a file would wait for a writer.
        (file,) = _parts(root, last)
        handle = _open(root, name, file, flags | os.O_NONBLOCK, where)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RunError(f"{root / name} is not a plain file: restore it from a copy")
        yield handle
    finally:
        os.close(handle)


def _parts(root: Path, name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if any(part in ("/", "..") or "\0" in part for part in parts):
        raise RunError(f"{root} names the file {name!r}, which is not inside it")
    return parts


def _open(root: Path, name: str, part: str, flags: int, where: int) -> int:
    try:
        return os.open(part, flags | os.O_NOFOLLOW, dir_fd=where)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root / name)) from None
    except OSError as error:
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(part, dir_fd=where, follow_symlinks=False).st_mode):
                raise RunError(f"{root / name}: {part} is a symbolic link; {REAL}") from None
        raise OSError(error.errno, os.strerror(error.errno or 0), str(root / name)) from None


def links(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with a run folder in which some of these names are symbolic links, one text for each."""
    for name in names:
        if (root / name).is_symlink():
            yield f"{root / name} is a symbolic link; {REAL}"


def refuse_links(root: Path, names: Iterable[str]) -> None:
    """Refuse a run folder in which one of these names is a symbolic link."""
    for problem in links(root, names):
        raise RunError(problem)


def read(root: Path, name: str) -> bytes:
    """Return the content of a file."""
    with opened(root, name) as handle, os.fdopen(handle, "rb", closefd=False) as file:
        return file.read()


def read_json(root: Path, name: str) -> dict[str, Any]:
    """Return the content of a file from ``files.to_json``. Raise ``ValueError`` if it was altered."""
    return files.json_of(read(root, name))


def digest(root: Path, name: str) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with opened(root, name) as handle, os.fdopen(handle, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append(root: Path, name: str, data: bytes) -> None:
    """Append to a file, and sync it."""
    with (
        opened(root, name, os.O_WRONLY | os.O_APPEND) as handle,
        os.fdopen(handle, "ab", closefd=False) as file,
    ):
        file.write(data)
        file.flush()
        os.fsync(handle)


def names(root: Path, name: str) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    try:
        with folder(root, name) as handle, os.scandir(handle) as found:
            return sorted(entry.name for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove(root: Path, name: str, old: Iterable[str]) -> None:
    """Delete files in a folder; those that are not there are left out. A folder in place of a file is refused."""
    with folder(root, name) as handle:
        for file in old:
            try:
                os.unlink(file, dir_fd=handle)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                text = f"{root / name / file} is a folder, where a run has a file: move it elsewhere"
                raise RunError(text) from None


def remove_folder(root: Path, name: str, old: Iterable[str]) -> None:
    """Delete files in a folder, and the folder itself if nothing else is in it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        remove(root, name, old)
        try:
            (root / name).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
