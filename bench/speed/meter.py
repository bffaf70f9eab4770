"""What a process and all its descendants take, and what everybody else takes meanwhile: read from ``/proc`` (Linux).

Memory is PSS: a page that several processes share counts once, divided among them. Neither the sum of their resident
sizes (which counts it for each) nor the largest of them (which forgets the rest) says what a machine must have. Pages
of files, libraries above all, may be shared with strangers too, who would so lower the figure; they are counted as if
the family were alone on the machine.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
SHARED_MEMORY = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")


def family(root: int) -> list[int]:
    """A process and its descendants, and whoever is left of its session when those between have gone."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1]), int(fields[3])
    found = {pid for pid, (_, session) in parents.items() if session == root} | {root}
    while new := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= new
    return sorted(found & parents.keys())


def own(pids: Iterable[int]) -> int:
    """Bytes of memory that belongs to no file."""
    found = (line.split() for pid in pids for line in _lines(pid, "smaps_rollup"))
    return sum(int(words[1]) * 1024 for words in found if words[0] in ("Pss_Anon:", "Pss_Shmem:"))


def mapped(pids: Iterable[int]) -> int:
    """Bytes of files that are in memory for these processes, each counted once."""
    held: dict[str, int] = {}
    for pid in pids:
        for name, size in _files(pid):
            held[name] = max(held.get(name, 0), size)
    return sum(held.values())


def _files(pid: int) -> Iterator[tuple[str, int]]:
    """Pieces of files, and how much of each is in memory unchanged; what was changed is the process's own."""
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
    except OSError:  # it has ended meanwhile
        return []


def spent(pids: Iterable[int]) -> float:
    """Processor seconds of these processes so far, with those of children that have ended."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / TICK


def born(pid: int) -> str:
    """When a process was started, in the kernel's own ticks; empty when there is none."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def busy() -> float:
    """Processor seconds of the whole machine so far, with what a hypervisor took away."""
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICK


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: state, parent, group, session, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Others:
    """How many cores the rest of the machine keeps busy from now on; ``root``'s family and this process are no rest."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._at, self._rest = time.perf_counter(), self._now()

    def _now(self) -> float:
        return busy() - spent([os.getpid(), *family(self.root)])

    def cores(self) -> float:
        """The mean since this was made."""
        return max(0.0, (self._now() - self._rest) / (time.perf_counter() - self._at))


def wait_for_quiet(patience: float, cores: float) -> None:
    """Wait until the machine is less busy than ``cores`` for half a second, or patience runs out."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        before = busy()
        time.sleep(0.5)
        if busy() - before < 0.5 * cores:
            return
