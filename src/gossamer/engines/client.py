"""The client's half of a round, whole: read the server's message, train, reply.

Whoever runs a client, one of thousands in a simulation or the only one on a machine, hands it an ``Order`` and gets an
``Answer``; both are made of bytes and tensors alone, so they cross process boundaries.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.codecs import Codec
from gossamer.errors import GossamerError
from gossamer.fates import Fate, fate
from gossamer.forms import Weights
from gossamer.method import SILENT, Broadcast, Job, Method, Sent, Trained
from gossamer.objective import Objective, seeded
from gossamer.random import Key, fold
from gossamer.solvers import Now
from gossamer.tree import add, multiply, scale, subtract
from gossamer.types import Clock, Flops, Params, State
from gossamer.views import Full
from gossamer.wire import Letter

Gradients = tuple[Params, Params]  # named, because the compiler reads annotations too, and trips over brackets
Evaluate = Callable[[Params], tuple[Tensor, Params, Params]]
"""From the model's tensors to loss, gradients and changed buffers, on the batch at hand."""


class Order(NamedTuple):
    """What a client is given: the server's message, its own memory, and which samples are its own.

    ``key`` is the round's. With a ``limit`` it takes so many steps at most: enough to measure how fast an executor is.
    """

    clock: Clock
    key: Key
    data: Letter
    state: State
    samples: np.ndarray
    limit: int | None = None


class Answer(NamedTuple):
    """What a client gives back: its message, what it remembers, how training went, and how lost messages fare."""

    sent: Sent
    state: State
    loss: float
    flops: Flops
    fate: Fate = Fate()


class Done(NamedTuple):
    """An order, and what came of it: an answer, or the reason why there is none."""

    order: Order
    result: Answer | str


class Client:
    """Does orders, one at a time and step by step: the reference for every faster way."""

    def __init__(self, method: Method, objective: Objective) -> None:
        self.method, self.objective = method.fit(objective), objective
        self.formed = self.method.form != Weights()
        self.like = objective.initial() if self.formed or not self.method.shared else objective.outline()
        self._broadcast: Broadcast | None = None

    def do(self, order: Order) -> Done:
        """Carry out an order; a failure is told, never raised: the round goes on without this client."""
        try:
            job = self.open(order)
            return Done(order, self.reply(job, self.train(order, job)))
        except Exception as error:
            return Done(order, reason(error))

    def open(self, order: Order) -> Job:
        """Read the server's message."""
        before = self._broadcast if self._broadcast and self._broadcast.fits(order.data, order.key) else None
        job = self.method.open(order.data, self.like, order.state, order.clock, order.key, before)
        self._broadcast = job.broadcast
        return job._replace(labels=self.labels(order.samples), samples=order.samples)

    def labels(self, samples: np.ndarray) -> Tensor | None:
        """1 for each label that the client has one of these samples of; none where all labels count."""
        if self.method.labels == "all":
            return None
        name, dim = self.method.rows[0]
        found = torch.zeros(self.like[name].shape[dim], dtype=self.objective.layout.dtype, device=self.objective.device)
        found[self.objective.y[torch.from_numpy(samples).to(self.objective.device)]] = 1
        return found

    def reply(self, job: Job, trained: Trained) -> Answer:
        """Make the client's message of what training came to."""
        evidence = Findings(self, job, trained) if self.method.view.personal else None
        sent, state = self.method.reply(job, trained, evidence)
        spent = evidence.flops if evidence else 0
        flops = Flops(trained.flops.done + spent, trained.flops.useful + spent)
        return Answer(sent, state, trained.loss, flops, fate(job.state))

    def train(self, order: Order, job: Job) -> Trained:
        """The plain loop."""
        solver, objective = self.method.solver, self.objective
        lesson, losses = Lesson(self, order, job), []
        start, carry, aid = self.begin(job, len(lesson))
        now = solver.now(job.clock)
        with seeded(fold(job.key, "torch")):
            for rows, draws in lesson:
                x, y = objective.batch(rows, draws)
                carry, loss = self.step(start, carry, aid, x, y, now)
                losses.append(loss)
        return self.finish(order, job, lesson, carry, float(torch.stack(losses).mean()))

    def finish(self, order: Order, job: Job, lesson: "Lesson", carry: State, loss: float) -> Trained:
        """What a round came to, from what its last step carried and the mean loss."""
        change, state = subtract(carry["params"], job.start), self.method.solver.end(carry)
        notes = self.method.solver.notes(carry)
        return Trained(change, state, loss, lesson.flops(job), len(order.samples), notes)

    def begin(self, job: Job, steps: int) -> tuple[Params, State, State]:
        """For a round of so many steps: where it starts, what is carried from step to step, and what stays the same."""
        start = {**job.start, **self.objective.local()}
        carry = self.method.solver.begin(start, job.state.get("solver") or self._first(job), steps)
        device = self.objective.device
        codec = self.method.codec.rehearsal(job.layout, steps, job.codec_key, device)
        form = self.method.form.aid(job.part.take(self.like), fold(job.key, "form")) if self.formed else {}
        taken = {"taken": torch.zeros((), dtype=torch.int64, device=device)} if codec or form else {}
        more = {} if job.labels is None else {"labels": job.labels}
        if job.scale is not None:
            more["scale"] = torch.tensor(job.scale, dtype=job.layout.dtype, device=device)
        return start, {**carry, **taken}, {"keep": dict(job.part.keep), "codec": codec, "form": form, **more}

    def _first(self, job: Job) -> State:
        """What the solver remembers before the client's first round."""
        if not self.method.solver.from_first:
            return {}
        return {"personal": job.part.take(self.objective.initial())}

    def step(self, start: Params, carry: State, aid: State, x: Tensor, y: Tensor, now: Now) -> tuple[State, Tensor]:
        """One step, operation by operation: the next carry, and the loss."""
        trained = self.objective.trained
        labels = aid.get("labels")
        return step(self.method, trained, lambda at: self.objective.gradient(at, x, y, labels), start, carry, aid, now)

    def tuned(self, model: Params, clock: Clock, key: Key, samples: np.ndarray) -> Params:
        """A model as the client deploys it: tuned on its own samples, where the method says so; ``key`` is the round's.

        Nothing of this is sent or remembered: who asks again gets the same again.
        """
        if self._tuner is None:
            return model
        order = Order(clock, fold(key, "tune"), SILENT.data, {"own": model}, samples)
        job = self._tuner.open(order)
        own: Params = self._tuner.reply(job, self._tuner.train(order, job)).state["own"]
        return own

    @cached_property
    def _tuner(self) -> "Client | None":
        """A client that trains alone."""
        if (solver := self.method.tune) is None:
            return None
        alone = Method(Full(), solver, send="nothing", labels=self.method.labels, rows=self.method.rows)
        return Client(alone, self.objective)


def step(
    method: Method, trained: Sequence[str], evaluate: Evaluate, start: Params, carry: State, aid: State, now: Now
) -> tuple[State, Tensor]:
    """One step of a method's solver: the next carry, and the loss. Whoever trains, and however, comes through here.

    ``aid`` holds which entries are trained, where that is not all (``keep``), what the codec needs where training feels
    its loss (``codec``), what the network's tensors follow from, where these are not what is held (``form``), which
    labels count, where that is not all (``labels``), and what the loss is multiplied by (``scale``).
    """
    losses: list[Tensor] = []

    def gradient(params: Params) -> Gradients:
        at = felt(method.codec, trained, start, params, aid, carry["taken"]) if aid["codec"] else params
        loss, grads, changed = evaluate(method.form.network(at, aid["form"], carry["taken"]) if aid["form"] else at)
        losses.append(loss)
        grads = method.form.pull(grads, at, aid["form"]) if aid["form"] else grads
        if "scale" in aid:
            grads = scale(grads, aid["scale"])
        return multiply(grads, aid["keep"]), changed

    new = method.solver.step(gradient, start, carry, now)
    if "taken" in carry:
        new = {**new, "taken": carry["taken"] + 1}
    return new, losses[-1]


def felt(codec: Codec, trained: Sequence[str], start: Params, params: Params, aid: State, taken: Tensor) -> Params:
    """The tensors as the forward pass sees them, when training feels what the codec will do to the change."""
    change = subtract(params, {name: start[name] for name in trained})
    sent = multiply(codec.rehearse(change, aid["codec"], taken), aid["keep"])
    return {**params, **{name: start[name] + value for name, value in sent.items()}}


class Lesson:
    """A client's batches for one round, as numbers of samples, with the draws that augment them."""

    def __init__(self, client: Client, order: Order, job: Job) -> None:
        plan = client.method.solver.plan(len(order.samples), fold(job.key, "batches"))
        self.rows = [order.samples[batch] for batch in plan[: order.limit]]
        self.objective = client.objective
        noise = self.objective.draws(fold(job.key, "augment"), sum(self.sizes))
        self.draws: list[Tensor] | None = None if noise is None else list(torch.split(noise, self.sizes))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> list[int]:
        """How large each batch is."""
        return [len(rows) for rows in self.rows]

    @property
    def numbers(self) -> Tensor:
        """The numbers of all samples, batch after batch."""
        return torch.from_numpy(np.concatenate(self.rows))

    def flops(self, job: Job) -> Flops:
        """What all steps cost, counted on one client alone, once for each size of batch."""
        first = {len(rows): torch.from_numpy(rows) for rows in self.rows}
        many, keep = Counter(self.sizes), dict(job.part.keep)
        costs = [(n, self.objective.flops(job.start, first[size], keep)) for size, n in many.items()]
        return Flops(sum(n * cost.done for n, cost in costs), sum(n * cost.useful for n, cost in costs))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for number, rows in enumerate(self.rows):
            yield torch.from_numpy(rows).to(self.objective.device), self.draws[number] if self.draws else None


class Findings:
    """What a client knows when its training is over, and what it can find out."""

    def __init__(self, client: Client, job: Job, trained: Trained) -> None:
        self.client, self.job = client, job
        self.weights, self.notes = add(job.start, trained.change), trained.notes
        self.flops = 0

    def accuracy(self, params: Params) -> float:
        """The share of the client's training samples that a network with these tensors gets right."""
        objective, samples = self.client.objective, self.job.samples
        assert samples is not None
        rows = torch.from_numpy(samples).to(objective.device)
        self.flops += objective.forward_flops(params, rows)
        _, right = objective.evaluate(params, objective.x[rows], objective.y[rows], self.job.labels)
        return float(right.double().mean())

    def gradient(self) -> Params:
        """The gradient, in evaluation mode, on the first batch of a new order of the client's samples."""
        assert self.job.samples is not None
        objective = self.client.objective
        plan = self.client.method.solver.plan(len(self.job.samples), fold(self.job.key, "screen"))
        rows = torch.from_numpy(self.job.samples[plan[0]])
        draws = objective.draws(fold(self.job.key, "screen", "augment"), len(rows))
        x, y = objective.batch(rows.to(objective.device), draws)
        self.flops += objective.flops(self.weights, rows).done
        return objective.gradient({**self.weights, **objective.local()}, x, y, self.job.labels, training=False)[1]


def reason(error: BaseException) -> str:
    """An error in one line; those made for people need no class name."""
    return str(error) if isinstance(error, GossamerError) else f"{type(error).__name__}: {error}"
