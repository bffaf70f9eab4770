"""Temporary folders for one process, readable by its user alone, that do not outlive it.

A folder is removed when its owner is closed or collected, and at the end of the process. A crash leaves it behind. So
each has a lock that ends with its process, and a new folder first removes those of the same kind that nobody locks.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

LOCK, INSIDE = "lock", "files"


class Scratch:
    """A temporary folder.

    Args:
        kind: what it is for, in one word; leftovers of the same kind are removed

    >>> scratch = Scratch("example")
    >>> _ = (scratch.path / "note").write_text("gone with the process")
    >>> scratch.close()
    >>> scratch.path.exists()
    False
    """

    def __init__(self, kind: str) -> None:
        prefix = f"gossamer-{kind}-"
        sweep(prefix)
        home = Path(tempfile.mkdtemp(prefix=prefix))
        handle = os.open(home / f".{LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (home / f".{LOCK}").rename(home / LOCK)  # a lock has its name only when it is held
        self.path = home / INSIDE
        self.path.mkdir(mode=0o700)
        self._end = weakref.finalize(self, _remove, home, handle, os.getpid())

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        self._end()


def _remove(home: Path, handle: int, process: int) -> None:
    """Remove a folder, unless this is a fork of the process that owns it."""
    if os.getpid() == process:
        shutil.rmtree(home, ignore_errors=True)
        os.close(handle)


def sweep(prefix: str) -> None:
    """Remove folders of this user that no process locks any more. Links are not followed."""
    for home in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            about = home.lstat()
            if home.is_symlink() or not home.is_dir() or about.st_uid != os.getuid():
                continue
            handle = os.open(home / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(handle)
