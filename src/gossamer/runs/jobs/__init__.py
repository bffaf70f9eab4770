"""Jobs: functions that run in processes of their own, several at once, each on its share of the cores and GPUs.

A sweep submits its runs as jobs, and a reproduction its cells. ``Launcher`` is the seam: ``Local`` runs jobs in
processes of this machine, and a launcher for a cluster needs the same three methods.

    with Local(jobs=4) as launcher:
        for ended in spread([Job("a", work, (1,)), Job("b", work, (2,))], launcher):
            print(ended.job.name, ended.value, ended.error)
"""

import time
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol


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
