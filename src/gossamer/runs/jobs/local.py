"""Jobs in processes of this machine: worker processes that receive pickled calls over a pipe.

Each of the jobs that run at once has its share of the cores, by affinity, and its GPU, by ``CUDA_VISIBLE_DEVICES``. So
neither the workers of an executor nor torch's threads wait for other jobs. Results do not depend on the shares.

A worker is a fresh interpreter and imports no script: a script that starts jobs needs no ``if __name__ ==
"__main__"``. It has a session of its own, so that Ctrl-C reaches this process alone, which then interrupts the
workers and waits for them. A worker dies with this process, even if that is killed.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from gossamer.core.errors import ConfigError, require
from gossamer.runs.jobs import Ended, Job

GRACE = 20.0
"""Seconds that interrupted jobs have to save what they do; then they are killed, which loses no finished round."""

WORKER = "gossamer.runs.jobs.worker"
DEVICES = "CUDA_VISIBLE_DEVICES"


class Share(NamedTuple):
    """What a job may use.

    Args:
        cores: the numbers of its cores
        gpu: its GPU as ``CUDA_VISIBLE_DEVICES`` names it; none leaves that as it is
    """

    cores: tuple[int, ...]
    gpu: str | None = None


def shares(cores: Sequence[int], jobs: int, gpus: Sequence[str] = ()) -> list[Share]:
    """Return the share of each of several jobs; with more jobs than cores or GPUs, some have the same one.

    >>> [share.cores for share in shares([0, 1, 2], 2)]
    [(0, 2), (1,)]
    >>> [share.gpu for share in shares([0], 3, ["0", "1"])]
    ['0', '1', '0']
    """
    return [
        Share(tuple(cores[job % len(cores) :: jobs]), gpus[job % len(gpus)] if gpus else None) for job in range(jobs)
    ]


class Worker(NamedTuple):
    """A process, this end of its pipe, and what it may use."""

    process: subprocess.Popen[bytes]
    line: Connection
    share: Share


class Local:
    """Worker processes of this machine.

    Args:
        jobs: the number of jobs at once
        gpus: the GPUs to share among them, as ``CUDA_VISIBLE_DEVICES`` names them
        fresh: whether every job has a process of its own, so that its peak memory is its own; else workers are reused
    """

    def __init__(self, jobs: int, gpus: Sequence[str] = (), fresh: bool = True) -> None:
        require((jobs >= 1, f"jobs must be at least 1, got {jobs}"))
        self._free = shares(sorted(os.sched_getaffinity(0)), jobs, gpus)
        self._fresh = fresh
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, Job]] = {}

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *error: object) -> None:
        """Interrupt the running jobs, wait for them a while, and end all workers."""
        for worker, _ in self._busy.values():
            worker.process.send_signal(signal.SIGINT)
        until = time.monotonic() + GRACE
        try:
            while self._busy and time.monotonic() < until:
                self.wait(until - time.monotonic())
        finally:
            for worker in (*self._idle, *(worker for worker, _ in self._busy.values())):
                _end(worker)
            self._busy.clear()

    @property
    def running(self) -> int:
        """The number of jobs that run."""
        return len(self._busy)

    def accepts(self, job: Job) -> bool:
        """Return whether there is a free share; all shares are equal, whatever a job says that it needs."""
        return bool(self._free or self._idle)

    def submit(self, job: Job) -> None:
        """Start a job."""
        call = pickle.dumps((job.function, job.args))
        worker = self._idle.pop() if self._idle else _hire(self._free.pop(0))
        worker.line.send((_main_module(), call, str(job.log) if job.log else None))
        self._busy[worker.line] = worker, job

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended; wait for one for at most that time."""
        ready = [line for line in wait(list(self._busy), seconds) if isinstance(line, Connection)]
        return [self._collect(*self._busy.pop(line)) for line in ready]

    def _collect(self, worker: Worker, job: Job) -> Ended:
        """Receive what a job returned; a worker that died, was killed or has done its job is ended."""
        try:
            value, error = worker.line.recv()
        except (EOFError, ConnectionResetError):
            code = worker.process.wait()
            value, error = None, f"its process {_died(code)}"
        if error is None and not self._fresh:
            self._idle.append(worker)
        else:
            _end(worker)
            self._free.append(worker.share)
        return Ended(job, value, error)


def _main_module() -> str | None:
    """Return the name of the module that ``python -m`` runs: a worker imports what that defines by this name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else None


def _died(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by signal {-code}" + (": out of memory?" if -code == signal.SIGKILL else "")


def _hire(share: Share) -> Worker:
    """Start a worker on its share of the cores, with Ctrl-C blocked until it starts a job."""
    here, there = socket.socketpair()
    with there, _kept_to(share.cores):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(share, os.environ),
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Worker(process, Connection(here.detach()), share)


def _environment(share: Share, now: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: its GPU, and the folders that this process imports from."""
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    return {**now, "PYTHONPATH": path, **({DEVICES: share.gpu} if share.gpu is not None else {})}


@contextmanager
def _kept_to(cores: Sequence[int]) -> Iterator[None]:
    """Keep this thread to some cores, which a process that it starts inherits."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _end(worker: Worker) -> None:
    """End a worker: an idle one ends when its pipe is closed."""
    worker.line.close()
    try:
        worker.process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        worker.process.wait()


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    named = os.environ.get(DEVICES)
    found = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    if not found or not torch.cuda.is_available():
        raise ConfigError("device cuda is not available, torch finds no GPU: use cpu")
    return found
