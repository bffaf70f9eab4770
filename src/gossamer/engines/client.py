"""The client's half of a round, whole: read the server's message, train, reply.

Whoever runs a client, one of thousands in a simulation or the only one on a machine, hands it an ``Order`` and gets an
``Answer``; both are made of bytes and tensors alone, so they cross process boundaries.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import GossamerError
from gossamer.method import Job, Method, Sent, Trained
from gossamer.objective import Objective, seeded
from gossamer.random import Key, fold, uniform
from gossamer.solvers import Now
from gossamer.tree import subtract
from gossamer.types import Clock, Params, State

Mask = Mapping[str, Tensor]
"""0/1 for each entry that a client may or may not train, where that is not all of them."""


class Order(NamedTuple):
    """What a client is given: the server's message, its own memory, and which samples are its own.

    With a ``limit`` it takes so many steps at most: enough to measure how fast an executor is.
    """

    clock: Clock
    key: Key
    data: bytes
    state: State
    samples: np.ndarray
    limit: int | None = None


class Answer(NamedTuple):
    """What a client gives back: its message, what it remembers, and how training went."""

    sent: Sent
    state: State
    loss: float
    flops: int


class Done(NamedTuple):
    """An order, and what came of it: an answer, or the reason why there is none."""

    order: Order
    result: Answer | str


class Client:
    """Does orders, one at a time and step by step: the reference for every faster way."""

    def __init__(self, method: Method, objective: Objective) -> None:
        self.method, self.objective = method, objective
        self.like = objective.initial()

    def do(self, order: Order) -> Done:
        """Carry out an order; a failure is told, never raised: the round goes on without this client."""
        try:
            job = self.open(order)
            return Done(order, self.reply(job, self.train(order, job)))
        except Exception as error:
            return Done(order, reason(error))

    def open(self, order: Order) -> Job:
        """Read the server's message."""
        return self.method.open(order.data, self.like, order.state, order.clock, order.key)

    def reply(self, job: Job, trained: Trained) -> Answer:
        """Make the client's message of what training came to."""
        sent, state = self.method.reply(job, trained)
        return Answer(sent, state, trained.loss, trained.flops)

    def train(self, order: Order, job: Job) -> Trained:
        """The plain loop."""
        solver, objective = self.method.solver, self.objective
        start, losses, lesson = {**job.start, **objective.local()}, [], Lesson(self, order, job)
        carry, now = solver.begin(start, job.state.get("solver", {})), solver.now(job.clock)
        with seeded(fold(job.key, "torch")):
            for rows, draws in lesson:
                x, y = objective.batch(rows, draws)
                carry, loss = self.step(start, carry, job.part.keep, x, y, now)
                losses.append(loss)
        change, mean = subtract(carry["params"], job.start), float(torch.stack(losses).mean())
        return Trained(change, solver.end(carry), mean, lesson.flops(job.start), len(order.samples))

    def step(self, start: Params, carry: State, keep: Mask, x: Tensor, y: Tensor, now: Now) -> tuple[State, Tensor]:
        """One step, operation by operation: the next carry, and the loss."""
        losses: list[Tensor] = []

        def gradient(params: Params) -> tuple[Params, Params]:
            loss, grads, changed = self.objective.gradient(params, x, y)
            losses.append(loss)
            return masked(grads, keep), changed

        return self.method.solver.step(gradient, start, carry, now), losses[-1]


def masked(grads: Params, keep: Mask) -> Params:
    """Gradients, zero where the client does not train an entry."""
    return {name: g * keep[name] if name in keep else g for name, g in grads.items()} if keep else grads


class Lesson:
    """A client's batches for one round, as numbers of samples, with the draws that augment them."""

    def __init__(self, client: Client, order: Order, job: Job) -> None:
        objective, augment = client.objective, client.objective.task.data.augment
        plan = client.method.solver.plan(len(order.samples), fold(job.key, "batches"))
        self.rows = [order.samples[batch] for batch in plan[: order.limit]]
        self.draws: list[Tensor] | None = None
        if augment is not None:
            sizes = [len(rows) for rows in self.rows]
            noise = uniform(fold(job.key, "augment"), sum(sizes) * augment.draws, device=objective.device)
            self.draws = list(torch.split(noise.view(-1, augment.draws), sizes))
        self.objective = objective

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> list[int]:
        """How large each batch is."""
        return [len(rows) for rows in self.rows]

    def flops(self, params: Params) -> int:
        """What all steps cost, counted on one client alone, once for each size of batch."""
        first = {len(rows): rows for rows in self.rows}
        many = Counter(self.sizes)
        return sum(many[size] * self.objective.flops(params, torch.from_numpy(first[size])) for size in many)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for number, rows in enumerate(self.rows):
            yield torch.from_numpy(rows).to(self.objective.device), self.draws[number] if self.draws else None


def reason(error: BaseException) -> str:
    """An error in one line; those made for people need no class name."""
    return str(error) if isinstance(error, GossamerError) else f"{type(error).__name__}: {error}"
