"""Many clients in one computation: tensors stacked along a new first dimension, one step for all clients.

Clients with tensors of the same shapes form a bucket, and a bucket is cut into chunks. In a chunk every client follows
its own batch schedule. Clients whose next batch has the most common size step together. A client whose next batch has
another size (the last of an epoch, say) takes that step first and then catches up. Batches are never padded, because
padding would change BatchNorm statistics. The order of a client's steps never changes. Clients with a single step do
not change the model that they share, so it is not stacked (``SingleSteps``).
"""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError, Mistake, Setting
from gossamer.core.jobs import Job, Trained
from gossamer.core.types import Layout, State
from gossamer.engines.client import BatchSchedule, Client, ClientTask, Failure, TaskOutcome, at_batch, reason
from gossamer.engines.executors.base import AlwaysReady
from gossamer.engines.executors.steps import Step, tensors
from gossamer.engines.local_step import LocalStep
from gossamer.tasks.data import nests
from gossamer.tasks.data.samples import Batch
from gossamer.tasks.operations import stackable_attention

CHUNK = 16
"""Maximum number of stacked clients: more are not faster, but need more memory."""

Pair = tuple[ClientTask, Job]


class TrainedAloneWarning(UserWarning):
    """Clients of a group were trained one by one, because the network's operations cannot be stacked or captured."""


class ClientGroup(ABC):
    """Clients that train together."""

    @abstractmethod
    def launch(self) -> None:
        """Run all steps of all clients. A GPU may still be running them when this returns."""

    @abstractmethod
    def results(self) -> Iterator[Trained]:
        """Yield the training result of each client, as soon as its steps are finished."""

    def train(self) -> list[Trained]:
        """Run all steps of all clients, and return the results."""
        self.launch()
        return list(self.results())


class InChunks(AlwaysReady, ABC):
    """Trains clients in groups of at most ``size``, by default of equal shapes."""

    threads: int | None = None
    ahead: ClassVar[bool] = False
    """Whether a group starts before the uploads of the last one are made: groups that train beside the host."""

    def __init__(self, client: Client, size: int) -> None:
        refuse_eager(client)
        self.client, self.size = client, size

    @abstractmethod
    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        """Prepare the clients of a bucket."""

    def bucket(self, job: Job) -> Any:
        """Return a key; jobs with equal keys form a group."""
        return kind(job)

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Run group after group.

        With ``ahead``, the uploads of a group are made and aggregated, and the tasks of the next one are read, while a
        group trains. Then up to two chunks of tasks are in memory. The uploads of the last group are made while its
        other clients train.
        """
        running: tuple[Sequence[Pair], ClientGroup | Exception] | None = None
        for bucket in self._buckets(client_tasks):
            if isinstance(bucket, TaskOutcome):
                yield bucket
                continue
            outcomes: Iterator[TaskOutcome] = iter(())
            if running:  # all results are copied before the next group takes their place
                outcomes = self._outcomes(running[0], self._finished(running[1]))
            running = bucket, self._started(bucket)
            yield from outcomes
            if not self.ahead:
                yield from self._outcomes(bucket, self._finished(running[1]))
                running = None
        if running:
            yield from self._outcomes(running[0], self._results(running[1]))

    def _buckets(self, client_tasks: Iterable[ClientTask]) -> Iterator[list[Pair] | TaskOutcome]:
        """Read the tasks chunk by chunk. Yield the buckets, and tasks whose message is refused."""
        waiting = iter(client_tasks)
        while chunk := list(islice(waiting, self.size)):
            buckets: dict[Any, list[Pair]] = {}
            for client_task in chunk:
                try:
                    job = self.client.read_download(client_task)
                    buckets.setdefault(self.bucket(job), []).append((client_task, job))
                except Exception as error:
                    yield TaskOutcome(client_task, Failure.of(error))
            yield from buckets.values()

    def _started(self, bucket: Sequence[Pair]) -> ClientGroup | Exception:
        """Start the training of a bucket; return the reason if that fails."""
        try:
            with torch.no_grad(), self.client.objective.precision.products():  # the step itself enables gradients
                group = self.group(bucket)
                group.launch()
                return group
        except Exception as error:
            return error

    def _results(self, group: ClientGroup | Exception) -> Iterator[Trained]:
        """Yield the results of a group, as soon as each is there; raise if the group failed."""
        if isinstance(group, Exception):
            raise group
        results = iter(group.results())
        while True:
            with torch.no_grad(), self.client.objective.precision.products():
                result = next(results, None)
            if result is None:
                return
            yield result

    def _finished(self, group: ClientGroup | Exception) -> Iterator[Trained]:
        """Return the results of a group, once all are there; they raise when they are taken if the group failed."""
        try:
            return iter(list(self._results(group)))
        except Exception as error:
            return self._results(error)

    def _outcomes(self, bucket: Sequence[Pair], results: Iterator[Trained]) -> Iterator[TaskOutcome]:
        """Make the uploads of a bucket, one at a time. From the first result that fails, clients are trained alone."""
        for number, (client_task, job) in enumerate(bucket):
            try:
                result = next(results)
            except Exception as error:
                yield from self._alone(bucket[number:], error)
                return
            try:
                yield TaskOutcome(client_task, self.client.make_upload(job, result))
            except Exception as error:
                yield TaskOutcome(client_task, Failure.of(error))

    def _alone(self, bucket: Sequence[Pair], error: Exception) -> Iterator[TaskOutcome]:
        """Train each client of a bucket alone, to find which one fails."""
        alone = [self.client.do(client_task) for client_task, _ in bucket]
        if not any(isinstance(done.result, Failure) for done in alone):
            text = f"clients could not be trained together and were trained one by one: {reason(error)}"
            warnings.warn(text, TrainedAloneWarning, stacklevel=2)
        yield from alone


class Stacked(InChunks):
    """Chunks of clients, each as one batched computation."""

    def __init__(self, client: Client, size: int = CHUNK) -> None:
        super().__init__(client, size)
        self.made: Callable[[Step], Step] | None = None
        self.steps = dict[Layout, Step]()

    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        """Stack the clients of a bucket."""
        batches = [self.client.batches(client_task) for client_task, _ in bucket]
        local = self.client.local_step(bucket[0][1])
        if all(len(own) == 1 for own in batches):
            return SingleSteps(self.client, local, bucket, batches)
        if local.layout not in self.steps:
            together: Step = torch.vmap(local.pure, in_dims=(0, 0, 0, 0, 0, None), randomness="error")
            self.steps[local.layout] = self.made(together) if self.made else together
        return Chunk(self.client, local, self.steps[local.layout], bucket, batches)


class Chunk(ClientGroup):
    """Clients that step together, each at its own position in its batch schedule."""

    def __init__(
        self, client: Client, local: LocalStep, step: Step, bucket: Sequence[Pair], batches: Sequence[BatchSchedule]
    ) -> None:
        self.client, self.local, self.step, self.bucket, self.batches_per_client = client, local, step, bucket, batches
        solver, objective, jobs = client.exchange.solver, client.objective, [job for _, job in bucket]
        begun = [client.begin(job, len(own)) for job, own in zip(jobs, batches, strict=True)]
        starts, carries, contexts = zip(*begun, strict=True)
        self.start, self.carry, self.context = torch.stack(starts), tree.stack(carries), tree.stack(contexts)  # [K, n]
        self.hyperparams = tensors(solver.hyperparams(jobs[0].clock), objective)
        self.losses = torch.zeros(len(jobs), dtype=objective.layout.dtype, device=objective.device)
        self.at = [0] * len(jobs)

    def launch(self) -> None:
        """Run all steps of all clients."""
        steps = schedule([batches.sizes for batches in self.batches_per_client])
        announce(self.batches_per_client, [c for _, clients in steps for c in clients])
        for size, clients in steps:
            self.client.objective.train_mode(alone=size == 1)
            self.advance(clients)
            for c in clients:
                self.at[c] += 1

    def advance(self, clients: list[int]) -> None:
        """Run one step of some clients, whose next batches have the same size."""
        feeds = [self.batches_per_client[c].feed(self.at[c]) for c in clients]
        if len(clients) == 1:
            self.alone(clients[0], feeds[0])
            return
        with stackable_attention(self.losses.device):
            self.together(clients, feeds)

    def together(self, clients: list[int], feeds: Sequence[State]) -> None:
        """Run one stacked step."""
        if len(clients) == len(self.bucket):
            context, (x, y) = at_batch(self.context, stacked_marks(feeds)), stacked_batch(self.client, feeds)
            self.carry, losses = self.step(self.start, self.carry, context, x, y, self.hyperparams)
            self.losses += losses
        else:
            rows = torch.tensor(clients, device=self.losses.device)
            start, carry, context = self.start[rows], tree.take(self.carry, rows), tree.take(self.context, rows)
            context, (x, y) = at_batch(context, stacked_marks(feeds)), stacked_batch(self.client, feeds)
            new, losses = self.step(start, carry, context, x, y, self.hyperparams)
            tree.put(self.carry, rows, new)
            self.losses[rows] += losses

    def alone(self, c: int, feed: State) -> None:
        """Run one client's step without stacking, which is cheaper for a single client."""
        start, carry, context = self.start[c], tree.take(self.carry, c), tree.take(self.context, c)
        new, loss = step_alone(self.client, self.local, start, carry, context, feed, self.hyperparams)
        tree.put(self.carry, c, new)
        self.losses[c] += loss

    def results(self) -> Iterator[Trained]:
        """Yield the training result of each client."""
        steps = torch.tensor([len(batches) for batches in self.batches_per_client]).to(self.losses)
        for index, loss in enumerate((self.losses / steps).tolist()):
            yield self._result(index, loss)

    def _result(self, index: int, loss: float) -> Trained:
        return self.client.finish(
            *self.bucket[index], self.batches_per_client[index], tree.take(self.carry, index), loss
        )


class SingleSteps(ClientGroup):
    """Clients that take one step each. Tensors that they share, such as the received model, are not copied per client.

    With one model, the forward pass of all clients is that of one large batch.
    """

    def __init__(
        self, client: Client, local: LocalStep, bucket: Sequence[Pair], batches: Sequence[BatchSchedule]
    ) -> None:
        self.client, self.local, self.bucket, self.batches = client, local, bucket, batches
        self.begun = [client.begin(job, 1) for _, job in bucket]
        self.hyperparams = tensors(client.exchange.solver.hyperparams(bucket[0][1].clock), client.objective)
        self.done: dict[int, tuple[State, Tensor]] = {}

    def launch(self) -> None:
        """Run the step of all clients, those with batches of the same size together."""
        groups = schedule([own.sizes for own in self.batches])
        announce(self.batches, [c for _, clients in groups for c in clients])
        for size, clients in groups:
            self.client.objective.train_mode(alone=size == 1)
            feeds = [self.batches[c].feed(0) for c in clients]
            if len(clients) == 1:
                begun = self.begun[clients[0]]
                self.done[clients[0]] = step_alone(self.client, self.local, *begun, feeds[0], self.hyperparams)
                continue
            with stackable_attention(self.client.objective.device):
                self.together(clients, feeds)

    def together(self, clients: Sequence[int], feeds: Sequence[State]) -> None:
        """Run one stacked step."""
        names = ("start", "carry", "context")
        given, dims = stack_apart([dict(zip(names, self.begun[c], strict=True)) for c in clients])
        marks, apart = stacked_marks(feeds), [dims[name] for name in names]
        apart[2] = {**apart[2], **dict.fromkeys(marks, 0)}
        step = torch.vmap(self.local.pure, (*apart, 0, 0, None), 0, "error")
        batch, context = stacked_batch(self.client, feeds), at_batch(given["context"], marks)
        new, losses = step(given["start"], given["carry"], context, *batch, self.hyperparams)
        self.done |= {c: (tree.take(new, row), losses[row]) for row, c in enumerate(clients)}

    def results(self) -> Iterator[Trained]:
        """Yield the training result of each client."""
        for index, (client_task, job) in enumerate(self.bucket):
            carry, loss = self.done[index]
            yield self.client.finish(client_task, job, self.batches[index], carry, float(loss))


def step_alone(
    client: Client,
    local: LocalStep,
    start: Tensor,
    carry: State,
    context: State,
    feed: State,
    hyperparams: dict[str, Tensor],
) -> tuple[State, Tensor]:
    """Run one client's step without stacking, which is cheaper for a single client."""
    with torch.enable_grad():
        return local.eager(start, carry, at_batch(context, feed), *client.objective.open(feed), hyperparams)


def stack_apart(nests: Sequence[State]) -> tuple[State, dict[str, Any]]:
    """Return stacked nests, and the dimension of each tensor: 0, or none for one that all nests share."""
    stacked, dims = State(), dict[str, Any]()
    for name, value in nests[0].items():
        column = [nest[name] for nest in nests]
        if isinstance(value, Mapping):
            stacked[name], dims[name] = stack_apart(column)
        elif all(_same(other, value) for other in column):
            stacked[name], dims[name] = value, None
        else:
            stacked[name], dims[name] = torch.stack(column), 0
    return stacked, dims


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are one, or equal keys or counters; the values of larger tensors are not compared."""
    number = one.numel() <= 2 and not one.is_floating_point()
    return one.is_set_to(other) or (number and torch.equal(one, other))


def stacked_batch(client: Client, feeds: Sequence[State]) -> Batch:
    """Return the batches of several clients, with shape [clients, batch, ...]."""
    x, y = client.objective.open(tree.concatenate(feeds))
    shape = (len(feeds), len(y) // len(feeds))
    return nests.apply(lambda tensor: tensor.view(*shape, *tensor.shape[1:]), x), y.view(*shape, *y.shape[1:])


def stacked_marks(feeds: Sequence[State]) -> State:
    """Return which rows of the clients' batches count, if not all do, with shape [clients, batch]."""
    return {"real": torch.stack([feed["real"] for feed in feeds])} if "real" in feeds[0] else {}


def schedule(sizes: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Return for each step its batch size and its clients, given the batch sizes of all clients.

    Clients with a batch of an uncommon size step first, so that they can step together with the others again.

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


def announce(batches_per_client: Sequence[BatchSchedule], order: Sequence[int]) -> None:
    """Start reading the batches of several clients, in the order in which the clients take steps."""
    taken = Counter[int]()
    for c in order:
        batches_per_client[c].announce([taken[c]])
        taken[c] += 1


def refuse_eager(client: Client) -> None:
    """Refuse what works only where each operation runs alone: checkpointing, and other than Gossamer's generators."""
    solver = client.exchange.solver
    if client.objective.checkpointing:
        text = "saves no memory where steps are stacked, compiled or captured: use one-by-one or side-by-side"
        raise ConfigError(Mistake(text, Setting("", "checkpointing")))
    if solver.eager:
        raise ConfigError(
            f"{type(solver).__name__} draws noise in every step from the operating system's "
            "generator: it cannot be stacked, compiled or captured; use one-by-one or side-by-side"
        )
    if other := client.objective.random.other:
        raise ConfigError(
            f"the network draws random numbers by {other}: it cannot be stacked, compiled or captured; "
            "use one-by-one or side-by-side"
        )


def kind(job: Job) -> Any:
    """Return a key of a job's shapes; jobs with equal keys can be stacked."""
    return tree.shape(job.start), tree.shape(job.part.keep), tree.shape(job.state.get("solver", {}))
