"""A run in progress, wherever its clients are: the server's half of every round, and the run's folder.

A round, top to bottom: draw the cohort; for each exchange of the method tell each client what to do, let it train, fold
what arrives, in client order whatever order it came in, and finish; evaluate; write it down. Each client of an exchange
has one outcome, from which all else follows. One that fails, or whose message is refused, is named with the reason and
the round goes on without it. How clients are reached is the engine's: ``gossamer.engines.simulate`` has
them in this process, ``gossamer.engines.flower`` across a network.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.core import tree
from gossamer.core.bound import BoundExchange
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.exchange import GLOBAL, Assignment, Outcome
from gossamer.core.method import Method
from gossamer.core.random import Key, fold
from gossamer.core.random import key as make_key
from gossamer.core.sampler import Pool
from gossamer.core.store import ClientStore
from gossamer.core.types import Clock, Params, State
from gossamer.engines.client import Failure
from gossamer.engines.inbox import ClientReply, Inbox
from gossamer.engines.metrics import Ledger, machine
from gossamer.engines.options import Options
from gossamer.runs.folder import RunFolder, read_about, read_metrics
from gossamer.runs.summary import summarise
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

Record = dict[str, Any]
Watch = Callable[[Record], None]

PATIENCE = 3
"""A run stops after this number of consecutive rounds in which every client failed, for various reasons."""


@dataclass(frozen=True)
class Result:
    """A run that has ended: its metrics by round, and its last model."""

    about: dict[str, Any]
    metrics: list[Record]
    path: Path | None
    run: "FederatedRun" = field(repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The network as it was trained together, in evaluation mode."""
        return self.run.module().eval()

    def client_model(self, client: int) -> nn.Module:
        """The network as a client deploys it, in evaluation mode."""
        return self.run.client_module(client).eval()

    def summary(self) -> dict[str, Any]:
        """What ``gossamer show --json`` prints."""
        return summarise(self.about, self.metrics)

    @property
    def accuracy(self) -> float:
        """Accuracy on the test set after the last round."""
        return float(self.summary()["accuracy"])


@dataclass(frozen=True)
class Stage:
    """One exchange of one round.

    Args:
        exchange: what is exchanged, and what becomes of it
        number: the round
        assigned: which model each client trains
        outcomes: what came of each client that was asked, as it is folded
    """

    exchange: BoundExchange
    number: int
    assigned: Mapping[int, Assignment]
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def asked(self) -> list[int]:
        """The clients that have something to do, in client order."""
        return sorted(client for client, to in self.assigned.items() if to.loss_scale != 0)

    @property
    def failed(self) -> dict[int, str]:
        """Who failed, or whose message was refused, and why."""
        return {outcome.client: outcome.reason for outcome in self.outcomes if outcome.reason}


class FederatedRun(ABC):
    """A run in progress: the method, the task, and what server and clients remember."""

    def __init__(self, method: Method, task: Task, options: Options, request: dict[str, Any] | None = None) -> None:
        if not isinstance(method, Method):
            name = getattr(method, "__name__", "")
            made = f": write {name}()" if name else ""
            raise ConfigError(f"method must be a gossamer Method, got a {type(method).__name__}{made}")
        self.task, self.options = task, options
        self.cohort_size = options.cohort(task.clients)
        self.key = make_key(options.seed)
        self.objective = Objective(task, options.device, self.key)
        self.method = method.bind(self.objective)
        self.like = self.objective.initial()
        self.choice: dict[str, Any] = {"executor": options.executor}
        self.server: State = self.method.init(self.like, self.key)
        if self.method.probe is not None and len(self.method.global_models(self.server)) > 1:
            raise ConfigError(
                f"{method.sampler} asks for losses of the global model, and this method has several models"
            )
        self.clients, self.models = ClientStore(options.device), self.method.models
        self.metrics: list[Record] = []
        self.outcomes: list[Outcome] = []  # of the last round
        self.saving = 0.0
        self._last: tuple[Params, Params] | None = None
        self.about: dict[str, Any] = {
            "method": method.describe(),
            "task": task.describe(),
            "parameters": self.objective.layout.size,
            "options": options.describe(),
            "request": request,
            "machine": machine(options.device),
        }

    # What engines differ in.

    @abstractmethod
    def exchange(self, stage: Stage, ledger: Ledger, inbox: Inbox) -> None:
        """Have those who are asked do their part, and put what comes of each client into the inbox."""

    @abstractmethod
    def available(self) -> Mapping[int, int]:
        """The clients that are there, with their numbers of training samples."""

    @abstractmethod
    def evaluated(self, number: int, ledger: Ledger) -> dict[str, float]:
        """How good the models are after a round."""

    @abstractmethod
    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Get ready for a round."""

    @abstractmethod
    def close(self) -> None:
        """Let go of processes and memory."""

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
            folder.recall(self.clients, self.models)
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

    def run(self, folder: RunFolder | None, watch: Watch) -> Result:
        """All rounds that are left."""
        try:
            self.rounds(folder, watch)
        finally:
            self.close()
        return Result(self.about, self.metrics, folder.path if folder else None, self)

    def rounds(self, folder: RunFolder | None, watch: Watch) -> None:
        """Round after round, until all are done or everybody keeps failing."""
        streak, problem = 0, ""
        for number in range(len(self.metrics), self.options.rounds):
            record = self.round(number, folder)
            watch(record)
            failed = _all_failed(self.outcomes, record["clients"])
            streak = streak + 1 if failed else 0
            if failed:
                problem = f"every client failed in round {number + 1}: client {failed.client}: {failed.reason}"
            if streak == PATIENCE:
                break
        if problem:
            raise RunError(problem)

    def round(self, number: int, folder: RunFolder | None) -> Record:
        """One round, from the cohort to the checkpoint."""
        ledger = Ledger()
        cohort = self.train(number, ledger)
        with ledger.time("evaluate"):
            due = (number + 1) % self.options.eval_every == 0 or number + 1 == self.options.rounds
            evaluated = self.evaluated(number, ledger) if due else {}
        record = ledger.record(number + 1, cohort, evaluated)
        if folder is not None:
            # A round's line is written ahead of its checkpoint, so it tells how long the one before took.
            record["seconds"]["save"] = self.saving
            begin = time.perf_counter()
            folder.keep_choice(self.choice)
            folder.append(record)
            folder.save(number + 1, self.server, self.clients, self.models)
            self.saving = round(time.perf_counter() - begin, 6)
        self.metrics.append(record)
        return record

    def train(self, number: int, ledger: Ledger) -> list[int]:
        """All exchanges of a round; who took part. What clients remember counts if the round does."""
        before, self.outcomes = self.server, []
        try:
            cohort = self.cohort(number, ledger)
            self.prepare(number, cohort, ledger)
            for exchange in self.method.exchanges:
                self.carry_out(exchange, number, cohort, ledger)
        except BaseException:
            self.server = before
            self.clients.discard()
            self.models.discard()
            raise
        self.clients.commit()
        self.models.commit()
        return cohort

    def cohort(self, number: int, ledger: Ledger) -> list[int]:
        """Who takes part in a round, in client order."""
        sampler, pool = self.method.sampler, Pool(self.task.clients, self.available(), self.cohort_size)
        proposed = sampler.propose(pool, self.clock(number), self.key)
        if self.method.probe is None:
            return proposed
        self.prepare(number, proposed, ledger)
        return sampler.choose(self.carry_out(self.method.probe, number, proposed, ledger), self.cohort_size)

    def carry_out(
        self, exchange: BoundExchange, number: int, cohort: Sequence[int], ledger: Ledger
    ) -> Sequence[Outcome]:
        """One exchange: send, train, fold, finish. What came of each client that was asked, in client order."""
        server, clock = exchange.server, self.clock(number)
        assigned = server.assign(self.server, cohort, clock, self.key)
        if assigned is None:
            return []
        ledger.begin()
        stage, acc = Stage(exchange, number, assigned), server.begin(self.server, assigned)

        def deliver(client: int, reply: ClientReply) -> None:
            nonlocal acc
            acc, outcome = self.folded(stage, client, reply, acc, ledger)
            stage.outcomes.append(outcome)

        with ledger.time("train"):
            self.exchange(stage, ledger, Inbox(stage.asked, deliver))
        after = server.finish(self.server, acc, clock)
        self.approve(stage, after)
        self.server = after
        arrived = [outcome.client for outcome in stage.outcomes if outcome.folded] if exchange.last else []
        changes = {client: (self.clients.get(client), self.clients.staged(client)) for client in arrived}
        ledger.measure(exchange.measure(after, acc, changes))
        self.outcomes += stage.outcomes
        return stage.outcomes

    def folded(self, stage: Stage, client: int, reply: ClientReply, acc: Any, ledger: Ledger) -> tuple[Any, Outcome]:
        """The sum with a client's reply in it, and what came of the client, which is staged to be remembered."""
        failure, known, values = reply.failure, State(), dict[str, float]()
        if reply.data is not None and failure is None:
            try:
                acc, known, values = self._fold(stage, client, reply, acc)
                ledger.fold(client)
            except Exception as error:  # whatever a message does to its decoder, it ends as a refusal with a reason
                refused = Failure.of(error)
                failure = refused._replace(reason=f"refused: {refused.reason}")
        if failure is not None:
            ledger.fail(client, failure.reason)
        arrived = reply.data is not None and failure is None
        if stage.exchange.last:
            self.settle(stage, client, reply, arrived, known)
        version, (reason, cause) = stage.exchange.version(self.clock(stage.number)), failure or ("", None)
        return acc, Outcome(client, stage.exchange.number, version, arrived, values, reason, cause, reply.injected)

    def _fold(self, stage: Stage, client: int, reply: ClientReply, acc: Any) -> tuple[Any, State, dict[str, float]]:
        assert reply.data is not None
        clock, key = self.at(stage, client)
        known = self.tracked(stage, client)
        arrival, after = stage.exchange.read_upload(reply.data, self.server, clock, key, stage.assigned[client], known)
        said = {name: value for name, value in arrival.sections.items() if isinstance(value, float)}
        return stage.exchange.server.fold(acc, arrival), after, said

    @abstractmethod
    def settle(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Stage what is remembered of a client, now that it is known whether its message arrived.

        ``known`` is what its message says of what it holds from now on.
        """

    def approve(self, stage: Stage, after: State) -> None:
        """Refuse an exchange that is not to count: here one that no run can go on from."""
        alone = [outcome for outcome in stage.outcomes if outcome.reason and not outcome.injected]
        if alone and len(alone) == len(stage.assigned) and len({outcome.reason for outcome in alone}) == 1:
            count = f"all {len(alone)} clients" if len(alone) > 1 else f"client {alone[0].client}"
            raise RunError(f"{count} failed in round {stage.number + 1}: {alone[0].reason}") from alone[0].cause
        if not all(tree.finite(model) for model in stage.exchange.server.download(after, GLOBAL).models):
            raise RunError(
                f"the global model is not finite after round {stage.number + 1}: training diverges; start a new run "
                "with a smaller learning rate (--lr, or --global-lr where there is one)"
            )

    def tracked(self, stage: Stage, client: int) -> State | None:
        """What the server knows of the memory of a client's view; nothing before its first round."""
        return self.clients.get(client).get("view") if stage.exchange.last else None

    def at(self, stage: Stage, client: int) -> tuple[Clock, Key]:
        """When and where, and the randomness of an exchange."""
        return self.clock(stage.number, client), stage.exchange.key(self.round_key(stage.number))

    def round_key(self, number: int) -> Key:
        """The randomness of a round."""
        return fold(self.key, "round", number)

    def clock(self, number: int, client: int = -1) -> Clock:
        """When and where; at the server, where no client is named."""
        return Clock(number, self.options.rounds, client)

    # The model.

    def model(self) -> Params:
        """What the server holds."""
        first, *others = self.method.global_models(self.server)
        if others:
            raise RunError("there is no one model: each client chooses among several; ask for result.client_model(i)")
        return first

    def deployed(self) -> Params:
        """The network's tensors that follow from what the server holds."""
        return self._deploy(self.model())

    def module(self) -> nn.Module:
        """The network to use after the last round."""
        return self.objective.build(self.deployed())

    @abstractmethod
    def client_module(self, client: int) -> nn.Module:
        """The network that a client deploys."""

    def _deploy(self, held: Params) -> Params:
        if self._last is None or self._last[0] is not held:
            self._last = held, self.method.parametrization.deploy(held, self.like)
        return self._last[1]


def _all_failed(outcomes: Sequence[Outcome], cohort: Sequence[int]) -> Outcome | None:
    """The last failure of a round in which every client failed; where candidates of a probe did, there is no cohort."""
    failed = [outcome for outcome in outcomes if outcome.reason and not outcome.injected]
    return failed[-1] if failed and {outcome.client for outcome in failed} >= set(cohort) else None
