"""The server of a deployment: the rounds of :mod:`gossamer.engines.rounds`, with clients that are reached by Flower.

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

from gossamer import tree, wire
from gossamer.channels import Receipt
from gossamer.engines.client import reason
from gossamer.engines.evaluate import Evaluator, worst_tenth
from gossamer.engines.flower.agreement import fingerprint, whole
from gossamer.engines.flower.fleet import Fleet, Reply
from gossamer.engines.flower.journal import NEVER
from gossamer.engines.flower.messages import content, data, word
from gossamer.engines.flower.node import OUT_OF_STEP
from gossamer.engines.flower.settings import Settings
from gossamer.engines.inbox import Inbox
from gossamer.engines.ledger import Ledger
from gossamer.engines.rounds import PATIENCE, Record, Result, Rounds, Stage, Watch
from gossamer.errors import ConfigError, PayloadError, RunError
from gossamer.fates import Fate
from gossamer.method import Method
from gossamer.random import fold, permutation
from gossamer.runs import RunFolder, read_about
from gossamer.servers import Place
from gossamer.tasks import AnyTask, Task, task_at
from gossamer.types import Flops, State
from gossamer.wire import Body, Letter

FOLDED = "folded"
"""What the server remembers of a client: its last round that was folded in."""

ROOM = 16
"""Bytes a parameter that a reply may have at most, whatever its codec: more is not even looked at."""


def server_app(method: Method, task: AnyTask, rounds: int = 30, **settings: Any) -> ServerApp:
    """A Flower app for the server; ``settings`` are the fields of :class:`Settings`.

    ``task`` is a :class:`~gossamer.Task`, or a function that makes one: of nothing, of ``None`` (the server is no
    client), or of that and the run's configuration (a dictionary).
    """
    usual = Settings(rounds=rounds, **settings)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = usual.given(context.run_config)
        serve(Field(method, task_at(task, None, context.run_config), chosen, grid))

    return app


def serve(field: "Field") -> Result:
    """All rounds that are left of a deployed run."""
    path = Path(field.settings.out).expanduser().absolute()
    folder = field.restore(path) if field.settings.resume else field.create(path)
    for warning in folder.warnings:
        log(WARNING, warning)
    try:
        return field.run(folder, _tell)
    finally:
        folder.close()


class Field(Rounds):
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
        self.fleet = Fleet(grid, task.clients, lambda: content(self.words(0)), fingerprint(method, self.objective))
        self.anew: set[int] = set()
        self.void: list[Record] = []

    def restore(self, path: Path) -> RunFolder:
        """Take up a run where it stands, under its own name: nodes know it by that."""
        folder = super().restore(path)
        self.about["id"] = read_about(path)["id"]
        return folder

    def known(self, client: int) -> State | None:
        """What the server knows of a client's view; nothing, where the node is told to start over."""
        return None if client in self.anew else super().known(client)

    # Who takes part.

    def rounds(self, folder: RunFolder | None, watch: Watch) -> None:
        """Wait for the nodes, then round after round."""
        if len(self.metrics) < self.options.rounds:
            self.fleet.muster(self.settings.nodes or self.cohort_size, self.settings.wait)
        super().rounds(folder, watch)

    def cohort(self, number: int) -> list[int]:
        """As in the simulator if everybody is there; else those who come next in the same order."""
        self.fleet.muster(_share(self.settings.least, self.cohort_size), self.settings.wait)
        order = permutation(fold(self.key, "cohort", number), self.task.clients)
        return sorted([int(client) for client in order if int(client) in self.fleet.peers][: self.cohort_size])

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

    def train(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """As ever, but a round that does not count leaves the server where it was."""
        before, down, up = self.server, self.fleet.bytes_down, self.fleet.bytes_up
        try:
            super().train(number, cohort, ledger)
        except VoidError as problem:
            self.server = before
            self.void.append({"reason": str(problem), "bytes_up": dict(ledger.up), "bytes_down": dict(ledger.down)})
            raise
        sent = {"down": sum(ledger.down.values()), "up": sum(ledger.up.values())}
        moved = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        ledger.notes["void"] = self.void
        ledger.notes["bytes_flower"] = {way: moved[way] - sent[way] for way in sent}

    def approve(self, stage: Stage, asked: Sequence[int], heard: int, after: State, ledger: Ledger) -> None:
        """An exchange counts if enough clients replied, or had before and are not asked again; with finite numbers."""
        failed = {failure["client"]: failure["reason"] for failure in ledger.failures[stage.failed :]}
        replied, needed = len(asked) + heard - len(failed), _share(self.settings.least, len(asked) + heard)
        why = "; ".join(f"client {client}: {reason}" for client, reason in failed.items())
        if replied < needed:
            raise VoidError(f"{replied} of {len(asked) + heard} clients replied, {needed} are needed ({why})")
        if not tree.finite(stage.method.server.model(after)):
            raise VoidError("what came of it is not finite: a client sent numbers that are far too large")

    def settled(self, stage: Stage, asked: Sequence[int], ledger: Ledger) -> None:
        """As ever; and take note of whose round was folded."""
        super().settled(stage, asked, ledger)
        failed = {failure["client"] for failure in ledger.failures[stage.failed :]}
        for client in (client for client in asked if client not in failed):
            known = {"view": self.revised[client]} if self.revised.get(client) else {}
            self.clients.put(client, {FOLDED: torch.tensor(stage.number), **known})
            self.anew.discard(client)

    def exchange(self, stage: Stage, cohort: Sequence[int], ledger: Ledger, inbox: Inbox) -> None:
        """Send orders, and take replies as they come until the deadline."""
        with ledger.time("brief"):
            orders = self.orders(stage, cohort, ledger)
        for client, reply in self.fleet.ask(MessageType.TRAIN, orders, self.settings.deadline):
            with ledger.time("receive"):
                inbox.put(client, self.accept(stage, client, reply, ledger))

    def orders(self, stage: Stage, cohort: Sequence[int], ledger: Ledger | None, **more: Any) -> dict[int, RecordDict]:
        """What each client is sent."""
        body: Body | None = None
        found, method = {}, stage.method
        for client in cohort:
            clock, key = self.at(stage, client)
            if method.broadcasts:
                body = body or method.load(self.server, clock, key)
            sent = method.brief(self.server, clock, key, body, stage.known.get(client), self.visit(stage, client))
            if ledger is not None:
                ledger.down.update(sent.kinds)
            words = self.words(stage.number, client, stage=stage.place, **more)
            found[client] = content(words, bytes(sent.data))
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

    def accept(self, stage: Stage, client: int, reply: Reply, ledger: Ledger) -> Letter | None:
        """What a reply brings, if it is what was asked for."""
        try:
            message = self.fitting(stage.number, reply)
            letter = self.letter(stage.method, client, message) if self.method.shared else None
            kinds = wire.kinds(letter) if letter else {}
            work = Flops(*(max(0, word(message, name, int)) for name in ("flops", "useful")))
            fate = self.fate(stage.number, message)
            ledger.train(word(message, "loss", float), work)
        except Exception as error:  # whatever a reply does to its reader, it ends as a refusal with a reason
            if reply.says(OUT_OF_STEP):
                self.anew.add(client)
            ledger.fail(client, reason(error))
            if reply.nbytes:
                ledger.up["refused"] += reply.nbytes
            return None
        if letter:
            ledger.send(client, kinds, Receipt(delivered=True), fate)
        return letter

    def fate(self, number: int, message: Message) -> Fate:
        """What a reply says of messages that were lost before it, if there can have been so many."""
        said = Fate(*(word(message, name, int) for name in Fate._fields))
        if min(said) < 0 or sum(said) > number:
            raise PayloadError(f"refused: the reply tells of {sum(said)} lost messages in {number} rounds")
        return said

    def fitting(self, number: int, reply: Reply) -> Message:
        """A reply's message, if it belongs to this run and round."""
        message = reply.told()
        for name, wanted in (("run", self.about["id"]), ("round", number)):
            if (got := word(message, name, type(wanted))) != wanted:
                raise PayloadError(f"refused: the reply is for another {name}: expected {wanted}, got {got}")
        return message

    def letter(self, method: Method, client: int, message: Message) -> Letter:
        """The method's message in a reply, if size and weight can be right."""
        sent, room = data(message), ROOM * self.about["parameters"] + 2**16
        if len(sent) > room:
            raise PayloadError(f"refused: the reply holds {len(sent):,} bytes, more than {room:,}")
        letter = Letter.of(sent)
        weight = wire.read_head(letter, wire.checksum(letter.body))[0].weight
        samples = self.fleet.peers[client].samples
        usual = method.server.weigh(samples, method.solver.batches(samples))
        if weight != usual:
            raise PayloadError(f"refused: the reply has weight {weight}, but {samples:,} samples weigh {usual}")
        return letter

    # How good it is.

    def evaluated(self, number: int, ledger: Ledger) -> dict[str, float]:
        """The global model on the server's test samples, if it has some, and each client's on its own."""
        here = self._evaluator if self.method.shared and len(self.task.data.test) else None
        found = self._asked(number, here is None, ledger)
        loss, accuracy = here.whole(self.deployed()) if here else (_mean(found, "loss"), _mean(found, "accuracy"))
        own = [words["own"] for words in found if math.isfinite(words["own"])]
        return {
            "accuracy": accuracy,
            "loss": loss,
            "personal_accuracy": sum(own) / len(own) if own else math.nan,
            "worst_tenth_accuracy": worst_tenth(own),
        }

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.objective)

    def _asked(self, number: int, everything: bool, ledger: Ledger) -> list[dict[str, float]]:
        """What those who have test samples say."""
        down, up = self.fleet.bytes_down, self.fleet.bytes_up
        peers = [c for c, peer in sorted(self.fleet.peers.items()) if peer.tested or (everything and peer.test)]
        found, failed, names = [], [], ("own", "loss", "accuracy") if everything else ("own",)
        known = [client for client in peers if client not in self.anew]
        stage = Stage(whole(self.method), len(self.method.before), True, number)
        stage.places.update({client: Place(client, 0.0) for client in known} if self.method.server.own else {})
        orders = self.orders(stage, known, None, whole=everything)
        for client, reply in self.fleet.ask(MessageType.EVALUATE, orders, self.settings.deadline):
            try:
                message = self.fitting(number, reply)
                found.append((client, {name: _figure(word(message, name, float), name) for name in names}))
            except PayloadError as error:
                failed.append({"client": client, "reason": str(error)})
        ledger.notes["evaluation_failures"] = failed
        ledger.notes["bytes_evaluation"] = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        return [words for _, words in sorted(found, key=lambda item: item[0])]


class VoidError(RunError):
    """A round that does not count."""


def _figure(value: float, name: str) -> float:
    """A figure that a node tells, if it can be one; who has no samples of its own has no accuracy on them."""
    top = math.inf if name == "loss" else 1
    if not (0 <= value <= top and value < math.inf) and not (name == "own" and math.isnan(value)):
        raise PayloadError(f"refused: {name} must be in [0, {top}], got {value}")
    return value


def _share(share: float, clients: int) -> int:
    """So many clients at least; a product a hair above a whole number is that number."""
    return math.ceil(round(share * clients, 9))


def _mean(found: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(words[name] for words in found) / len(found) if found else math.nan


def _tell(record: Record) -> None:
    accuracy = record.get("accuracy")
    shown = f", accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    log(INFO, "round %s: %s clients%s", record["round"], len(record["clients"]), shown)
    for failure in record["failures"]:
        log(WARNING, "round %s: client %s: %s", record["round"], failure["client"], failure["reason"])
