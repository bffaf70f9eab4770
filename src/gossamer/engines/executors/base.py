"""The executor protocol, and executors without worker processes: ``OneByOne``, the reference, and ``Threaded``."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch

from gossamer.core.chunks import cores
from gossamer.engines.client import Client, ClientTask, TaskOutcome


class Executor(Protocol):
    """Runs client tasks and yields their outcomes in any order; the engine restores client order."""

    @property
    def size(self) -> int:
        """Number of clients that train at the same time."""
        ...

    @property
    def threads(self) -> int | None:
        """Number of torch threads in this process while the executor runs; ``None`` keeps torch's setting."""
        ...

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Prepare once for rounds of ``client_tasks`` tasks like ``client_task``; this time is recorded separately."""
        ...

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Run the tasks; the iterable creates each task on demand, so take one only when it can run."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """An executor that needs a compiled program."""

    def is_kept(self, client_task: ClientTask) -> bool:
        """Return whether the program for tasks like this one is kept from an earlier run."""
        ...


@runtime_checkable
class OnCores(Protocol):
    """An executor that keeps ``size`` cores of a CPU busy, one thread each."""

    def processor_seconds(self) -> float:
        """Return the processor time of all of its processes so far."""
        ...


class AlwaysReady:
    """Base of executors that need no preparation and hold no resources."""

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class InTurn(AlwaysReady):
    """One client after the other, in this process."""

    size: int = 1

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Run each task when it is taken; samples that are read when needed are read one task ahead."""
        lazy = self.client.objective.samples.lazy
        return map(self.client.do, self._announced(client_tasks) if lazy else client_tasks)

    def _announced(self, client_tasks: Iterable[ClientTask]) -> Iterator[ClientTask]:
        """Yield each task once the next one is announced."""
        ready: ClientTask | None = None
        for following in client_tasks:
            self.client.announce(following)
            if ready is not None:
                yield ready
            ready = following
        if ready is not None:
            yield ready


class OneByOne(InTurn):
    """One client after the other, on one thread: bitwise reproducible, and the reference for other executors."""

    threads: int | None = 1

    def processor_seconds(self) -> float:
        """Return the processor time of this process so far."""
        return time.process_time()


class Threaded(InTurn):
    """One client after the other, on all threads: for long steps, and for fewer clients than cores.

    Sums of several threads have another order than those of one, so results differ in rounding.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.threads: int | None = min(cores(), torch.get_num_threads())


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Limit torch to a number of threads. With one thread, sums have the same order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
