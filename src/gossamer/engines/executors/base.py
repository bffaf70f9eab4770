"""What an executor is: a way to get the orders of a round done."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from gossamer.engines.client import Client, ClientTask, TaskOutcome


class Executor(Protocol):
    """Does orders, in any order; the engine puts what comes of them back in line."""

    @property
    def threads(self) -> int | None:
        """How many threads torch may use in this process meanwhile; ``None`` means as many as it likes."""
        ...

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Get ready, once, for rounds of so many orders like this one; what that takes is counted by itself."""
        ...

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Do the orders; they are made as they are asked for, so ask late."""
        ...

    def close(self) -> None:
        """Let go of processes and memory."""
        ...


class AlwaysReady:
    """An executor with nothing to get ready, and nothing to let go of."""

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Nothing to get ready."""

    def close(self) -> None:
        """Nothing to let go of."""


class OneByOne(AlwaysReady):
    """One client after the other, on one thread: the same bits everywhere, and the reference for the others."""

    threads: int | None = 1

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Each order as it comes."""
        return map(self.client.do, client_tasks)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Torch on so many threads. With one, sums are taken in one order, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
