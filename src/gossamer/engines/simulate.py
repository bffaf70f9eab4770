"""The simulator: every client in this process, every message made of real bytes.

A round, top to bottom: draw the cohort; brief each client; train; put each reply on the channel; fold what arrives, in
client order whatever order it came in; finish; evaluate; write it down. A client that fails, or whose message is
refused, is named with the reason and the round goes on without it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer import tree
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.executors import EXECUTORS, Work, one_thread
from gossamer.engines.inbox import Inbox
from gossamer.engines.ledger import Ledger
from gossamer.engines.options import Options
from gossamer.errors import GossamerError, RunError
from gossamer.machine import machine
from gossamer.method import Job, Method, Sent, Trained
from gossamer.objective import Objective
from gossamer.random import Key, choice, fold, uniform
from gossamer.random import key as make_key
from gossamer.runs import Clients, RunFolder, read_about, read_metrics
from gossamer.summary import summarise
from gossamer.tasks import Task
from gossamer.types import Clock, Params, State

Record = dict[str, Any]

PATIENCE = 3
"""After so many rounds in a row in which every client failed of itself, a run stops."""

INJECTED = "failed as asked (failure rate)"


@dataclass(frozen=True)
class Result:
    """A run that has ended: its metrics by round, and its last model, in evaluation mode."""

    about: dict[str, Any]
    metrics: list[Record]
    module: nn.Module
    path: Path | None

    def summary(self) -> dict[str, Any]:
        """What ``gossamer show --json`` prints."""
        return summarise(self.about, self.metrics)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test set after the last round."""
        return float(self.summary()["accuracy"])


def simulate(
    method: Method,
    task: Task,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Callable[[Record], None] = lambda record: None,
    **options: Any,
) -> Result:
    """Run ``method`` on ``task``; ``options`` are the fields of :class:`Options`.

    With ``out`` the run is kept in that folder and can be resumed (``resume=True``, with the same method and task)
    after any interruption; without, it lives in memory. ``watch`` is called with each round's record.
    """
    simulation = Simulation(method, task, Options(**options))
    if out is None:
        return simulation.run(None, watch)
    folder = simulation.restore(Path(out)) if resume else simulation.create(Path(out))
    try:
        return simulation.run(folder, watch)
    finally:
        folder.close()


class Simulation:
    """A run in progress: the method, the data on the device, and what server and clients remember."""

    def __init__(self, method: Method, task: Task, options: Options, request: dict[str, Any] | None = None) -> None:
        self.method, self.task, self.options = method, task, options
        self.cohort_size = options.cohort(task.clients)
        self.key = make_key(options.seed)
        self.objective = Objective(task, options.device, self.key)
        self.like = self.objective.initial()
        self.objective.check(self.like)
        self.split = task.split.pooled(len(task.data.test)) if method.pooled else task.split
        self.x, self.y = (t.to(options.device) for t in (task.data.train.x, task.data.train.y))
        self.evaluate = Evaluator(self.objective)
        self.execute = EXECUTORS[options.executor]
        self.server: State = method.server.init(self.like)
        self.clients = Clients()
        self.metrics: list[Record] = []
        self.saving = 0.0
        self.request = request or {}
        self.about: dict[str, Any] = {
            "method": method.describe(),
            "task": task.describe(),
            "parameters": self.objective.layout.size,
            "options": options.describe(),
            "request": request,
            "machine": machine(options.device),
        }

    # The folder.

    def create(self, path: Path) -> RunFolder:
        """Begin a run that is kept."""
        return RunFolder.create(path, self.about, self.task.split.tensors())

    def restore(self, path: Path) -> RunFolder:
        """Take up a run where it stands; refuse if this is not the same method, task and options."""
        self._check_same(read_about(path), path)
        folder = RunFolder.open(path)
        try:
            found = folder.restore()
        except RunError:
            folder.close()
            raise
        if found is not None:
            self.server = tree.move(found.server, self.options.device)
            states = {client: tree.move(state, self.options.device) for client, state in found.clients.states.items()}
            self.clients = Clients(states)
        self.metrics = read_metrics(path)
        return folder

    def _check_same(self, recorded: dict[str, Any], path: Path) -> None:
        for what in ("method", "task", "parameters", "options"):
            if recorded[what] != self.about[what]:
                raise RunError(
                    f"{path} was started with another {what}: {recorded[what]}, now {self.about[what]}; "
                    "resume it as it was started, or start a new run"
                )

    # The rounds.

    def run(self, folder: RunFolder | None, watch: Callable[[Record], None]) -> Result:
        """All rounds that are left."""
        streak = 0
        for number in range(len(self.metrics), self.options.rounds):
            record = self.round(number, folder)
            watch(record)
            streak = streak + 1 if _all_failed(record) else 0
            if streak == PATIENCE:
                raise RunError(
                    f"every client failed in {PATIENCE} rounds in a row; the last said: {_last_reason(record)}"
                )
        module = self.objective.build(self.personal(0) if self.method.pooled else self.model())
        return Result(self.about, self.metrics, module.eval(), folder.path if folder else None)

    def round(self, number: int, folder: RunFolder | None) -> Record:
        """One round, from the cohort to the checkpoint."""
        ledger = Ledger()
        cohort = self.cohort(number)
        with one_thread():
            self.train(number, cohort, ledger)
        with ledger.time("evaluate"):
            due = (number + 1) % self.options.eval_every == 0 or number + 1 == self.options.rounds
            evaluated = self.evaluate(self.model(), self.method.shared, self.personal) if due else {}
        record = ledger.record(number + 1, cohort, evaluated)
        if folder is not None:
            # A round's line is written ahead of its checkpoint, so it tells how long the one before took.
            record["seconds"]["save"] = self.saving
            begin = time.perf_counter()
            folder.append(record)
            folder.save(number + 1, self.server, self.clients)
            self.saving = round(time.perf_counter() - begin, 6)
        self.metrics.append(record)
        return record

    def cohort(self, number: int) -> list[int]:
        """Who takes part in a round, in client order."""
        if self.method.pooled:
            return [0]
        return [int(c) for c in choice(fold(self.key, "cohort", number), self.task.clients, self.cohort_size)]

    def train(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Brief, train, send, fold, finish."""
        acc = self.method.server.empty(self.server)

        def deliver(client: int, data: bytes) -> None:
            nonlocal acc
            try:
                acc = self.method.receive(acc, data, self.server, *self.at(number, client))
            except Exception as error:  # whatever a message does to its decoder, it ends as a refusal with a reason
                ledger.fail(client, f"refused: {_said(error)}")

        inbox = Inbox(cohort, deliver)
        with ledger.time("train"):
            for job, result in self.execute(
                self.method.solver, self.objective, self.work(number, cohort, ledger, inbox)
            ):
                with ledger.time("reply"):
                    inbox.put(job.clock.client, self.send(job, result, ledger))
        self.server = self.method.server.finish(self.server, acc, Clock(number, self.options.rounds, -1))

    def work(self, number: int, cohort: Sequence[int], ledger: Ledger, inbox: Inbox) -> Iterator[Work]:
        """What each client of the cohort is to do, made as it is asked for."""
        for client in cohort:
            clock, key = self.at(number, client)
            with ledger.time("brief"):
                sent = self.method.brief(self.server, clock, key)
                ledger.down.update(sent.kinds)
                job = self.method.open(sent.data, self.like, self.clients.get(client), clock, key)
                index = torch.from_numpy(self.split.train(client)).to(self.x.device)
            if uniform(fold(key, "failure"), 1).item() < self.options.failure_rate:
                ledger.fail(client, INJECTED)
                inbox.put(client, None)
            else:
                yield Work(job, self.x[index], self.y[index])

    def send(self, job: Job, result: Trained | Exception, ledger: Ledger) -> bytes | None:
        """What arrives of a client's reply; the client learns whether it did."""
        client = job.clock.client
        try:
            if isinstance(result, Exception):
                raise result
            sent, state = self.method.reply(job, result)
        except Exception as error:  # a client's failure is reported; the round goes on
            ledger.fail(client, _said(error))
            return None
        ledger.train(result)
        delivered = self.carry(job, sent, ledger) if sent.data else False
        self.clients.put(client, self.method.settle(state, delivered))
        return sent.data if delivered else None

    def carry(self, job: Job, sent: Sent, ledger: Ledger) -> bool:
        """Put a message on the channel: whether it arrives."""
        receipt = self.options.channel.send(len(sent.data), job.clock, fold(job.key, "channel"))
        ledger.send(job.clock.client, sent.kinds, receipt)
        return receipt.delivered

    def at(self, number: int, client: int) -> tuple[Clock, Key]:
        """When and where, and the randomness that belongs there."""
        return Clock(number, self.options.rounds, client), fold(self.key, "round", number, "client", client)

    def model(self) -> Params:
        """The server's model."""
        return self.method.server.model(self.server)

    def personal(self, client: int) -> Params:
        """What a client would deploy."""
        return self.method.personal(self.model(), self.clients.get(0 if self.method.pooled else client))


def _all_failed(record: Record) -> bool:
    failed = {f["client"] for f in record["failures"] if f["reason"] != INJECTED}
    return failed == set(record["clients"])


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, GossamerError) else f"{type(error).__name__}: {error}"


def _last_reason(record: Record) -> str:
    last = record["failures"][-1]
    return f"client {last['client']}: {last['reason']}"
