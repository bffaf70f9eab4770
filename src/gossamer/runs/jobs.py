"""Jobs: functions that run in processes of their own, several at once, each on its share of the cores and GPUs.

A sweep submits its runs as jobs, and a reproduction its cells. ``Launcher`` is the seam: ``Local`` runs jobs in
processes of this machine, and a launcher for a cluster needs the same three methods.

    with Local(jobs=4) as launcher:
        for ended in spread([Job("a", work, (1,)), Job("b", work, (2,))], launcher):
            print(ended.job.name, ended.value, ended.error)

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gossamer.core.errors import ConfigError, require


class Job(NamedTuple):
    """A function call that runs in a process of its own.

    Args:
        name: its name in messages
        function: a function that can be pickled: one of a module
        args: its arguments
        cores: the number of cores that it needs, for launchers that place jobs by need
        gpus: likewise its share of a GPU, or its number of GPUs
        log: the file that its output is appended to; by default it goes where that of this process goes
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    cores: int = 1
    gpus: float = 0
    log: Path | None = None


class Ended(NamedTuple):
    """A job that has ended.

    Args:
        job: the job
        value: what its function returned
        error: why it failed; none if it returned
    """

    job: Job
    value: Any = None
    error: str | None = None


class Launcher(Protocol):
    """Runs jobs. As a context it stops the jobs that still run when it is left.

    The functions and arguments of jobs are pickled. Paths among them are full ones, and files are how a run tells what
    it has done: a launcher that uses other machines needs the folder of the sweep at the same path on all of them.
    """

    def __enter__(self) -> "Launcher":
        """Start."""
        ...

    def __exit__(self, *error: object) -> None:
        """Interrupt the running jobs as Ctrl-C does, wait for them a while, and leave no process behind."""
        ...

    @property
    def running(self) -> int:
        """The number of jobs that run."""
        ...

    def accepts(self, job: Job) -> bool:
        """Return whether a job could start now."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job that is accepted."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended since the last call; wait for one for at most that time."""
        ...


def spread(
    jobs: Iterable[Job],
    launcher: Launcher,
    seconds: float = inf,
    tick: Callable[[], None] = lambda: None,
    every: float = 0.5,
) -> Iterator[Ended]:
    """Run jobs in order, as many at once as the launcher accepts, and yield each when it has ended.

    Args:
        jobs: the jobs
        launcher: where they run
        seconds: no job starts later; those that did not start are not yielded
        tick: called while jobs run
        every: seconds between two calls of ``tick``
    """
    until, waiting = time.monotonic() + seconds, iter(jobs)
    following = next(waiting, None)
    while following is not None or launcher.running:
        while following is not None and launcher.accepts(following) and time.monotonic() < until:
            launcher.submit(following)
            following = next(waiting, None)
        if not launcher.running:
            return
        tick()
        yield from launcher.wait(every)


GRACE = 20.0
"""Seconds that interrupted jobs have to save what they do; then they are killed, which loses no finished round."""

WORKER = "gossamer.runs.worker"
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

    Three cores for two jobs: the first has cores 0 and 2, the second core 1.
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
        cores: the cores to share among them; none means all that this process may use
    """

    def __init__(
        self, jobs: int, gpus: Sequence[str] = (), fresh: bool = True, cores: Sequence[int] | None = None
    ) -> None:
        require((jobs >= 1, f"jobs must be at least 1, got {jobs}"))
        self._free = shares(cores or sorted(os.sched_getaffinity(0)), jobs, gpus)
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
        # A worker imports what the module that ``python -m`` runs defines by the name of that module.
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        worker.line.send((spec.name if spec else None, call, str(job.log) if job.log else None))
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
            killed = f"was killed by signal {-code}" + (": out of memory?" if -code == signal.SIGKILL else "")
            value, error = None, f"its process {killed if code < 0 else f'ended with exit code {code}'}"
        if error is None and not self._fresh:
            self._idle.append(worker)
        else:
            _end(worker)
            self._free.append(worker.share)
        return Ended(job, value, error)


def _hire(share: Share) -> Worker:
    """Start a worker on its share of the cores, with Ctrl-C blocked until it starts a job."""
    here, there = socket.socketpair()
    with there, _kept_to(share.cores):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            folders = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": folders, **({DEVICES: share.gpu} if share.gpu is not None else {})},
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Worker(process, Connection(here.detach()), share)


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
