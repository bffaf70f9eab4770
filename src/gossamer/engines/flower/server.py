"""The server of a deployment: the rounds of ``gossamer.engines.run``, with clients that are reached by Flower.

Between rounds it looks who is there. In a round it sends each client of the cohort its order and folds replies as they
come, until all are there or the deadline is over; a round to which too few replied does not count and is tried again,
with the same randomness. A reply that is late, or that does not fit its order in every way, is left out and named.
"""

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.logger import log
from torch import nn

from gossamer.core import tree, wire
from gossamer.core.bound import BoundExchange
from gossamer.core.channel import Receipt
from gossamer.core.delivery import Delivery
from gossamer.core.errors import ConfigError, PayloadError, RunError
from gossamer.core.exchange import GLOBAL
from gossamer.core.method import Method
from gossamer.core.types import Flops, State
from gossamer.core.wire import Frame
from gossamer.engines.client import Failure
from gossamer.engines.evaluate import Evaluator, evaluation_exchange, personal_figures
from gossamer.engines.flower.fleet import NodePool, NodeReply
from gossamer.engines.flower.journal import NEVER
from gossamer.engines.flower.messages import content, data, fingerprint, word
from gossamer.engines.flower.node import OUT_OF_STEP
from gossamer.engines.flower.settings import Settings
from gossamer.engines.inbox import ClientReply, Inbox
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import PATIENCE, FederatedRun, Record, Result, Stage, Watch
from gossamer.runs.folder import RunFolder, read_about
from gossamer.tasks.task import AnyTask, Task, task_at

FOLDED = "folded"
"""What the server remembers of a client: its last round that was folded in."""

ROOM = 16
"""Bytes a parameter that a reply may have at most, whatever its codec: more is not even looked at."""


def server_app(method: Method, task: AnyTask, rounds: int = 30, **settings: Any) -> ServerApp:
    """A Flower app for the server; ``settings`` are the fields of ``Settings``.

    ``task`` is a ``Task``, or a function that makes one: of nothing, of ``None`` (the server is no
    client), or of that and the run's configuration (a dictionary).
    """
    usual = Settings(rounds=rounds, **settings)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = usual.given(context.run_config)
        serve(FlowerRun(method, task_at(task, None, context.run_config), chosen, grid))

    return app


def serve(field: "FlowerRun") -> Result:
    """All rounds that are left of a deployed run."""
    path = Path(field.settings.out).expanduser().absolute()
    folder = field.restore(path) if field.settings.resume else field.create(path)
    for warning in folder.warnings:
        log(WARNING, warning)
    try:
        return field.run(folder, _tell)
    finally:
        folder.close()


class FlowerRun(FederatedRun):
    """A run whose clients are on machines of their own."""

    def __init__(
        self, method: Method, task: Task, settings: Settings, grid: Grid | None, request: dict[str, Any] | None = None
    ) -> None:
        if method.pooled:
            raise ConfigError("a method that pools all samples in one place cannot be deployed: its clients are apart")
        super().__init__(method, task, settings.options(), request)
        self.settings = settings
        self.choice = {"executor": "flower"}
        self.about |= {"id": uuid.uuid4().hex, "name": settings.name, "deployment": asdict(settings), **self.choice}
        self.fleet = NodePool(grid, task.clients, lambda: content(self.words(0)), fingerprint(method, self.objective))
        self.anew: set[int] = set()
        self.renewed: set[int] = set()
        self.void: list[Record] = []

    def restore(self, path: Path) -> RunFolder:
        """Take up a run where it stands, under its own name: nodes know it by that."""
        folder = super().restore(path)
        self.about["id"] = read_about(path)["id"]
        return folder

    def tracked(self, stage: Stage, client: int) -> State | None:
        """What the server knows of a client's view; nothing, where the node is told to start over."""
        return None if client in self.anew else super().tracked(stage, client)

    # Who takes part.

    def rounds(self, folder: RunFolder | None, watch: Watch) -> None:
        """Wait for the nodes, then round after round."""
        if len(self.metrics) < self.options.rounds:
            self.fleet.wait_for_nodes(self.settings.nodes or self.cohort_size, self.settings.wait)
        super().rounds(folder, watch)

    def available(self) -> Mapping[int, int]:
        """The clients whose nodes are connected; enough of them for a round are waited for."""
        self.fleet.wait_for_nodes(_share(self.settings.min_replies, self.cohort_size), self.settings.wait)
        return {client: peer.samples for client, peer in self.fleet.peers.items()}

    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Nothing: nodes get themselves ready."""

    def close(self) -> None:
        """Nothing is held that must be let go of."""

    # A round.

    def round(self, number: int, folder: RunFolder | None) -> Record:
        """A round that counts, or the reason why none does."""
        self.void = []
        while len(self.void) < PATIENCE:
            try:
                return super().round(number, folder)
            except VoidError as problem:
                log(WARNING, "round %s does not count: %s", number + 1, problem)
        last = self.void[-1]["reason"]
        raise RunError(f"round {number + 1} was tried {PATIENCE} times, and did not count: {last}")

    def train(self, number: int, ledger: Ledger) -> list[int]:
        """As ever, but a round that does not count is kept in the books."""
        down, up = self.fleet.bytes_down, self.fleet.bytes_up
        self.renewed = set()
        try:
            cohort = super().train(number, ledger)
        except VoidError as problem:
            self.void.append({"reason": str(problem), "bytes_up": dict(ledger.up), "bytes_down": dict(ledger.down)})
            raise
        self.anew -= self.renewed
        sent = {"down": sum(ledger.down.values()), "up": sum(ledger.up.values())}
        moved = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        ledger.notes["void"] = self.void
        ledger.notes["bytes_flower"] = {way: moved[way] - sent[way] for way in sent}
        return cohort

    def approve(self, stage: Stage, after: State) -> None:
        """An exchange counts if enough clients replied, or had nothing to do; with finite numbers."""
        failed, count = stage.failed, len(stage.assigned)
        replied, needed = count - len(failed), _share(self.settings.min_replies, count)
        why = "; ".join(f"client {client}: {reason}" for client, reason in failed.items())
        if replied < needed:
            raise VoidError(f"{replied} of {count} clients replied, {needed} are needed ({why})")
        if not all(tree.finite(model) for model in stage.exchange.server.download(after, GLOBAL).models):
            raise VoidError("what came of it is not finite: a client sent numbers that are far too large")

    def settle(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Whose round was folded, and what it holds from now on; all else the node itself remembers."""
        if arrived or (reply.failure is None and not stage.exchange.shared):
            view = {"view": known} if known else {}
            self.clients.stage(client, {FOLDED: torch.tensor(stage.number), **view})
            self.renewed.add(client)

    def client_module(self, client: int) -> nn.Module:
        """What a client deploys is on its own machine."""
        raise RunError(f"the run was deployed: what client {client} has is on its machine")

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Inbox) -> None:
        """Send orders, and take replies as they come until the deadline."""
        with ledger.time("brief"):
            client_tasks = self.client_tasks(stage, stage.asked, ledger, exchange=stage.exchange.number)
        for client, reply in self.fleet.ask(MessageType.TRAIN, client_tasks, self.settings.deadline):
            with ledger.time("receive"):
                inbox.put(client, self.accept(stage, client, reply, ledger))

    def client_tasks(
        self, stage: Stage, clients: Sequence[int], ledger: Ledger | None, **more: Any
    ) -> dict[int, RecordDict]:
        """What each client is sent."""
        found, exchange, common = {}, stage.exchange, None
        for client in clients:
            clock, key = self.at(stage, client)
            common = common or exchange.make_common(self.server, clock, key)
            known = self.tracked(stage, client)
            sent = exchange.make_download(self.server, clock, key, stage.assigned[client], known, common)
            if ledger is not None:
                ledger.down.update(sent.kinds)
            found[client] = content(self.words(stage.number, client, **more), bytes(sent.data))
        return found

    def words(self, number: int, client: int | None = None, **more: Any) -> dict[str, Any]:
        """What goes with every message: which run and round, and what the server last had of the client."""
        anew = client in self.anew
        known = NEVER if client is None or anew else int(self.clients.get(client).get(FOLDED, NEVER))
        return {
            "run": self.about["id"],
            "round": number,
            "rounds": self.options.rounds,
            "seed": str(self.options.seed),
            "known": known,
            "anew": anew,
            **more,
        }

    def accept(self, stage: Stage, client: int, reply: NodeReply, ledger: Ledger) -> ClientReply:
        """What a reply brings, if it is what was asked for."""
        try:
            message = self.fitting(stage.number, reply)
            frame = self.frame(client, message) if stage.exchange.shared else None
            kinds = stage.exchange.envelope.kinds("up", wire.read_sizes(frame)) if frame else {}
            work = Flops(*(max(0, word(message, name, int)) for name in ("flops", "useful")))
            delivery = self.delivery(stage.number, message)
            ledger.train(word(message, "loss", float), work)
        except Exception as error:  # whatever a reply does to its reader, it ends as a refusal with a reason
            if reply.says(OUT_OF_STEP):
                self.anew.add(client)
            if reply.nbytes:
                ledger.up["refused"] += reply.nbytes
            return ClientReply(failure=Failure.of(error))
        if frame:
            ledger.send(client, kinds, Receipt(delivered=True), delivery)
        return ClientReply(frame)

    def delivery(self, number: int, message: Message) -> Delivery:
        """What a reply says of messages that were lost before it, if there can have been so many."""
        said = Delivery(*(word(message, name, int) for name in Delivery._fields))
        if min(said) < 0 or sum(said) > number:
            raise PayloadError(f"refused: the reply tells of {sum(said)} lost messages in {number} rounds")
        return said

    def fitting(self, number: int, reply: NodeReply) -> Message:
        """A reply's message, if it belongs to this run and round."""
        message = reply.told()
        for name, wanted in (("run", self.about["id"]), ("round", number)):
            if (got := word(message, name, type(wanted))) != wanted:
                raise PayloadError(f"refused: the reply is for another {name}: expected {wanted}, got {got}")
        return message

    def frame(self, client: int, message: Message) -> Frame:
        """The method's message in a reply, if its size and the number of samples can be right."""
        sent, room = data(message), ROOM * self.about["parameters"] + 2**16
        if len(sent) > room:
            raise PayloadError(f"refused: the reply holds {len(sent):,} bytes, more than {room:,}")
        frame = Frame.of(sent)
        said, samples = wire.read_head(frame)[0].weight, self.fleet.peers[client].samples
        if said != samples:
            raise PayloadError(f"refused: the reply was trained on {said:g} samples, but the client has {samples:,}")
        return frame

    # How good it is.

    def evaluated(self, number: int, ledger: Ledger) -> dict[str, float]:
        """The global model on the server's test samples, if it has some, and each client's on its own."""
        models = self.method.global_models(self.server)
        here = self._evaluator if self.method.shared and len(models) == 1 and len(self.task.data.test) else None
        found = self._asked(number, here is None and len(models) == 1, ledger)
        figures = personal_figures([words["own"] for words in found if math.isfinite(words["own"])])
        if len(models) > 1:
            loss, accuracy = (_mean(found, name, "tested") for name in ("own_loss", "own"))
        else:
            loss, accuracy = here.whole(self.deployed()) if here else (_mean(found, "loss"), _mean(found, "accuracy"))
        return {"accuracy": accuracy, "loss": loss, **figures}

    @cached_property
    def _evaluation(self) -> BoundExchange:
        return evaluation_exchange(self.method)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.objective)

    def _asked(self, number: int, everything: bool, ledger: Ledger) -> list[dict[str, float]]:
        """What those who have test samples say."""
        down, up = self.fleet.bytes_down, self.fleet.bytes_up
        peers = [c for c, peer in sorted(self.fleet.peers.items()) if peer.tested or (everything and peer.test)]
        found, failed, names = [], [], ("own", "own_loss", *(("loss", "accuracy") if everything else ()))
        known = [client for client in peers if client not in self.anew]
        stage = Stage(self._evaluation, number, {client: self.method.home(client) for client in known})
        client_tasks = self.client_tasks(stage, known, None, whole=everything)
        for client, reply in self.fleet.ask(MessageType.EVALUATE, client_tasks, self.settings.deadline):
            try:
                message = self.fitting(number, reply)
                figures = {name: _figure(word(message, name, float), name) for name in names}
                found.append((client, {**figures, "tested": self.fleet.peers[client].tested}))
            except PayloadError as error:
                failed.append({"client": client, "reason": str(error)})
        ledger.notes["evaluation_failures"] = failed
        ledger.notes["bytes_evaluation"] = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        return [words for _, words in sorted(found, key=lambda item: item[0])]


class VoidError(RunError):
    """A round that does not count."""


def _figure(value: float, name: str) -> float:
    """A figure that a node tells, if it can be one; who has no samples of its own has no accuracy on them."""
    top = math.inf if name in ("loss", "own_loss") else 1
    if not (0 <= value <= top and value < math.inf) and not (name in ("own", "own_loss") and math.isnan(value)):
        raise PayloadError(f"refused: {name} must be in [0, {top}], got {value}")
    return value


def _share(share: float, clients: int) -> int:
    """So many clients at least; a product a hair above a whole number is that number."""
    return math.ceil(round(share * clients, 9))


def _mean(found: Sequence[Mapping[str, float]], name: str, weight: str = "") -> float:
    """The mean of what clients say, each counting alike or by another of the figures."""
    said = [(words[name], words[weight] if weight else 1.0) for words in found if math.isfinite(words[name])]
    return sum(value * count for value, count in said) / sum(count for _, count in said) if said else math.nan


def _tell(record: Record) -> None:
    accuracy = record.get("accuracy")
    shown = f", accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    log(INFO, "round %s: %s clients%s", record["round"], len(record["clients"]), shown)
    for failure in record["failures"]:
        log(WARNING, "round %s: client %s: %s", record["round"], failure["client"], failure["reason"])
