"""Executors: how the clients of a round are trained. One by one is the reference that others are compared with."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.method import Job, Trained
from gossamer.objective import Objective, seeded
from gossamer.random import fold
from gossamer.solvers import Solver
from gossamer.tree import subtract
from gossamer.types import Params, Part


class Work(NamedTuple):
    """A job and the samples of the client that does it."""

    job: Job
    x: Tensor
    y: Tensor


class Done(NamedTuple):
    """A job, and what came of it: the training, or the error that ended it."""

    job: Job
    result: Trained | Exception


Executor = Callable[[Solver, Objective, Iterable[Work]], Iterator[Done]]


def one_by_one(solver: Solver, objective: Objective, works: Iterable[Work]) -> Iterator[Done]:
    """One client after the other."""
    for work in works:
        try:
            yield Done(work.job, train(solver, objective, work))
        except Exception as error:  # a client's failure is the round's to report, whatever it is
            yield Done(work.job, error)


def train(solver: Solver, objective: Objective, work: Work) -> Trained:
    """The plain loop: every step of one client."""
    job = work.job
    start = {**job.start, **objective.local()}
    carry = solver.begin(start, job.state.get("solver", {}))
    gradient = BatchGradient(objective, job.part)
    with seeded(fold(job.key, "torch")):
        for batch in solver.plan(len(work.x), fold(job.key, "batches")):
            index = torch.from_numpy(batch).to(work.x.device)
            gradient.take(work.x[index], work.y[index])
            carry = solver.step(gradient, start, carry, job.clock)
    change = subtract(carry["params"], job.start)
    loss = float(torch.stack(gradient.losses).mean())
    return Trained(change, solver.end(carry), loss, gradient.flops, len(work.x))


class BatchGradient:
    """The gradient on the batch at hand, as a solver asks for it, and what asking has cost so far."""

    def __init__(self, objective: Objective, part: Part) -> None:
        self.objective, self.keep = objective, part.keep
        self.losses: list[Tensor] = []
        self.flops = 0

    def take(self, x: Tensor, y: Tensor) -> None:
        """Go on to the next batch."""
        self.x, self.y = x, y

    def __call__(self, params: Params) -> tuple[Params, Params]:
        """Gradients, zero where the client does not train an entry, and the buffers that the forward pass changed."""
        loss, grads, buffers = self.objective.gradient(params, self.x, self.y)
        self.losses.append(loss)
        self.flops += self.objective.flops(params, self.x, self.y)
        return {name: g * self.keep[name] if name in self.keep else g for name, g in grads.items()}, buffers


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: sums are then taken in one order, whatever the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


EXECUTORS: dict[str, Executor] = {"one-by-one": one_by_one}
"""Executors by the name that the command line uses."""
