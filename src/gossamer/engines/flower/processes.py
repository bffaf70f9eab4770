"""Process groups: each process leads one, and the whole group ends with it or with the parent process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

GRACE = 5.0
"""Seconds that a process has to end before it is killed."""

POLL = 0.2

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Runs first in every process and then becomes its program: PR_SET_PDEATHSIG ends the process with its parent.
LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


def start(line: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that leads its own group; append its output to a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCH, *line],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to processes, and wait some seconds for their end."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        _send(process, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(POLL)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, and wait for their end."""
    _send(process, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + GRACE
    while _lives(process.pid) and time.monotonic() < until:
        time.sleep(POLL / 10)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _lives(group: int) -> bool:
    """Return whether a process group has a member that is not a zombie."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that would end this process until the block is done."""
    pending: list[int] = []
    with _handling(pending.append, ENDINGS):
        yield
    for number in pending:
        signal.raise_signal(number)


def leaving() -> AbstractContextManager[None]:
    """Turn signals that would end this process at once into ``SystemExit``, so that it can clean up."""
    return _handling(_leave, [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL])


def _leave(number: int) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _handling(handle: Callable[[int], object], numbers: Iterable[int]) -> Iterator[None]:
    """Handle signals inside the block. Only the main thread can; in other threads this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: handle(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
