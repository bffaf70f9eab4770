"""The simulator: every client in this process, every message made of real bytes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gossamer.core.bound import BoundExchange
from gossamer.core.exchange import Assignment
from gossamer.core.jobs import own_key
from gossamer.core.method import Method
from gossamer.core.random import fold, uniform
from gossamer.core.types import Params, State
from gossamer.core.wire import Body
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.executors import EXECUTORS
from gossamer.engines.executors.auto import choose
from gossamer.engines.executors.base import Executor, OneByOne, threads
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import Stacked
from gossamer.engines.inbox import ClientReply, Inbox
from gossamer.engines.metrics import Ledger
from gossamer.engines.options import AUTO, Options
from gossamer.engines.run import FederatedRun, Result, Stage, Watch
from gossamer.runs.folder import RunFolder, read_about
from gossamer.tasks.task import Task

INJECTED = "failed as asked (failure rate)"

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
    """Run ``method`` on ``task``; ``options`` are the fields of ``Options``.

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


class Simulation(FederatedRun):
    """A run whose clients are all here, with the data on one device."""

    def __init__(self, method: Method, task: Task, options: Options, request: dict[str, Any] | None = None) -> None:
        super().__init__(method, task, options, request)
        self.objective.check(self.like)
        self.split = task.split.pooled(len(task.data.test)) if method.pooled else task.split
        self.client = Client(self.method, self.objective)
        self.evaluate = Evaluator(self.objective, self.labels if self.method.training.labels else None)
        self.channel = options.channel.fit(task.clients, self.key)
        auto = options.executor == AUTO
        self.executor: Executor | None = None if auto else EXECUTORS[options.executor](self.client)
        self.early: dict[int, Executor] = {}
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
        for executor in (*self.early.values(), *([] if self.executor is None else [self.executor])):
            executor.close()

    def available(self) -> Mapping[int, int]:
        """Everybody."""
        return self._sizes

    @cached_property
    def _sizes(self) -> dict[int, int]:
        return dict(enumerate(self.split.sizes().tolist()))

    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Have an executor ready for work: choosing one and compiling are counted by themselves."""
        if self.ready or not cohort:
            return
        with ledger.time("prepare"):
            client = max(cohort, key=lambda c: len(self.split.train(c)))  # whoever has a full batch, if anybody has
            stage = Stage(self.method.training, number, {client: self.trial(client)})
            common = stage.exchange.make_common(self.server, *self.at(stage, client))
            client_task, _ = self.client_task(stage, client, common)
            if self.executor is None:
                left = self.options.rounds - number
                name, self.executor, rates = choose(self.client, client_task, len(cohort), left)
                self.choice = {"executor": name, "rates": rates}
            else:
                with threads(self.executor.threads):
                    self.executor.prepare(client_task, len(cohort))
        self.about |= self.choice
        self.ready = True

    def trial(self, client: int) -> Assignment:
        """What a client would train in a round like any other."""
        home = self.method.home(client)
        return home if home.owner is None else home._replace(loss_scale=1.0)

    def executor_of(self, exchange: BoundExchange) -> Executor:
        """Who has an exchange done; those before the last have a step or two a client, so nothing is compiled."""
        if exchange.last:
            return self.executor or OneByOne(self.client)
        if exchange.number not in self.early:
            gpu = self.objective.device.type == "cuda"
            make = BRIEF.get(self.choice["executor"], Stacked if gpu else SideBySide)
            self.early[exchange.number] = make(Client(self.method, self.objective, exchange))
        return self.early[exchange.number]

    def cohort(self, number: int, ledger: Ledger) -> list[int]:
        """Who takes part in a round, in client order."""
        return [0] if self.method.pooled else super().cohort(number, ledger)

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Inbox) -> None:
        """The executor trains, the channel carries; once a message is folded, its client learns that it arrived."""
        executor = self.executor_of(stage.exchange)
        with threads(executor.threads):
            for client_task, result in executor.run(self.client_tasks(stage, ledger, inbox)):
                with ledger.time("receive"):
                    inbox.put(client_task.clock.client, self.carry(client_task, result, ledger))
        ledger.wait()

    def client_tasks(self, stage: Stage, ledger: Ledger, inbox: Inbox) -> Iterator[ClientTask]:
        """What each client that is asked is to do, made as it is asked for."""
        common = None
        for client in stage.asked:
            with ledger.time("brief"):
                if common is None:
                    common = stage.exchange.make_common(self.server, *self.at(stage, client))
                client_task, kinds = self.client_task(stage, client, common)
                ledger.down.update(kinds)
            rate = self.options.failure_rate
            if rate and uniform(fold(own_key(client_task.key, client_task.clock), "failure"), 1).item() < rate:
                inbox.put(client, ClientReply(failure=Failure(INJECTED), injected=True))
            else:
                yield client_task

    def client_task(self, stage: Stage, client: int, common: Body | None) -> tuple[ClientTask, dict[str, int]]:
        """What one client is to do, and the bytes of the message that tells it."""
        clock, key = self.at(stage, client)
        known, exchange = self.tracked(stage, client), stage.exchange
        sent = exchange.make_download(self.server, clock, key, stage.assigned[client], known, common)
        state = self.clients.get(client) if exchange.last else {}
        return ClientTask(clock, key, sent.data, state, self.split.train(client)), sent.kinds

    def carry(self, client_task: ClientTask, result: ClientResult | Failure, ledger: Ledger) -> ClientReply:
        """What arrives of a client's answer."""
        clock, mine = client_task.clock, own_key(client_task.key, client_task.clock)
        if isinstance(result, Failure):
            return ClientReply(failure=result)
        ledger.train(result.loss, result.flops)
        if not self.method.pooled:  # which no device does
            ledger.work(clock.client, self.channel.work(result.flops, clock, fold(mine, "work")))
        delivered = False
        if result.sent.data:
            receipt = self.channel.send(len(result.sent.data), clock, fold(mine, "channel"))
            ledger.send(clock.client, result.sent.kinds, receipt, result.delivery)
            delivered = receipt.delivered
        return ClientReply(result.sent.data if delivered else None, result.state)

    def settle(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """What the client itself remembers."""
        if reply.state is not None:
            self.clients.stage(client, stage.exchange.settle(reply.state, arrived))

    def evaluated(self, number: int, ledger: Ledger) -> dict[str, float]:
        """The global model, and what each client would deploy, on test data that is all here."""
        first, *others = self.method.global_models(self.server)
        if others:
            return self.evaluate.by_client(self.client_params)
        return self.evaluate(self._deploy(first), self.method.shared, lambda client: self.client_params(client, number))

    def client_params(self, client: int, number: int | None = None) -> Params:
        """The network's tensors that a client would deploy; the same object for all that share the server's.

        ``number`` is the round after which that is, if not the last of the record: what is tuned depends on it.
        """
        home, training = 0 if self.method.pooled else client, self.method.training
        models = training.server.download(self.server, self.method.home(home)).models
        held = training.deploy(self.client.choose(models, self.split.train(home)), self.clients.get(home), home)
        if self.method.tune is None:
            return self._deploy(held)
        after = max(0, len(self.metrics) - 1 if number is None else number)
        clock, key = self.clock(after, client), self.round_key(after)
        with threads(1):  # as nodes of a deployment do it
            return self._deploy(self.client.tuned(held, clock, key, self.split.train(home)))

    def labels(self, client: int) -> Tensor | None:
        """The labels whose scores count for a client, with 1 for each; none means all."""
        return self.client.labels(self.split.train(0 if self.method.pooled else client))

    def client_module(self, client: int) -> nn.Module:
        """The network that a client deploys."""
        return self.objective.build(self.client_params(client))

    def module(self) -> nn.Module:
        """The network to use after the last round: the pooled client's own, where there is no federation."""
        return self.objective.build(self.client_params(0)) if self.method.pooled else super().module()
