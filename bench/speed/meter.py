"""Memory and processor time of a process tree, and of the rest of the machine, from ``/proc`` (Linux).

Memory is PSS: a page that several processes share counts once, divided among them. The sum of resident sizes would
count it for each, and the largest of them would ignore the rest. Pages of files, mostly libraries, may be shared with
unrelated processes, which would lower the value. They count as if the tree were alone on the machine.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
SHARED_MEMORY = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")


def family(root: int) -> list[int]:
    """Return a process, its descendants, and orphans of its session."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1]), int(fields[3])
    found = {pid for pid, (_, session) in parents.items() if session == root} | {root}
    while new := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= new
    return sorted(found & parents.keys())


def own(pids: Iterable[int]) -> int:
    """Return the bytes of memory that is not backed by files."""
    found = (line.split() for pid in pids for line in _lines(pid, "smaps_rollup"))
    return sum(int(words[1]) * 1024 for words in found if words[0] in ("Pss_Anon:", "Pss_Shmem:"))


def mapped(pids: Iterable[int]) -> int:
    """Return the bytes of files in the memory of these processes, each counted once."""
    sizes: dict[str, int] = {}
    for pid in pids:
        for name, size in _files(pid):
            sizes[name] = max(sizes.get(name, 0), size)
    return sum(sizes.values())


def _files(pid: int) -> Iterator[tuple[str, int]]:
    """Yield mapped pieces of files, and their unchanged bytes in memory; changed pages count as the process's own."""
    name, resident = "", 0
    for line in _lines(pid, "smaps"):
        words = line.split()
        if not words[0].endswith(":"):  # the head of a mapping: addresses, rights, offset, device, inode, path
            name = f"{words[2]} {words[5]}" if len(words) > 5 and words[5].startswith("/") else ""
        elif words[0] == "Rss:":
            resident = int(words[1])
        elif words[0] == "Anonymous:" and name and not name.partition(" ")[2].startswith(SHARED_MEMORY):
            yield name, 1024 * (resident - int(words[1]))


def _lines(pid: int, file: str) -> list[str]:
    try:
        return (PROC / str(pid) / file).read_text().splitlines()
    except OSError:  # the process has ended
        return []


def spent(pids: Iterable[int]) -> float:
    """Return the processor seconds of these processes so far, including ended children."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / TICK


def born(pid: int) -> str:
    """Return the start time of a process in kernel ticks; an empty string if there is none."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def busy() -> float:
    """Return the processor seconds of the whole machine so far, including time stolen by a hypervisor."""
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICK


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name: state, parent, group, session, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Others:
    """Mean number of busy cores of the rest of the machine, without ``root``'s process tree and this process."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._at, self._rest = time.perf_counter(), self._now()

    def _now(self) -> float:
        return busy() - spent([os.getpid(), *family(self.root)])

    def cores(self) -> float:
        """Return the mean since construction."""
        return max(0.0, (self._now() - self._rest) / (time.perf_counter() - self._at))


def wait_for_quiet(patience: float, cores: float) -> None:
    """Wait until fewer than ``cores`` cores are busy for half a second, or until ``patience`` seconds have passed."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        before = busy()
        time.sleep(0.5)
        if busy() - before < 0.5 * cores:
            return
