"""Runs on clusters: what they wrote, and which processes they have."""

import time
from collections.abc import Iterable
from pathlib import Path


def contents(run: Path) -> dict[str, bytes]:
    """Return the files of a run folder that hold tensors."""
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}
    assert len(found) > 1
    return found


def descendants(root: int) -> list[int]:
    """Return all processes below a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = {root}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return sorted(found - {root})


def gone(pids: Iterable[int], seconds: float) -> bool:
    """Wait until processes have ended, but not longer than some seconds; return whether they have."""
    end = time.monotonic() + seconds
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > end:
            print("left:", [Path(f"/proc/{pid}/comm").read_text().strip() for pid in left])
            return False
        time.sleep(0.2)
    return True
