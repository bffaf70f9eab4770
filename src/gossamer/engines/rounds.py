"""A run in progress, wherever its clients are: the server's half of every round, and the run's folder.

A round, top to bottom: draw the cohort; brief each client; let it train; fold what arrives, in client order whatever
order it came in; finish; evaluate; write it down. A client that fails, or whose message is refused, is named with the
reason and the round goes on without it. How clients are reached is the engine's: :mod:`gossamer.engines.simulate` has
them in this process, :mod:`gossamer.engines.flower` across a network.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from gossamer import tree
from gossamer.clients import Clients
from gossamer.engines.client import reason
from gossamer.engines.inbox import Inbox
from gossamer.engines.ledger import Ledger
from gossamer.engines.options import Options
from gossamer.errors import RunError
from gossamer.machine import machine
from gossamer.method import Method
from gossamer.objective import Objective
from gossamer.random import Key, choice, fold
from gossamer.random import key as make_key
from gossamer.runs import RunFolder, read_about, read_metrics
from gossamer.servers import Place, Visit
from gossamer.summary import summarise
from gossamer.tasks import Task
from gossamer.types import Clock, Params, State
from gossamer.views.overlap import figures
from gossamer.wire import Letter

Record = dict[str, Any]
Watch = Callable[[Record], None]

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


@dataclass(frozen=True)
class Stage:
    """One exchange of a round.

    method: what is exchanged, and what becomes of it
    place: which exchange of the round, from 0 on
    last: whether it is the method's own, of which clients remember things
    number: the round
    failed: how many failures the round had before
    known: what the server knew of clients' views when they were briefed, where these are personal
    places: whose models clients train, where that is not the model of all
    """

    method: Method
    place: int
    last: bool
    number: int
    failed: int = 0
    known: dict[int, State | None] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)

    def key(self, key: Key) -> Key:
        """The randomness of the exchange, of that of its round."""
        return early(key, self.place) if not self.last else key


class Rounds(ABC):
    """A run in progress: the method, the task, and what server and clients remember."""

    def __init__(self, method: Method, task: Task, options: Options, request: dict[str, Any] | None = None) -> None:
        self.task, self.options = task, options
        self.cohort_size = options.cohort(task.clients)
        self.key = make_key(options.seed)
        self.objective = Objective(task, options.device, self.key)
        self.method = method.fit(self.objective)
        self.like = self.objective.initial()
        self.choice: dict[str, Any] = {"executor": options.executor}
        self.server: State = self.method.server.init(method.form.hold(self.like, fold(self.key, "form")))
        self.clients = Clients(options.device)
        self.models = Clients(options.device)
        self.metrics: list[Record] = []
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
    def exchange(self, stage: Stage, cohort: Sequence[int], ledger: Ledger, inbox: Inbox) -> None:
        """Have the cohort trained, and put what arrives of each client, or ``None``, into the inbox."""

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
        return Result(self.about, self.metrics, self.module().eval(), folder.path if folder else None)

    def rounds(self, folder: RunFolder | None, watch: Watch) -> None:
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
        self.prepare(number, cohort, ledger)
        self.train(number, cohort, ledger)
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

    def cohort(self, number: int) -> list[int]:
        """Who takes part in a round, in client order."""
        return [int(c) for c in choice(fold(self.key, "cohort", number), self.task.clients, self.cohort_size)]

    def train(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """All exchanges of a round that are due."""
        for place, method in enumerate(self.method.stages):
            if method.server.due(self.server, self.clock(number)):
                last, failed = place == len(self.method.before), len(ledger.failures)
                self.stage(Stage(method, place, last, number, failed), cohort, ledger)

    def stage(self, stage: Stage, cohort: Sequence[int], ledger: Ledger) -> None:
        """Brief, train, send, fold, finish."""
        server, clock = stage.method.server, self.clock(stage.number)
        ledger.begin()
        if stage.last and stage.method.view.personal:
            stage.known.update({client: self.known(client) for client in cohort})
        stage.places.update(server.places(self.server, cohort, clock, self.key))
        wanted = server.asks(self.server, cohort)
        asked = [c for c in wanted if c in stage.places and stage.places[c].scale] if server.own else wanted
        acc, self.revised = server.empty(self.server, stage.places), dict[int, State]()

        def deliver(client: int, data: Letter) -> None:
            nonlocal acc
            try:
                clock, key = self.at(stage, client)
                known, visit = stage.known.get(client), self.visit(stage, client)
                then = stage.method.revised(data, self.server, clock, known)
                acc = stage.method.receive(acc, data, self.server, clock, key, known, visit)
                self.revised[client] = then
                ledger.fold(client)
            except Exception as error:  # whatever a message does to its decoder, it ends as a refusal with a reason
                ledger.fail(client, f"refused: {reason(error)}")

        with ledger.time("train"):
            self.exchange(stage, asked, ledger, Inbox(asked, deliver))
        after = server.finish(self.server, acc, clock)
        self.approve(stage, asked, len(cohort) - len(wanted), after, ledger)
        self.server = after
        for slot, model in server.moved(acc):
            self.models.put(slot, {"params": model})
        ledger.notes |= server.notes(after, acc)
        if stage.last:
            self.settled(stage, asked, ledger)

    def approve(self, stage: Stage, asked: Sequence[int], heard: int, after: State, ledger: Ledger) -> None:
        """Refuse an exchange that is not to count: here one that no run can go on from.

        ``heard`` is how many of the cohort were not asked, as the server has heard them before.
        """
        if not tree.finite(stage.method.server.model(after)):
            raise RunError(
                f"the global model is not finite after round {stage.number + 1}: training diverges; start a new run "
                "with a smaller learning rate (--lr, or --global-lr where there is one)"
            )

    def settled(self, stage: Stage, asked: Sequence[int], ledger: Ledger) -> None:
        """Note what the last exchange of a round changed of clients' views."""
        if self.method.view.personal:
            ledger.notes["masks"] = self._masks(stage.known)

    def visit(self, stage: Stage, host: int) -> Visit | None:
        """What a client trains, where that is not the model of all."""
        place = stage.places.get(host)
        return place and Visit(place.slot, place.scale, self.slot(place.slot))

    def slot(self, client: int) -> Params:
        """A client's own model, where the server keeps one; until it has moved, the one that all started with."""
        own: Params | None = self.models.get(client).get("params")
        origin: Params = self.server.get("origin", self.model())
        return own or origin

    def _masks(self, known: dict[int, State | None]) -> dict[str, float | None]:
        """How the masks of those whose messages were folded moved, and what they have in common."""
        start = self.method.view.start
        before = {client: known[client] or start(self.like, client) for client in self.revised}
        after = {client: then or before[client] for client, then in self.revised.items()}
        return figures(before, after, self.like)

    def known(self, client: int) -> State | None:
        """What the server knows of a client's view, where that is personal."""
        return self.clients.get(client).get("view")

    def at(self, stage: Stage | int, client: int) -> tuple[Clock, Key]:
        """When and where, and the randomness of a round, or of an exchange of it."""
        number = stage if isinstance(stage, int) else stage.number
        key = fold(self.key, "round", number)
        return self.clock(number, client), key if isinstance(stage, int) else stage.key(key)

    def clock(self, number: int, client: int = -1) -> Clock:
        """When and where; at the server, where no client is named."""
        return Clock(number, self.options.rounds, client)

    # The model.

    def model(self) -> Params:
        """What the server holds."""
        return self.method.server.model(self.server)

    def deployed(self) -> Params:
        """The network's tensors that follow from what the server holds."""
        return self._deploy(self.model())

    def module(self) -> nn.Module:
        """The network to use after the last round."""
        return self.objective.build(self.deployed())

    def _deploy(self, held: Params) -> Params:
        if self._last is None or self._last[0] is not held:
            self._last = held, self.method.form.deploy(held, self.like)
        return self._last[1]


def early(key: Key, place: int) -> Key:
    """The randomness of an exchange that comes before a round's last, of that of the round."""
    return fold(key, "stage", place)


def _all_failed(record: Record) -> bool:
    failed = {f["client"] for f in record["failures"] if f["reason"] != INJECTED}
    return failed == set(record["clients"])


def _last_reason(record: Record) -> str:
    last = record["failures"][-1]
    return f"client {last['client']}: {last['reason']}"
