"""Many clients in one computation: their tensors stacked along a new first dimension, one step for all of them.

Clients whose tensors have the same shapes form a bucket, and a bucket is cut into chunks. In a chunk every client has
its own place in its own plan of batches. Clients whose next batch is of the most common size step together; one that
stands before a batch of another size (the last of its epoch, say) takes that step first and then catches up. No
batch is ever padded, which would shift BatchNorm, and no client's steps change their order.
"""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.jobs import Job, Trained
from gossamer.engines.client import BatchSchedule, Client, ClientTask, Failure, TaskOutcome, reason
from gossamer.engines.executors.base import AlwaysReady
from gossamer.engines.executors.steps import Step, pure_step, tensors
from gossamer.tasks.objective import Objective

CHUNK = 16
"""How many clients are stacked at most: more of them go no faster, but hold more memory."""

Pair = tuple[ClientTask, Job]


class ClientGroup(Protocol):
    """Clients that train together."""

    def train(self) -> list[Trained]:
        """All steps of all clients."""
        ...


class InChunks(AlwaysReady, ABC):
    """Clients in groups of at most so many: of equal shapes, unless said otherwise."""

    threads: int | None = None

    def __init__(self, client: Client, size: int) -> None:
        refuse_random(client.objective)
        self.client, self.size = client, size

    @abstractmethod
    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        """The clients of a bucket, ready to step."""

    def bucket(self, job: Job) -> Any:
        """Jobs for which this is equal can be grouped."""
        return kind(job)

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Chunk by chunk."""
        waiting = iter(client_tasks)
        while chunk := list(islice(waiting, self.size)):
            yield from self._do(chunk)

    def _do(self, client_tasks: Sequence[ClientTask]) -> Iterator[TaskOutcome]:
        buckets: dict[Any, list[Pair]] = {}
        for client_task in client_tasks:
            try:
                job = self.client.read_download(client_task)
                buckets.setdefault(self.bucket(job), []).append((client_task, job))
            except Exception as error:
                yield TaskOutcome(client_task, Failure.of(error))
        for bucket in buckets.values():
            yield from self._train(bucket)

    def _train(self, bucket: Sequence[Pair]) -> Iterator[TaskOutcome]:
        """A bucket that fails is done again client by client, so that only the culprit is named."""
        try:
            with torch.no_grad():  # gradients are taken inside the step; outside of it there is nothing to record
                trained = self.group(bucket).train()
        except Exception as error:
            alone = [self.client.do(client_task) for client_task, _ in bucket]
            if not any(isinstance(done.result, Failure) for done in alone):
                warnings.warn(
                    f"clients could not be trained together, so they were alone: {reason(error)}", stacklevel=2
                )
            yield from alone
            return
        for (client_task, job), result in zip(bucket, trained, strict=True):
            try:
                yield TaskOutcome(client_task, self.client.make_upload(job, result))
            except Exception as error:
                yield TaskOutcome(client_task, Failure.of(error))


class Stacked(InChunks):
    """Chunks of clients, each as one batched computation."""

    def __init__(self, client: Client, size: int = CHUNK) -> None:
        super().__init__(client, size)
        step = pure_step(client)
        self.step: Step = torch.vmap(step, in_dims=(0, 0, 0, 0, 0, None), randomness="error")

    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        """The clients of a bucket, stacked."""
        return Chunk(self.client, self.step, bucket)


class Chunk:
    """Clients that step together, each at its own place in its own lesson."""

    def __init__(self, client: Client, step: Step, bucket: Sequence[Pair]) -> None:
        self.client, self.step, self.bucket = client, step, bucket
        solver, objective, jobs = client.exchange.solver, client.objective, [job for _, job in bucket]
        self.batches_per_client = [BatchSchedule(client, client_task, job) for client_task, job in bucket]
        begun = [client.begin(job, len(batches)) for job, batches in zip(jobs, self.batches_per_client, strict=True)]
        self.start, self.carry, self.context = (tree.stack(column) for column in zip(*begun, strict=True))
        self.hyperparams = tensors(solver.hyperparams(jobs[0].clock), objective)
        self.losses = torch.zeros(len(jobs), dtype=objective.layout.dtype, device=objective.device)
        self.at = [0] * len(jobs)

    def train(self) -> list[Trained]:
        """All steps of all clients."""
        for size, clients in schedule([batches.sizes for batches in self.batches_per_client]):
            self.client.objective.train_mode(alone=size == 1)
            self.advance(clients)
            for c in clients:
                self.at[c] += 1
        return self.results()

    def advance(self, clients: list[int]) -> None:
        """One step of the clients named, whose next batches are all of one size."""
        x, y = self.batch(clients)
        if len(clients) == 1:
            self.alone(clients[0], x[0], y[0])
        elif len(clients) == len(self.bucket):
            self.carry, losses = self.step(self.start, self.carry, self.context, x, y, self.hyperparams)
            self.losses += losses
        else:
            rows = torch.tensor(clients, device=self.losses.device)
            start, carry, context = (tree.take(nest, rows) for nest in (self.start, self.carry, self.context))
            new, losses = self.step(start, carry, context, x, y, self.hyperparams)
            tree.put(self.carry, rows, new)
            self.losses[rows] += losses

    def alone(self, c: int, x: Tensor, y: Tensor) -> None:
        """One client's step by itself, which stacking would only make dearer."""
        start, carry, context = (tree.take(nest, c) for nest in (self.start, self.carry, self.context))
        with torch.enable_grad():
            new, loss = self.client.step(start, carry, context, x, y, self.hyperparams)
        tree.put(self.carry, c, new)
        self.losses[c] += loss

    def batch(self, clients: list[int]) -> tuple[Tensor, Tensor]:
        """Their next batches, [clients, batch, ...]."""
        objective = self.client.objective
        rows = torch.stack([torch.from_numpy(self.batches_per_client[c].rows[self.at[c]]) for c in clients]).to(
            objective.device
        )
        draws = [
            batches.draws[self.at[c]] for c in clients if (batches := self.batches_per_client[c]).draws is not None
        ]
        x, y = objective.batch(rows.view(-1), torch.cat(draws) if draws else None)
        return x.view(*rows.shape, *x.shape[1:]), y.view(*rows.shape, *y.shape[1:])

    def results(self) -> list[Trained]:
        """What came of each client."""
        losses = (
            self.losses / torch.tensor([len(batches) for batches in self.batches_per_client]).to(self.losses)
        ).tolist()
        return [self._result(place, losses[place]) for place in range(len(self.bucket))]

    def _result(self, place: int, loss: float) -> Trained:
        return self.client.finish(
            *self.bucket[place], self.batches_per_client[place], tree.take(self.carry, place), loss
        )


def schedule(sizes: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Who steps together on batches of which size, step after step, given the sizes of everybody's batches.

    Clients before a batch of an uncommon size go first, so that they are in line again when the others step.

    >>> schedule([[4, 4, 1], [4, 4, 2]])
    [(4, [0, 1]), (4, [0, 1]), (2, [1]), (1, [0])]
    """
    at, steps = [0] * len(sizes), []
    while left := [c for c, own in enumerate(sizes) if at[c] < len(own)]:
        next_ = {c: sizes[c][at[c]] for c in left}
        common = Counter(next_.values()).most_common(1)[0][0]
        size = min((s for s in next_.values() if s != common), default=common)
        steps.append((size, [c for c in left if next_[c] == size]))
        for c in steps[-1][1]:
            at[c] += 1
    return steps


def refuse_random(objective: Objective) -> None:
    """Stacked or compiled, a network that draws random numbers would draw others than it does alone."""
    if objective.random:
        raise ConfigError("a network with dropout cannot be stacked or compiled: use one-by-one or side-by-side")


def kind(job: Job) -> Any:
    """Jobs of one kind can be stacked."""
    return tree.shape(job.start), tree.shape(job.part.keep), tree.shape(job.state.get("solver", {}))
