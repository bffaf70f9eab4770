"""Federated rounds as a slow, obvious simulation of events: softmax regression, trained by hand in float64.

Every task is trained at its start, and all of its times are computed then. The next event is found by sorting all
tasks in flight. Nothing is shared with the engine but the random keys of cohorts and batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core.channel import Channel
from gossamer.core.random import fold, key, permutation
from gossamer.core.types import Clock, Flops

Array = npt.NDArray[np.float64]
SECOND = 10**9
ORDER = ["arrival", "lost", "left"]
"""The order of ends of tasks at the same time. Clients leave and come back before."""


@dataclass(frozen=True)
class Rules:
    """What a schedule says.

    Args:
        slots: clients in training at the same time
        goal: updates of an aggregation; none means all in training
        deadline: the longest round, in nanoseconds
        refills: whether free slots are filled at once
        keeps: whether clients in training at the aggregation go on
        factor: factor of an update by its staleness; none means that it is too stale
        mixes: whether a client's model is mixed in, relative to the current model
    """

    slots: int
    goal: int | None = None
    deadline: int | None = None
    refills: bool = False
    keeps: bool = False
    factor: Callable[[int], float | None] = lambda staleness: 1.0
    mixes: bool = False


@dataclass(frozen=True)
class Problem:
    """Softmax regression on clients' samples.

    Args:
        clients: inputs and labels of each client
        weight: initial weights, [classes, features]
        bias: initial bias
        lr: learning rate
        epochs: epochs of a task
        batch: batch size
        message: bytes of a download, and of an upload
        server_lr: factor of the mean update
        seed: seed of the run
    """

    clients: Sequence[tuple[Array, npt.NDArray[np.int64]]]
    weight: Array
    bias: Array
    lr: float
    epochs: int
    batch: int
    message: int
    server_lr: float = 1.0
    seed: int = 0

    def trained(self, client: int, version: int, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Return a client's model after training."""
        (x, y), weight, bias = self.clients[client], weight.copy(), bias.copy()
        own = fold(fold(key(self.seed), "round", version), "client", client)
        for epoch in range(self.epochs):
            order = permutation(fold(fold(own, "batches"), "epoch", epoch), len(x))
            for i in range(0, len(x), self.batch):
                rows = order[i : i + self.batch]
                scores = np.exp(x[rows] @ weight.T + bias)
                error = (scores / scores.sum(1, keepdims=True) - np.eye(len(bias))[y[rows]]) / len(rows)
                weight -= self.lr * error.T @ x[rows]
                bias -= self.lr * error.sum(0)
        return weight, bias

    def flops(self, client: int) -> Flops:
        """Return the operations of a task: forward pass, and gradients of the weights."""
        samples = len(self.clients[client][0])
        each = 4 * self.weight.size * self.epochs
        return Flops(each * samples, each * samples, samples / -(-samples // self.batch))


@dataclass
class Phase:
    """Download, training or upload, if nothing interrupts it. Work is done between ``begin`` and ``end``."""

    begin: int
    end: int
    joules: float


@dataclass
class Task:
    """A task with all that will happen to it."""

    client: int
    version: int
    start: int
    phases: list[Phase]
    end: int
    kind: str
    model: tuple[Array, Array]
    before: tuple[Array, Array]
    outcome: str = ""


@dataclass
class Round:
    """What happened in a round."""

    time: int
    weight: Array
    bias: Array
    ended: list[Task] = field(default_factory=list)
    down: int = 0
    up: int = 0
    energy: dict[str, float] = field(default_factory=dict)
    wasted: tuple[float, float] = (0.0, 0.0)

    def columns(self) -> dict[str, list[Any]]:
        """Return the tasks that ended, as a record has them."""

        def reached(task: Task, number: int) -> int | None:
            return task.phases[number].end if task.phases[number].end <= task.end else None

        return {
            "client": [task.client for task in self.ended],
            "version": [task.version for task in self.ended],
            "start": [task.start for task in self.ended],
            "received": [reached(task, 0) for task in self.ended],
            "computed": [reached(task, 1) for task in self.ended],
            "end": [task.end for task in self.ended],
            "outcome": [task.outcome for task in self.ended],
        }


class Reference:
    """A run of rounds by the rules of a schedule."""

    def __init__(self, problem: Problem, rules: Rules, channel: Channel, rounds: int) -> None:
        self.problem, self.rules, self.channel, self.rounds = problem, rules, channel, rounds
        self.now, self.version = 0, 0
        self.model = (problem.weight, problem.bias)
        self.flying: list[Task] = []
        self.took_part: set[int] = set()
        self.history: list[Round] = []

    def run(self) -> list[Round]:
        """Return all rounds."""
        for number in range(self.rounds):
            self.version = number
            self.history.append(self.round())
        return self.history

    def is_available(self, client: int, at: int) -> bool:
        return self.channel.availability(client).interval(at).start <= at

    def eligible(self) -> list[int]:
        """Return the clients that can start now."""
        busy = {task.client for task in self.flying} | self.took_part
        everybody = range(len(self.problem.clients))
        return [client for client in everybody if client not in busy and self.is_available(client, self.now)]

    def next_back(self) -> int | None:
        """Return the next time at which a client comes back that could start."""
        busy = {task.client for task in self.flying} | self.took_part
        away = [c for c in range(len(self.problem.clients)) if c not in busy and not self.is_available(c, self.now)]
        return min((self.channel.availability(c).interval(self.now).start for c in away), default=None)

    def fill(self, result: Round) -> None:
        """Start as many clients as there are free slots, in the order of the round's permutation."""
        order = permutation(fold(key(self.problem.seed), "cohort", self.version), len(self.problem.clients))
        can_start = self.eligible()
        chosen = [c for c in order.tolist() if c in can_start][: self.rules.slots - len(self.flying)]
        for client in chosen:
            self.flying.append(self.task(client))
            self.took_part.add(client)
            result.down += self.problem.message

    def task(self, client: int) -> Task:
        """Return a task that starts now, with everything that will happen to it."""
        at, size = self.now, self.problem.message

        def clock() -> Clock:
            return Clock(self.version, self.rounds, client, at / SECOND)

        received = self.channel.receive(size, clock(), key(0))
        phases = [Phase(at, at := self.finished(client, at, received.seconds), received.joules)]
        worked = self.channel.work(self.problem.flops(client), clock(), key(0))
        phases.append(Phase(at, at := self.finished(client, at, worked.seconds), worked.joules))
        sent = self.channel.send(size, clock(), key(0))
        phases.append(Phase(at, at := self.finished(client, at, sent.seconds), sent.joules))
        kind, leaves = "arrival" if sent.delivered else "lost", self.channel.availability(client).interval(self.now).end
        if not self.channel.pauses(client) and at > leaves:
            at, kind = leaves, "left"
        model = self.problem.trained(client, self.version, *self.model)
        return Task(client, self.version, self.now, phases, at, kind, model, self.model)

    def finished(self, client: int, at: int, seconds: float) -> int:
        """Return when some work ends that begins now: it is done only while the client is there, if it pauses."""
        work = round(seconds * SECOND)
        if not self.channel.pauses(client):
            return at + work
        while work > 0:
            there = self.channel.availability(client).interval(at)
            at = max(at, there.start)
            done = min(work, there.end - at)
            at, work = at + done, work - done
        return at

    def active(self, client: int, begin: int, end: int) -> int:
        """Return the nanoseconds between two times in which a client works."""
        if not self.channel.pauses(client):
            return end - begin
        total = 0
        while begin < end:
            there = self.channel.availability(client).interval(begin)
            total += max(0, min(end, there.end) - max(begin, there.start))
            begin = there.end
        return total

    def round(self) -> Round:
        """Do one round."""
        rules, result, arrived = self.rules, Round(0, *self.model), list[Task]()
        self.took_part = set()
        if not self.flying and not self.eligible():
            back = self.next_back()
            assert back is not None
            self.now = back
        deadline = None if rules.deadline is None else self.now + rules.deadline
        self.fill(result)
        while True:
            if rules.goal is not None and len(arrived) == rules.goal:
                break
            back = self.next_back() if rules.refills and len(self.flying) < rules.slots else None
            if not self.flying and back is None:
                break
            event = min(self.flying, key=lambda task: (task.end, ORDER.index(task.kind), task.client), default=None)
            following = min(time for time in (back, event.end if event else None) if time is not None)
            if deadline is not None and following > deadline:
                self.now = deadline
                break
            self.now = following
            if back == following:  # clients come back before tasks end
                self.fill(result)
            elif event is not None:
                self.end(event, result, arrived)
                if rules.refills and len(arrived) != rules.goal:
                    self.fill(result)
        self.aggregate(result, arrived)
        return result

    def end(self, task: Task, result: Round, arrived: list[Task]) -> None:
        """Note the end of a task."""
        self.flying.remove(task)
        self.took_part.add(task.client)
        result.ended.append(task)
        task.outcome = task.kind
        if task.kind == "arrival":
            stale = self.rules.factor(self.version - task.version) is None
            task.outcome = "stale" if stale else "folded"
            if not stale:
                arrived.append(task)

    def aggregate(self, result: Round, arrived: list[Task]) -> None:
        """Stop late clients unless they go on, aggregate what has arrived, and sum up."""
        if not self.rules.keeps:
            for task in sorted(self.flying, key=lambda task: task.client):
                task.end, task.outcome = self.now, "cancelled"
                result.ended.append(task)
            self.flying = []
        if not self.rules.refills:
            arrived = sorted(arrived, key=lambda task: task.client)
        weight, bias = self.model
        shift_w, shift_b, total = np.zeros_like(weight), np.zeros_like(bias), 0.0
        for task in arrived:
            samples = len(self.problem.clients[task.client][0])
            factor = self.rules.factor(self.version - task.version)
            assert factor is not None
            base = self.model if self.rules.mixes else task.before
            shift_w += samples * factor * (task.model[0] - base[0])
            shift_b += samples * factor * (task.model[1] - base[1])
            total += samples
        if total:
            rate = self.problem.server_lr / total
            self.model = (weight + rate * shift_w, bias + rate * shift_b)
        result.time, (result.weight, result.bias) = self.now, self.model
        self.account(result)

    def account(self, result: Round) -> None:
        """Sum up the energy of the tasks that ended."""
        names, power = ["receiving", "computing", "sending"], self.channel.idle_power
        energy = dict.fromkeys([*names, "idle"], 0.0)
        joules = seconds = 0.0
        for task in result.ended:
            spent = [self.spent(task, phase) for phase in task.phases]
            for name, each in zip(names, spent, strict=True):
                energy[name] += each
            if task.phases[2].end <= task.end:
                result.up += self.problem.message
            if task.outcome != "left" and not self.rules.refills:
                energy["idle"] += power(task.client) * (self.now - task.end) / SECOND
            if task.outcome != "folded":
                joules, seconds = joules + sum(spent), seconds + (task.end - task.start) / SECOND
        result.energy, result.wasted = energy, (joules, seconds)

    def spent(self, task: Task, phase: Phase) -> float:
        """Return the energy of a phase until the end of the task, in proportion to the work done."""
        if task.end >= phase.end:
            return phase.joules
        if task.end <= phase.begin:
            return 0.0
        whole = self.active(task.client, phase.begin, phase.end)
        return phase.joules * self.active(task.client, phase.begin, task.end) / whole
