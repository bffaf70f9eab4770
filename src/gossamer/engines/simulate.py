"""The simulator: every client in this process, every message made of real bytes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gossamer.engines.client import Answer, Client, Order
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.executors import EXECUTORS, Executor, OneByOne, SideBySide, Stacked, choose, threads
from gossamer.engines.inbox import Inbox
from gossamer.engines.ledger import Ledger
from gossamer.engines.options import AUTO, Options
from gossamer.engines.rounds import INJECTED, Result, Rounds, Stage, Watch
from gossamer.method import Method, own
from gossamer.random import fold, uniform
from gossamer.runs import RunFolder, read_about
from gossamer.servers import Visit
from gossamer.tasks import Task
from gossamer.types import Params, State
from gossamer.wire import Letter

BRIEF: dict[str, Callable[[Client], Executor]] = {"one-by-one": OneByOne, "stacked": Stacked}
"""What has a round's early exchanges done, by the executor of the last; with others nothing is compiled.

They have a step or two a client.
"""


def simulate(
    method: Method,
    task: Task,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watch = lambda record: None,
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


class Simulation(Rounds):
    """A run whose clients are all here, with the data on one device."""

    def __init__(self, method: Method, task: Task, options: Options, request: dict[str, Any] | None = None) -> None:
        super().__init__(method, task, options, request)
        self.objective.check(self.like)
        self.split = task.split.pooled(len(task.data.test)) if method.pooled else task.split
        self.client = Client(self.method, self.objective)
        self.evaluate = Evaluator(self.objective, self.labels if method.labels == "own" else None)
        self.channel = options.channel.fit(task.clients, self.key)
        auto = options.executor == AUTO
        self.executor: Executor | None = None if auto else EXECUTORS[options.executor](self.client)
        self.early: list[Executor] = []
        self.ready = False

    def restore(self, path: Path) -> RunFolder:
        """Take up a run where it stands; what executor was chosen stays chosen."""
        folder = super().restore(path)
        recorded = read_about(path)
        if "executor" in recorded:
            self.choice = {name: recorded[name] for name in ("executor", "rates") if name in recorded}
            self.executor = EXECUTORS[recorded["executor"]](self.client)
        return folder

    def close(self) -> None:
        """Let go of the executor's processes and memory."""
        for executor in (*self.early, *([] if self.executor is None else [self.executor])):
            executor.close()

    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Have an executor ready for work: choosing one and compiling are counted by themselves."""
        if self.ready:
            return
        with ledger.time("prepare"):
            client = max(cohort, key=lambda c: len(self.split.train(c)))  # whoever has a full batch, if anybody has
            clock, key = self.at(number, client)
            visit = Visit(client, 1.0, self.slot(client)) if self.method.server.own else None
            data = self.method.brief(self.server, clock, key, known=self.known(client), visit=visit).data
            order = Order(clock, key, data, self.clients.get(client), self.split.train(client))
            if self.executor is None:
                left = self.options.rounds - number
                name, self.executor, rates = choose(self.client, order, len(cohort), left)
                self.choice = {"executor": name, "rates": rates}
            else:
                with threads(self.executor.threads):
                    self.executor.prepare(order, len(cohort))
        self.about |= self.choice
        gpu = self.objective.device.type == "cuda"
        make = BRIEF.get(self.choice["executor"], Stacked if gpu else SideBySide)
        self.early = [make(Client(stage, self.objective)) for stage in self.method.before]
        self.ready = True

    def cohort(self, number: int) -> list[int]:
        """Who takes part in a round, in client order."""
        return [0] if self.method.pooled else super().cohort(number)

    def exchange(self, stage: Stage, cohort: Sequence[int], ledger: Ledger, inbox: Inbox) -> None:
        """The executor trains, the channel carries; once the server has everything, clients learn what arrived."""
        executor = self.executor or OneByOne(self.client) if stage.last else self.early[stage.place]
        after, lost = dict[int, State](), len(ledger.lost)
        with threads(executor.threads):
            for order, result in executor.run(self.orders(stage, cohort, ledger, inbox)):
                with ledger.time("receive"):
                    client, letter = order.clock.client, self.carry(order, result, ledger)
                    after |= {} if isinstance(result, str) else {client: result.state}
                    inbox.put(client, letter)
        ledger.wait()
        missing = {*ledger.lost[lost:], *(failure["client"] for failure in ledger.failures[stage.failed :])}
        for client, state in after.items() if stage.last else ():
            self.clients.put(client, self.method.settle(state, client not in missing))

    def orders(self, stage: Stage, cohort: Sequence[int], ledger: Ledger, inbox: Inbox) -> Iterator[Order]:
        """What each client of the cohort is to do, made as it is asked for."""
        body, method = None, stage.method
        for client in cohort:
            clock, key = self.at(stage, client)
            with ledger.time("brief"):
                if method.broadcasts:
                    body = body or method.load(self.server, clock, key)
                known, visit = stage.known.get(client), self.visit(stage, client)
                sent = method.brief(self.server, clock, key, body, known, visit)
                ledger.down.update(sent.kinds)
            rate = self.options.failure_rate
            if rate and uniform(fold(own(key, clock), "failure"), 1).item() < rate:
                ledger.fail(client, INJECTED)
                inbox.put(client, None)
            else:
                state = self.clients.get(client) if stage.last else {}
                yield Order(clock, key, sent.data, state, self.split.train(client))

    def carry(self, order: Order, result: Answer | str, ledger: Ledger) -> Letter | None:
        """What arrives of a client's answer."""
        clock, mine = order.clock, own(order.key, order.clock)
        if isinstance(result, str):
            ledger.fail(clock.client, result)
            return None
        ledger.train(result.loss, result.flops)
        if not self.method.pooled:  # which no device does
            ledger.work(clock.client, self.channel.work(result.flops, clock, fold(mine, "work")))
        delivered = False
        if result.sent.data:
            receipt = self.channel.send(len(result.sent.data), clock, fold(mine, "channel"))
            ledger.send(clock.client, result.sent.kinds, receipt, result.fate)
            delivered = receipt.delivered
        return result.sent.data if delivered else None

    def evaluated(self, number: int, ledger: Ledger) -> dict[str, float]:
        """The global model, and what each client would deploy, on test data that is all here."""
        return self.evaluate(self.deployed(), self.method.shared, lambda client: self.personal(client, number))

    def personal(self, client: int, number: int | None = None) -> Params:
        """The network's tensors that a client would deploy; the same object for all that share the server's.

        ``number`` is the round after which that is, if not the last of the record: what is tuned depends on it.
        """
        home = 0 if self.method.pooled else client
        model, state = (self.slot(home), {}) if self.method.server.own else (self.model(), self.clients.get(home))
        held = self.method.personal(model, state, home)
        if self.method.tune is None:
            return self._deploy(held)
        after = len(self.metrics) - 1 if number is None else number
        with threads(1):  # as nodes of a deployment do it
            return self._deploy(self.client.tuned(held, *self.at(max(0, after), client), self.split.train(home)))

    def labels(self, client: int) -> Tensor | None:
        """The labels whose scores count for a client, with 1 for each; none means all."""
        return self.client.labels(self.split.train(0 if self.method.pooled else client))

    def module(self) -> nn.Module:
        """The network to use after the last round: the pooled client's own, where there is no federation."""
        return self.objective.build(self.personal(0)) if self.method.pooled else super().module()
