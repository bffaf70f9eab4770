"""Temporary folders are private, and do not outlive their process."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gossamer.core.scratch import Scratch

CRASH = """
import os, sys
from gossamer.core.scratch import Scratch
scratch = Scratch("test")
(scratch.path / "secret").write_text("left behind")
print(scratch.path, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def crash() -> Path:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    return Path(done.stdout.strip())


def test_what_a_crash_leaves_is_removed_by_the_next_of_its_kind() -> None:
    left = crash()
    assert (left / "secret").exists()
    other = Scratch("other")
    assert left.exists(), "other kinds are left alone"
    mine = Scratch("test")
    assert not left.parent.exists()
    assert mine.path.is_dir()
    assert other.path.is_dir()


def test_a_folder_in_use_stays() -> None:
    one, two = Scratch("test"), Scratch("test")
    assert one.path.is_dir()
    one.close()
    one.close()
    assert not one.path.parent.exists()
    assert two.path.is_dir()


def test_a_folder_is_for_its_owner_alone_and_goes_with_it() -> None:
    scratch = Scratch("test")
    home = scratch.path.parent
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, scratch.path, home / "lock")] == [0o700, 0o700, 0o600]
    del scratch
    assert not home.exists()


def test_links_and_foreign_folders_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "lock").touch()
    (tmp_path / "gossamer-test-link").symlink_to(target)
    (tmp_path / "gossamer-test-none").mkdir()
    inner = tmp_path / "gossamer-test-inner"
    inner.mkdir()
    (inner / "lock").symlink_to(target / "lock")
    Scratch("test").close()
    assert (target / "lock").exists()
    assert (tmp_path / "gossamer-test-none").is_dir(), "without a lock it may be somebody else's"
    assert inner.is_dir()


def test_a_fork_does_not_remove_the_folder() -> None:
    scratch = Scratch("test")
    child = os.fork()
    if child == 0:
        scratch.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.is_dir()
