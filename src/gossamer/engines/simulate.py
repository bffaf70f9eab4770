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

from torch import nn

from gossamer import tree
from gossamer.engines.client import Answer, Client, Order, reason
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.executors import EXECUTORS, Executor, OneByOne, choose, threads
from gossamer.engines.inbox import Inbox
from gossamer.engines.ledger import Ledger
from gossamer.engines.options import AUTO, Options
from gossamer.errors import RunError
from gossamer.machine import machine
from gossamer.method import Method, own
from gossamer.objective import Objective
from gossamer.random import Key, choice, fold, uniform
from gossamer.random import key as make_key
from gossamer.runs import Clients, RunFolder, read_about, read_metrics
from gossamer.summary import summarise
from gossamer.tasks import Task
from gossamer.types import Clock, Params, State
from gossamer.wire import Letter

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
        self.evaluate = Evaluator(self.objective)
        self.client = Client(method, self.objective)
        auto = options.executor == AUTO
        self.executor: Executor | None = None if auto else EXECUTORS[options.executor](self.client)
        self.choice: dict[str, Any] = {"executor": options.executor}
        self.ready = False
        self.server: State = method.server.init(method.form.hold(self.like, fold(self.key, "form")))
        self.clients = Clients()
        self.metrics: list[Record] = []
        self.saving = 0.0
        self._last: tuple[Params, Params] | None = None
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
        recorded = read_about(path)
        if "executor" in recorded:  # what was chosen stays chosen
            self.choice = {name: recorded[name] for name in ("executor", "rates") if name in recorded}
            self.executor = EXECUTORS[recorded["executor"]](self.client)
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
        try:
            self.rounds(folder, watch)
        finally:
            self.close()
        module = self.objective.build(self.personal(0) if self.method.pooled else self.deployed())
        return Result(self.about, self.metrics, module.eval(), folder.path if folder else None)

    def close(self) -> None:
        """Let go of the executor's processes and memory."""
        if self.executor is not None:
            self.executor.close()

    def rounds(self, folder: RunFolder | None, watch: Callable[[Record], None]) -> None:
        """Round after round, until all are done or everybody keeps failing."""
        streak = 0
        for number in range(len(self.metrics), self.options.rounds):
            record = self.round(number, folder)
            watch(record)
            streak = streak + 1 if _all_failed(record) else 0
            if streak == PATIENCE:
                raise RunError(
                    f"every client failed in {PATIENCE} rounds in a row; the last said: {_last_reason(record)}"
                )

    def round(self, number: int, folder: RunFolder | None) -> Record:
        """One round, from the cohort to the checkpoint."""
        ledger = Ledger()
        cohort = self.cohort(number)
        self.equip(number, cohort, ledger)
        self.train(number, cohort, ledger)
        with ledger.time("evaluate"):
            due = (number + 1) % self.options.eval_every == 0 or number + 1 == self.options.rounds
            evaluated = self.evaluate(self.deployed(), self.method.shared, self.personal) if due else {}
        record = ledger.record(number + 1, cohort, evaluated)
        if folder is not None:
            # A round's line is written ahead of its checkpoint, so it tells how long the one before took.
            record["seconds"]["save"] = self.saving
            begin = time.perf_counter()
            folder.keep_choice(self.choice)
            folder.append(record)
            folder.save(number + 1, self.server, self.clients)
            self.saving = round(time.perf_counter() - begin, 6)
        self.metrics.append(record)
        return record

    def equip(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Have an executor ready for work: choosing one and compiling are counted by themselves."""
        if self.ready:
            return
        with ledger.time("prepare"):
            client = max(cohort, key=lambda c: len(self.split.train(c)))  # whoever has a full batch, if anybody has
            clock, key = self.at(number, client)
            data = self.method.brief(self.server, clock, key).data
            order = Order(clock, key, data, self.clients.get(client), self.split.train(client))
            if self.executor is None:
                left = self.options.rounds - number
                name, self.executor, rates = choose(self.client, order, len(cohort), left)
                self.choice = {"executor": name, "rates": rates}
            else:
                with threads(self.executor.threads):
                    self.executor.prepare(order, len(cohort))
        self.about |= self.choice
        self.ready = True

    def cohort(self, number: int) -> list[int]:
        """Who takes part in a round, in client order."""
        if self.method.pooled:
            return [0]
        return [int(c) for c in choice(fold(self.key, "cohort", number), self.task.clients, self.cohort_size)]

    def train(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Brief, train, send, fold, finish."""
        executor = self.executor or OneByOne(self.client)
        acc = self.method.server.empty(self.server)

        def deliver(client: int, data: Letter) -> None:
            nonlocal acc
            try:
                acc = self.method.receive(acc, data, self.server, *self.at(number, client))
            except Exception as error:  # whatever a message does to its decoder, it ends as a refusal with a reason
                ledger.fail(client, f"refused: {reason(error)}")

        inbox = Inbox(cohort, deliver)
        with ledger.time("train"), threads(executor.threads):
            for order, result in executor.run(self.orders(number, cohort, ledger, inbox)):
                with ledger.time("receive"):
                    inbox.put(order.clock.client, self.carry(order, result, ledger))
        self.server = self.method.server.finish(self.server, acc, Clock(number, self.options.rounds, -1))

    def orders(self, number: int, cohort: Sequence[int], ledger: Ledger, inbox: Inbox) -> Iterator[Order]:
        """What each client of the cohort is to do, made as it is asked for."""
        body = None
        for client in cohort:
            clock, key = self.at(number, client)
            with ledger.time("brief"):
                if self.method.broadcasts:
                    body = body or self.method.load(self.server, clock, key)
                sent = self.method.brief(self.server, clock, key, body)
                ledger.down.update(sent.kinds)
            if uniform(fold(own(key, clock), "failure"), 1).item() < self.options.failure_rate:
                ledger.fail(client, INJECTED)
                inbox.put(client, None)
            else:
                yield Order(clock, key, sent.data, self.clients.get(client), self.split.train(client))

    def carry(self, order: Order, result: Answer | str, ledger: Ledger) -> Letter | None:
        """What arrives of a client's answer; the client learns whether it did."""
        clock, key = order.clock, order.key
        if isinstance(result, str):
            ledger.fail(clock.client, result)
            return None
        ledger.train(result.loss, result.flops)
        delivered = False
        if result.sent.data:
            receipt = self.options.channel.send(len(result.sent.data), clock, fold(own(key, clock), "channel"))
            ledger.send(clock.client, result.sent.kinds, receipt)
            delivered = receipt.delivered
        self.clients.put(clock.client, self.method.settle(result.state, delivered))
        return result.sent.data if delivered else None

    def at(self, number: int, client: int) -> tuple[Clock, Key]:
        """When and where, and the round's randomness."""
        return Clock(number, self.options.rounds, client), fold(self.key, "round", number)

    def model(self) -> Params:
        """What the server holds."""
        return self.method.server.model(self.server)

    def deployed(self) -> Params:
        """The network's tensors that follow from what the server holds."""
        return self._deploy(self.model())

    def personal(self, client: int) -> Params:
        """The network's tensors that a client would deploy; the same object for all that share the server's."""
        own = self.method.personal(self.model(), self.clients.get(0 if self.method.pooled else client))
        return self._deploy(own)

    def _deploy(self, held: Params) -> Params:
        if self._last is None or self._last[0] is not held:
            self._last = held, self.method.form.deploy(held, self.like)
        return self._last[1]


def _all_failed(record: Record) -> bool:
    failed = {f["client"] for f in record["failures"] if f["reason"] != INJECTED}
    return failed == set(record["clients"])


def _last_reason(record: Record) -> str:
    last = record["failures"][-1]
    return f"client {last['client']}: {last['reason']}"
