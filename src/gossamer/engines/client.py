"""The client side of a round: read the server's message, train, and encode the upload.

A client gets a ``ClientTask`` and returns a ``ClientResult``. Both consist of bytes and tensors, so they can be sent to
other processes. The simulator and the Flower nodes use the same class, ``Client``.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.delivery import Delivery, delivery
from gossamer.core.devices import number, to_device
from gossamer.core.errors import ConfigError, GossamerError
from gossamer.core.jobs import SILENT, Broadcast, Job, Outgoing, Trained, own_key
from gossamer.core.parametrization import Weights
from gossamer.core.random import Key, fold, seeded, tensor
from gossamer.core.tree import multiply
from gossamer.core.types import Clock, Flops, Params, State
from gossamer.core.wire import Frame
from gossamer.engines.adversary import Adversary, withheld
from gossamer.engines.local_step import LocalStep
from gossamer.methods.composition import compose
from gossamer.parts.views.entries import Full
from gossamer.tasks.data import nests
from gossamer.tasks.data.lazy import LazySamples, Request
from gossamer.tasks.losses import weight
from gossamer.tasks.objective import Objective


class ClientTask(NamedTuple):
    """One client's work in one exchange.

    Args:
        clock: round and client
        key: random key of the exchange
        data: the server's message
        state: the client state
        samples: indices of the client's training samples
        limit: maximum number of local steps, for speed measurements; none means all steps
    """

    clock: Clock
    key: Key
    data: Frame
    state: State
    samples: np.ndarray
    limit: int | None = None


class ClientResult(NamedTuple):
    """The result of a client task.

    Args:
        sent: the upload
        state: the new client state
        loss: mean training loss
        flops: floating-point operations of the task
        delivery: what the client knows about the delivery of its earlier uploads
    """

    sent: Outgoing
    state: State
    loss: float
    flops: Flops
    delivery: Delivery = Delivery()


class Failure(NamedTuple):
    """Why a client has no result: one line of text, and the exception if it was raised in this process."""

    reason: str
    cause: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describe an exception."""
        return cls(reason(error), error)


class TaskOutcome(NamedTuple):
    """A client task with its result, or the reason for its failure."""

    client_task: ClientTask
    result: ClientResult | Failure


class Client:
    """Runs client tasks one at a time, one local step after the other: the reference for all executors."""

    def __init__(
        self,
        method: BoundMethod,
        objective: Objective,
        exchange: BoundExchange | None = None,
        adversary: Adversary | None = None,
    ) -> None:
        self.method, self.objective, self.exchange = method, objective, exchange or method.training
        self.adversary = adversary
        self.parametrized = method.parametrization != Weights()
        self._broadcasts: list[Broadcast] = []  # of one exchange, one per version that clients held before it
        self._announced: dict[Clock, BatchSchedule] = {}

    @cached_property
    def built(self) -> Params:
        """The initial tensors of the network."""
        return self.objective.initial()

    def do(self, client_task: ClientTask) -> TaskOutcome:
        """Run a client task. A failure is returned, not raised, because the round continues without this client."""
        try:
            job = self.read_download(client_task)
            return TaskOutcome(client_task, self.make_upload(job, self.train(client_task, job)))
        except Exception as error:
            return TaskOutcome(client_task, Failure.of(error))

    def read_download(self, client_task: ClientTask) -> Job:
        """Decode the server's message; of several models choose the one with the smallest loss."""
        job = self._received(client_task)
        if len(job.models) == 1:
            return job
        refuse_reading(self, "chooses among several models by the loss")
        best, spent = self.best(job.models, client_task.samples)
        return self.exchange.choose(job, best)._replace(spent=spent)

    def least_flops(self, client_task: ClientTask) -> Flops:
        """Return the operations of the local steps, which are known before training. The whole task has no fewer."""
        job = self._received(client_task)
        batches, solver = BatchSchedule(self, client_task), self.exchange.solver
        if solver.eager:  # training draws other batches, which have fewer rows
            batches.rows = [rows[: solver.rows(len(client_task.samples))] for rows in batches.rows]
        return batches.flops(job if len(job.models) == 1 else self.exchange.choose(job, 0))

    def _received(self, client_task: ClientTask) -> Job:
        """Decode the server's message. The common piece is decoded once for all clients of a round."""
        data, key, state = client_task.data, client_task.key, client_task.state
        kept = [each for each in self._broadcasts if each.key == key]
        before = next((each for each in kept if each.fits(data, key)), None)
        if before is None and kept:  # other steps to the same model
            state = {**state, **self.exchange.held_after(kept[0], client_task.clock)}
        job = self.exchange.read_download(data, state, client_task.clock, key, before)
        if before is None and job.broadcast is not None:
            self._broadcasts = [*kept, job.broadcast.sharing(kept)]
        return job._replace(labels=self.labels(client_task.samples), samples=client_task.samples)

    def choose(self, models: Sequence[Params], samples: np.ndarray) -> Params:
        """Return the model with the smallest loss on a client's samples."""
        return models[self.best(models, samples)[0] if len(models) > 1 else 0]

    def best(self, models: Sequence[Params], samples: np.ndarray) -> tuple[int, int]:
        """Return the index of the model with the smallest loss, and the operations spent on the comparison."""
        labels = self.labels(samples)
        losses, spent = zip(*(self.loss(model, samples, labels) for model in models), strict=True)
        return int(np.argmin(losses)), sum(spent)

    def loss(self, held: Params, samples: np.ndarray, labels: Tensor | None) -> tuple[float, int]:
        """Return the mean loss of a model on a client's samples, and the operations spent on it."""
        params = self.method.parametrization.deploy(held, self.built) if self.parametrized else held
        rows = torch.from_numpy(samples).to(self.objective.device)
        loss = self.objective.evaluate(params, *self.objective.samples.read(rows), labels).loss
        return loss, self.objective.forward_flops(params, rows)

    def labels(self, samples: np.ndarray) -> Tensor | None:
        """Return a vector with 1 for each label of the client's samples; none if all labels count."""
        if self.exchange.labels is None:
            return None
        device = self.objective.device
        found = torch.zeros(self.exchange.labels.count, dtype=self.objective.layout.dtype, device=device)
        found[self.objective.samples.y[torch.from_numpy(samples).to(device)]] = 1
        return found

    def make_upload(self, job: Job, trained: Trained) -> ClientResult:
        """Encode the upload from the result of training; a hostile client changes the result first."""
        if self.adversary is None:
            return self.encode(job, trained)
        if self.adversary.colludes(job.clock.client):
            return ClientResult(SILENT, withheld(trained), trained.loss, trained.flops)
        return self.encode(job, self.adversary.altered(job, trained))

    def encode(self, job: Job, trained: Trained) -> ClientResult:
        """Encode the upload from a result of training as it is."""
        info = TrainingInfo(self, job, trained)
        sent, state = self.exchange.make_upload(job, trained, info)
        flops = trained.flops.plus(info.flops + job.spent)
        return ClientResult(sent, state, trained.loss, flops, delivery(job.state))

    def train(self, client_task: ClientTask, job: Job) -> Trained:
        """Run all local steps."""
        objective, step = self.objective, self.local_step(job).eager
        batches, losses = self.batches(client_task), []
        start, carry, context = self.begin(job, len(batches))
        hyperparams = self.exchange.solver.hyperparams(job.clock)
        with seeded(fold(job.key, "torch")):
            for feed in batches:
                carry, loss = step(start, carry, at_batch(context, feed), *objective.open(feed), hyperparams)
                losses.append(loss)
        return self.finish(client_task, job, batches, carry, mean(losses))

    def batches(self, client_task: ClientTask) -> "BatchSchedule":
        """Return the batches of a task, which may have been announced before."""
        return self._announced.pop(client_task.clock, None) or BatchSchedule(self, client_task)

    def announce(self, client_task: ClientTask) -> None:
        """Start reading the batches of the next task; samples in memory need no reading."""
        if self.objective.samples.lazy and client_task.clock not in self._announced:
            self._announced[client_task.clock] = batches = BatchSchedule(self, client_task)
            batches.announce()

    def finish(self, client_task: ClientTask, job: Job, batches: "BatchSchedule", carry: State, loss: float) -> Trained:
        """Build the training result from the carry of the last step and the mean loss."""
        layout, change = self.exchange.solver_on(job.layout).layout, Params()
        if not self.exchange.carried:
            change = layout.unflatten(carry["params"] - layout.joined(job.start))
            if self.objective.constant:  # of these, nothing has changed
                change = job.layout.full.unflatten(job.layout.full.padded(change))
        return Trained(change, carry, loss, batches.flops(job), len(client_task.samples))

    def begin(self, job: Job, steps: int) -> tuple[Tensor, State, State]:
        """Return the start of a round, the carry of its first step, and the context that all steps share."""
        exchange, objective, device = self.exchange, self.objective, self.objective.device
        solver = exchange.solver_on(job.layout)
        layout = solver.layout
        start = layout.joined(job.start)  # [n]
        carry = solver.begin(start, exchange.solver_sections(job.sections, solver), exchange.solver_state(job), steps)
        if objective.counters:
            carry = {**carry, "counters": objective.local()}
        codec = exchange.codec.surrogate_context(exchange.coding(job), steps, device)
        form = State()
        if self.parametrized:
            form = self.method.parametrization.context(job.part.take(self.built), fold(job.key, "form"))
        constant = {name: job.start[name] for name in objective.constant}
        context: State = {"constant": constant, "codec": codec, "form": form}
        if job.part.keep:
            kept = {name: job.part.keep.get(name, torch.ones_like(tensor)) for name, tensor in job.start.items()}
            context["keep"] = layout.flatten(kept).to(start)  # [n]
        if job.labels is not None:
            context["labels"] = job.labels
        if objective.random.layers:
            context["random"] = {"key": tensor(fold(job.key, "layers"), device)}
        if solver.uses == "samples":
            assert job.samples is not None
            expected = number(solver.expected(len(job.samples)), layout.dtype, device)
            context["per_sample"] = {"key": tensor(fold(job.key, "solver"), device), "expected": expected}
        if solver.uses == "losses":
            common, own = solver.direction_key(job.codec_key), fold(job.key, "solver")
            context["forward"] = {"common": tensor(common, device), "own": tensor(own, device)}
        if codec or form or context.keys() & {"random", "per_sample", "forward"}:
            carry = {**carry, "step_index": torch.zeros((), dtype=torch.int64, device=device)}
        if job.scale is not None:
            context["scale"] = number(job.scale, layout.dtype, device)
        return start, carry, context

    def local_step(self, job: Job) -> LocalStep:
        """Return the local step of clients with tensors like this one's."""
        return LocalStep(self.method, self.exchange, self.objective, job.layout)

    def screen_rows(self, job: Job) -> Tensor:
        """Return the samples of the gradient after training: the first batch of a new permutation."""
        assert job.samples is not None
        plan = self.exchange.solver.plan(len(job.samples), fold(job.key, "screen"))
        return torch.from_numpy(job.samples[plan[0]])

    def screen_feed(self, job: Job) -> State:
        """Return the same batch on the device, with its draws for the augmentation."""
        rows, objective = self.screen_rows(job), self.objective
        draws = objective.draws(fold(job.key, "screen", "augment"), len(rows))
        return {"rows": rows.to(objective.device)} | ({} if draws is None else {"draws": draws})

    def screen(self, weights: Params, feed: State, labels: Tensor | None) -> Params:
        """Return the gradient of one batch for all entries, held or not, in evaluation mode."""
        held, objective = {**weights, **self.objective.local()}, self.objective
        return objective.gradient(held, *objective.open(feed), labels, training=False)[1]

    def tuned(self, model: Params, clock: Clock, key: Key, samples: np.ndarray) -> Params:
        """Fine-tune a model on the client's samples, if the method does that; ``key`` is the key of the round.

        The client state does not change, so the result is the same at every call.
        """
        if self._tuner is None:
            return model
        client_task = ClientTask(clock, fold(key, "tune"), SILENT.data, {"own": model}, samples)
        job = self._tuner.read_download(client_task)
        own: Params = self._tuner.make_upload(job, self._tuner.train(client_task, job)).state["own"]
        return own

    @cached_property
    def _tuner(self) -> "Client | None":
        """A client that trains without sending anything."""
        if (solver := self.method.tune) is None:
            return None
        alone = compose(Full(), solver, send="nothing", labels=self.exchange.exchange.labels)
        return Client(alone.bind(self.objective), self.objective)


def mean(losses: Sequence[Tensor]) -> float:
    """Return the mean loss of a round's steps; NaN if there are none."""
    return float(torch.stack(list(losses)).mean()) if losses else math.nan


def at_batch(context: State, feed: State) -> State:
    """Return the context of a step on a batch: with the rows that count, if not all do."""
    return {**context, "real": feed["real"]} if "real" in feed else context


class BatchSchedule:
    """The batches of one client in one round: sample indices, and random draws for the augmentation.

    Samples that are read when needed can be announced, so that they are read ahead of training.
    """

    def __init__(self, client: Client, client_task: ClientTask) -> None:
        self.key = own_key(client_task.key, client_task.clock)
        solver, samples, key = client.exchange.solver, client_task.samples, fold(self.key, "batches")
        drawn = solver.draw(len(samples), key)[: client_task.limit]
        self.rows = [samples[each.rows] for each in drawn]
        self.counts = [each.drawn for each in drawn] if solver.uses == "samples" else None
        self.objective = client.objective
        self.requests: dict[int, Request] = {}
        self.evaluations = solver.evaluations if solver.uses == "losses" else None

    @cached_property
    def draws(self) -> list[Tensor] | None:
        """Random draws for the augmentation of each batch; none without augmentation."""
        noise = self.objective.draws(fold(self.key, "augment"), sum(self.sizes)) if self.rows else None
        return None if noise is None else list(torch.split(noise, self.sizes))

    @cached_property
    def real(self) -> list[Tensor] | None:
        """1 for each row that is in its batch, and 0 for those that fill it up; none if all rows are."""
        if self.counts is None:
            return None
        dtype, device = self.objective.layout.dtype, self.objective.device
        marks = np.concatenate([np.arange(size) < n for size, n in zip(self.sizes, self.counts, strict=True)])
        return list(torch.split(to_device(torch.from_numpy(marks).to(dtype), device), self.sizes))

    def announce(self, numbers: Iterable[int] | None = None) -> None:
        """Start reading batches, by default all, in the given order; samples in memory need no reading."""
        if isinstance(samples := self.objective.samples, LazySamples):
            wanted = [n for n in (range(len(self)) if numbers is None else numbers) if n not in self.requests]
            batches = ((self.rows[number], fold(self.key, "read", number)) for number in wanted)
            self.requests |= dict(zip(wanted, samples.announce(batches), strict=True))

    def feed(self, number: int) -> State:
        """Return what a step needs of a batch: sample indices, or the inputs and targets themselves."""
        marks = {"draws": self.draws, "real": self.real}
        draws = {name: values[number] for name, values in marks.items() if values is not None}
        if not isinstance(samples := self.objective.samples, LazySamples):
            return {"rows": torch.from_numpy(self.rows[number]).to(self.objective.device), **draws}
        self.announce([number])
        x, y = samples.fetch(self.requests.pop(number))
        return {"x": {path or "x": tensor for path, tensor in nests.leaves(x).items()}, "y": y, **draws}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> list[int]:
        """Sizes of the batches."""
        return [len(rows) for rows in self.rows]

    @property
    def numbers(self) -> Tensor:
        """Indices of all samples, batch after batch."""
        return torch.from_numpy(np.concatenate(self.rows))

    def flops(self, job: Job) -> Flops:
        """Return the cost of all steps; it is measured once per batch size."""
        if self.evaluations is not None:
            seen = self.objective.forward_flops(job.start, torch.from_numpy(np.concatenate(self.rows)))
            spent = self.evaluations * seen
            return Flops(spent, spent, sum(self.sizes) / max(1, len(self)))
        first = {len(rows): torch.from_numpy(rows) for rows in self.rows}
        counts, keep = Counter(self.sizes), dict(job.part.keep)
        costs = [(n, self.objective.flops(job.start, first[size], keep)) for size, n in counts.items()]
        done, useful = (sum(n * getattr(cost, name) for n, cost in costs) for name in ("done", "useful"))
        return Flops(done, useful, sum(self.sizes) / max(1, len(self)))

    def __iter__(self) -> Iterator[State]:
        self.announce()
        return map(self.feed, range(len(self)))


class TrainingInfo:
    """What a client knows after training, and what it can compute from that for its upload."""

    def __init__(self, client: Client, job: Job, trained: Trained) -> None:
        self.client, self.job, self.change = client, job, trained.change
        self.start, self.layout, self.flops = job.start, client.exchange.solver_on(job.layout).layout, 0
        self._carry, self._gradient = trained.carry, trained.gradient

    @cached_property
    def weights(self) -> Params:
        """The client's tensors after training."""
        full = self.job.layout.full
        return full.unflatten(full.joined(self.start) + full.joined(self.change))

    @cached_property
    def carry(self) -> State:
        """The solver's carry after the last step, with its vectors as tensors by name."""
        size, unflatten = (self.layout.size,), self.layout.unflatten
        vectors = {
            name: value for name, value in self._carry.items() if isinstance(value, Tensor) and value.shape == size
        }
        return {**self._carry, **{name: unflatten(vector) for name, vector in vectors.items()}}

    @property
    def _rows(self) -> Tensor:
        assert self.job.samples is not None
        return torch.from_numpy(self.job.samples).to(self.client.objective.device)

    def loss(self) -> float:
        """Return the mean loss of the client's training samples at the received model."""
        assert self.job.samples is not None
        refuse_reading(self.client, "sends the loss")
        loss, spent = self.client.loss(self.start, self.job.samples, self.job.labels)
        self.flops += spent
        return loss

    def accuracy(self, params: Params) -> float:
        """Return the accuracy of a model on the client's training samples."""
        refuse_reading(self.client, "decides by the accuracy")
        objective, rows = self.client.objective, self._rows
        self.flops += objective.forward_flops(params, rows)
        judged = objective.evaluate(params, *objective.samples.read(rows), self.job.labels)
        return judged.values()[objective.metrics.index("accuracy")]

    def gradient(self) -> Params:
        """Return the gradient after training, in evaluation mode, on the first batch of a new permutation."""
        refuse_reading(self.client, "decides by a gradient")
        if self._gradient is not None:  # with its operations among those of training
            return self._gradient
        client, job = self.client, self.job
        self.flops += client.objective.flops(self.weights, client.screen_rows(job)).done
        return client.screen(self.weights, client.screen_feed(job), job.labels)

    def start_gradient(self) -> Params:
        """Return the gradient at the received model, in evaluation mode, of the mean loss of all samples."""
        refuse_reading(self.client, "sends a gradient")
        objective, total = self.client.objective, Params()
        params = {**self.start, **objective.local()}
        whole = weight(objective.task.loss, objective.samples.y[self._rows])
        for rows in torch.split(self._rows, objective.task.statistics.size):
            self.flops += objective.flops(self.start, rows.cpu()).done
            x, y = objective.samples.read(rows)
            grads = objective.gradient(params, x, y, self.job.labels, training=False)[1]
            share = weight(objective.task.loss, y) / whole
            total = {name: total.get(name, 0) + share * grad for name, grad in grads.items()}
        return multiply(total, self.job.part.keep)


def refuse_reading(client: Client, how: str) -> None:
    """Refuse what reads the samples of a client outside of the steps of a solver that protects them."""
    if client.exchange.solver.uses == "samples":
        name = type(client.exchange.solver).__name__
        raise ConfigError(f"the method {how} of a client's samples, which {name} does not protect: use another method")


def reason(error: BaseException) -> str:
    """Describe an error in one line; Gossamer's own errors need no class name."""
    return str(error) if isinstance(error, GossamerError) else f"{type(error).__name__}: {error}"
