"""The server of a Flower deployment: the rounds of ``gossamer.engines.run``, with clients on Flower nodes.

Before each round the server updates its list of nodes. In a round it sends each client of the cohort its task, and
aggregates replies until all have arrived or the deadline is over. A round with too few replies is void: it is repeated
with the same random key. A reply that is late or invalid is left out, and the record states the reason.

Updates are also compared with the model and with each other. ``Scales`` says which are far too large: they are refused
at once, or the round is repeated without them.
"""

import math
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.logger import log
from torch import Tensor, nn

from gossamer.core import tree, wire
from gossamer.core.channel import Receipt
from gossamer.core.downlink import NEVER as NO_VERSION
from gossamer.core.errors import ConfigError, PayloadError, RunError, require
from gossamer.core.exchange import GLOBAL, Arrival, Outcome
from gossamer.core.jobs import Folding, Outgoing, round_purpose
from gossamer.core.method import Method
from gossamer.core.random import Key, Purpose, secret_key
from gossamer.core.types import State
from gossamer.core.untrusted import shown
from gossamer.core.wire import Body
from gossamer.engines.client import Failure
from gossamer.engines.control import Callback
from gossamer.engines.evaluate import Evaluated
from gossamer.engines.flower import credentials, messages
from gossamer.engines.flower.credentials import read_roster, roster_text
from gossamer.engines.flower.evaluation import NodeEvaluation
from gossamer.engines.flower.fleet import NodePool, NodeReply
from gossamer.engines.flower.journal import NEVER
from gossamer.engines.flower.messages import CheckedReply, Scales, content, word
from gossamer.engines.flower.node import OUT_OF_STEP, PROOF, ROSTER
from gossamer.engines.flower.real_time import RealTime
from gossamer.engines.flower.settings import Settings
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.options import Options
from gossamer.engines.run import PATIENCE, FederatedRun, Stage, Watch
from gossamer.engines.secure import PhaseReplies, PhaseReply
from gossamer.engines.warm_start import Init
from gossamer.parts.privacy.budget import parts_of
from gossamer.parts.secure.primitives import KeyRoster
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import Record, read_about
from gossamer.tasks.data.partition import Split
from gossamer.tasks.precision import check_type, on_cpu
from gossamer.tasks.task import Task

FOLDED = "folded"
"""Entry of the server's copy of a client state: the client's last aggregated round."""

NO_KEYS = (
    "secure aggregation needs the public keys of the nodes, with which they check each other: keys=FOLDER with"
    " node-0.pub and so on (gossamer deploy keys makes them)"
)
"""Why a run with secure aggregation does not start."""

TOO_LATE = "it had not replied at the end of the round"
"""Why a client without a failure does not count as a reply."""

TIMES = ("time", "tasks", "spent_in_vain")
"""The entries of a record under a schedule, which a void attempt has too."""


class FlowerRun(FederatedRun):
    """A run with clients on Flower nodes."""

    def __init__(
        self,
        method: Method,
        task: Task,
        settings: Settings,
        grid: Grid | None,
        request: dict[str, Any] | None = None,
        init: Init | None = None,
        key: Key | None = None,
    ) -> None:
        if method.pooled:
            raise ConfigError("a method that pools all samples cannot be deployed: its clients are separate machines")
        # Who knows the seed knows all that follows from it, and a seed such as 0 is soon guessed.
        secret = None if settings.rehearsal else key or secret_key()
        options = settings.options()
        if parts_of(method.training):  # with differential privacy, no client is excluded because of its updates
            options = replace(options, exclude_after=None)
        super().__init__(method, task, options, request, init, secret)
        check_type(settings.precision, self.objective.layout.dtype)
        self.settings = settings
        self.choice = {"executor": "flower"}
        self.about |= {"id": uuid.uuid4().hex, "name": settings.name, "deployment": asdict(settings), **self.choice}
        self.challenge = secrets.token_hex(16)
        keys = Path(settings.keys) if settings.keys and grid is not None else None
        self.keys = {client: credentials.public_key(keys, client) for client in range(task.clients)} if keys else {}
        signed = self.method.training.secure is None or grid is None or bool(self.keys)
        require((signed, NO_KEYS))
        wanted = messages.fingerprint(method, self.objective)
        self.fleet = NodePool(grid, task.clients, self.hello, wanted, self.identify)
        self.anew: set[int] = set()
        self.renewed: set[int] = set()
        self.void: list[Record] = []
        self.scales, self.last_scales = Scales(), Scales()  # of an exchange, and of each client's last update
        self.left_out: dict[int, str] = {}
        self.evaluation = NodeEvaluation(self)
        schedule = self.options.schedule
        self.dispatcher: RealTime | None = RealTime(self, schedule) if schedule else None
        if self.dispatcher and schedule:
            self.about |= {"slots": self.dispatcher.slots, "refills": schedule.refills}

    @property
    def precision_here(self) -> str:
        """The precision of the nodes as far as any device has it: the server trains nothing, but states memory."""
        return on_cpu(self.options.precision)

    def restore(self, path: Path) -> RunFolder:
        """Load the last checkpoint of a run folder, and keep the run's ID: nodes find their client state by it."""
        folder = super().restore(path)
        self.about["id"] = read_about(path)["id"]
        self.left_out = messages.left_out_of(self.metrics)
        return folder

    @property
    def steady(self) -> bool:
        """No: nodes connect and leave."""
        return False

    @property
    def secure_noise(self) -> bool:
        """Yes: a deployment cannot switch it off."""
        return True

    def run_name(self, number: int) -> str:
        """Return the run's ID, and a digest of what all clients of a round are told."""
        words = self.words(number)
        return f"{words['run']} {messages.told(words, messages.read_keys(words['keys']))}"

    @cached_property
    def roster(self) -> KeyRoster:
        """The public keys of all clients, as nodes get them."""
        return read_roster(roster_text(self.keys))

    def split_of(self, options: Options) -> Split | None:
        """Return nothing: only the nodes know their samples."""
        return None

    def view_state(self, stage: Stage, client: int) -> State | None:
        """Return the server's copy of a client's view state; none if the node starts over."""
        return None if client in self.anew else super().view_state(stage, client)

    def held(self, stage: Stage, client: int) -> int:
        """Return the version of the model that a client has acknowledged; none if the node starts over."""
        return NO_VERSION if client in self.anew else super().held(stage, client)

    # The cohort.

    def hello(self) -> RecordDict:
        """Return the query for new nodes."""
        roster = {ROSTER: roster_text(self.keys)} if self.method.training.secure else {}
        return content({**self.words(0), "challenge": self.challenge, **roster})

    def identify(self, node: int, client: int, message: Message) -> None:
        """Refuse a node that does not have the key of the client that it claims to be, if keys are given."""
        if self.keys:
            claimed = credentials.claim(self.about["id"], self.challenge, node, client)
            credentials.check_proof(self.keys[client], claimed, word(message, PROOF, str))

    def rounds(self, folder: RunFolder | None, watch: Watch, callbacks: Sequence[Callback]) -> None:
        """Wait for the nodes, then run the remaining rounds."""
        if not self.finished:
            wanted = self.dispatcher.slots if self.dispatcher else self.cohort_size
            self.fleet.wait_for_nodes(self.settings.nodes or wanted, self.settings.wait)
        super().rounds(folder, watch, callbacks)

    def available(self) -> Mapping[int, int]:
        """Wait until enough nodes are connected for a round, and return their clients with numbers of samples.

        Under a schedule, these are clients without a task. If tasks are in flight, none is needed.
        """
        needed = _share(self.settings.min_replies, self.cohort_size)
        if self.dispatcher is not None:
            return self.dispatcher.gather(int(not self.dispatcher.flights) if self.mixes else needed)
        self.fleet.wait_for_nodes(needed, self.settings.wait)
        return self.claims()

    def claims(self) -> Mapping[int, int]:
        """Return the numbers of samples of all connected clients, also of those that have a task."""
        return {client: peer.samples for client, peer in self.fleet.peers.items()}

    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Do nothing: nodes prepare themselves."""

    def close(self) -> None:
        """Do nothing: the server holds no resources."""

    # A round.

    def round(self, number: int, folder: RunFolder | None, callbacks: Sequence[Callback] = ()) -> Record:
        """Repeat a round until it counts, at most ``PATIENCE`` times."""
        self.void = []
        while len(self.void) < PATIENCE:
            try:
                return super().round(number, folder, callbacks)
            except VoidError as problem:
                log(WARNING, "round %s does not count: %s", number + 1, problem)
        last = self.void[-1]["reason"]
        raise RunError(f"round {number + 1} was void {PATIENCE} times: {last}")

    def train(self, number: int, ledger: Ledger) -> list[int]:
        """Run all exchanges of a round and return the cohort; record void attempts."""
        down, up = self.fleet.bytes_down, self.fleet.bytes_up
        self.renewed = set()
        try:
            cohort = super().train(number, ledger)
        except VoidError as problem:
            self.left_out |= problem.left_out
            spent = {"bytes_up": dict(ledger.up), "bytes_down": dict(ledger.down)}
            times = {name: ledger.notes[name] for name in TIMES if name in ledger.notes}
            without = {messages.LEFT_OUT: messages.named(problem.left_out)}
            self.void.append({"reason": str(problem), **spent, **without, **times})
            raise
        self.anew -= self.renewed
        sent = {"down": sum(ledger.down.values()), "up": sum(ledger.up.values())}
        moved = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        ledger.notes["void"] = self.void
        for failure in ledger.failures:
            failure["node"] = self.fleet.name(failure["client"])
        ledger.notes["bytes_flower"] = {way: moved[way] - sent[way] for way in sent}
        return cohort

    def check_exchange(self, stage: Stage, after: State) -> None:
        """Raise ``VoidError`` if too few clients replied, an update is out of scale, or the model is not finite."""
        if stage.exchange.secure is not None:  # a round whose sum is known is not repeated, see gossamer.engines.secure
            if stage.outcomes and not any(outcome.folded for outcome in stage.outcomes):
                raise VoidError(next((each.reason for each in stage.outcomes if each.reason), TOO_LATE))
            super().check_exchange(stage, after)
            return
        # With differential privacy, no client is left out because of its update, which the noise would not cover.
        if not self.mixes and self.privacy is None and (far := self.scales.far()):
            raise VoidError(f"{self._named(far)}; the round is repeated without it", far)
        if not self.mixes:  # a schedule that mixes versions waits for nobody
            missing = {each.client: each.reason or TOO_LATE for each in stage.outcomes if each.reason or each.silent}
            count = len(stage.assigned)
            wanted = count if self.dispatcher is None else min(count, self.cohort_size)
            replied, needed = count - len(missing), _share(self.settings.min_replies, wanted)
            if replied < needed:
                why = "; ".join(f"client {client}: {reason}" for client, reason in missing.items())
                raise VoidError(f"{replied} of {count} clients replied, {needed} are needed ({why})")
        if not all(tree.finite(model) for model in stage.exchange.server.download(after, GLOBAL).models):
            largest = self.scales.largest()
            raise VoidError(f"the aggregated model is not finite; {self._named(largest)}", largest)

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Send tasks, and take replies as they arrive until the deadline."""
        self.scales = Scales()
        if self.dispatcher is not None:
            self.dispatcher.exchange(stage, ledger, inbox)
            return
        with ledger.time("download"):
            common, more = dict[int, Body | None](), {"exchange": stage.exchange.number}
            contents = {client: self.client_task(stage, client, common, ledger, **more) for client in stage.active}
        for client, reply in self.fleet.ask(MessageType.TRAIN, contents, self.settings.deadline):
            with ledger.time("receive"):
                checked = self.check_task(stage, client, reply, self.fleet.peers[client].samples)
                checked.note(client, ledger)
                inbox.put(client, checked.reply)

    def ask_phase(
        self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger, *, evaluating: bool = False
    ) -> PhaseReplies:
        """Send the requests to the nodes, and take answers as they arrive until the deadline."""
        more: dict[str, Any] = {"phase": phase, messages.EVALUATING: evaluating}
        words = {client: self.words(stage.number, client, **more) for client in requests}
        contents = {client: content(words[client], bytes(sent.data)) for client, sent in requests.items()}
        for sent in requests.values():
            ledger.down.update(sent.kinds)
        for client, reply in self.fleet.ask(messages.PHASE, contents, self.settings.deadline):
            try:
                frame = messages.answer_of(self.check_reply(stage.number, reply))
                kinds = stage.exchange.envelope.kinds("up", wire.read_sizes(frame))
                ledger.answer(client, kinds, Receipt(delivered=True))
                answer = PhaseReply(client, frame)
            except Exception as error:  # any error refuses the reply, and the round continues
                ledger.up["refused"] += reply.nbytes
                failure = Failure(shown(Failure.of(error).reason), error)
                answer = PhaseReply(client, failure=failure, silent=reply.message is None)
            yield answer

    def check_uploads(self, stage: Stage, uploads: int) -> None:
        """Raise ``VoidError`` if too few clients sent an upload: the round is then repeated, and no sum is known."""
        count = len(stage.assigned)
        if uploads < (needed := _share(self.settings.min_replies, count)):
            raise VoidError(f"{uploads} of {count} clients sent an upload, {needed} are needed")

    def admit(self, stage: Stage, arrival: Arrival, update: Tensor | None) -> None:
        """Refuse an update that is far too large for its model, or whose client is left out."""
        update = stage.exchange.update(arrival) if update is None else update
        if self.mixes:
            self.last_scales.note(arrival, update)
            self.last_scales.refuse_far(arrival.client)
        self.scales.note(arrival, update)

    def finish(self, stage: Stage, acc: Folding) -> State:
        """Aggregate. If that fails, the round is void, and is repeated without the largest update."""
        try:
            return super().finish(stage, acc)
        except Exception as error:
            if stage.exchange.secure is not None:
                raise
            largest = self.scales.far() or self.scales.largest()
            text = f"the aggregation failed: {shown(str(Failure.of(error).reason))}; {self._named(largest)}"
            raise VoidError(text, largest) from error

    def fold_reply(
        self, stage: Stage, client: int, reply: ClientReply, acc: Folding, ledger: Ledger
    ) -> tuple[Folding, Outcome]:
        """Fold a reply. The bytes of a refused upload count as refused, whatever its arrays are called."""
        acc, outcome = super().fold_reply(stage, client, reply, acc, ledger)
        if reply.data is not None and not outcome.folded:
            ledger.refuse(stage.exchange.envelope.kinds("up", wire.read_sizes(reply.data)))
        return acc, outcome

    def _named(self, clients: Mapping[int, str]) -> str:
        """Return clients with their nodes and what is wrong, for a reason."""
        return "; ".join(f"client {client} (node {self.fleet.name(client)}) {why}" for client, why in clients.items())

    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Stage a client's last aggregated round and its view state; the node keeps the rest of the client state."""
        done = reply.failure is None and not reply.silent
        if arrived or (done and not stage.exchange.shared):
            view = {"view": known} if known else {}
            self.clients.stage(client, {FOLDED: torch.tensor(stage.number), **view})
            self.renewed.add(client)

    def client_module(self, client: int) -> nn.Module:
        """Raise: a deployed client's model is on its own machine."""
        raise RunError(f"the run was deployed: the model of client {client} is on its machine")

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None], ledger: Ledger | None, **more: Any
    ) -> RecordDict:
        """Return the message content of a client. ``common`` keeps what the clients of the stage share."""
        sent, clock = self.download(stage, client, common), self.clock(stage.number, client)
        if ledger is not None:
            ledger.down.update(sent.kinds)
        purposes = [*stage.exchange.purposes(stage.server or self.server, clock, self.held(stage, client))]
        if self.method.tune is not None:
            purposes.append((*round_purpose(stage.number), "tune", "client", client))
        return content(self.words(stage.number, client, purposes, **more), bytes(sent.data))

    def purposes(self, client: int | None) -> Iterator[Purpose]:
        """Yield the purposes of the run's key that a client needs for every message.

        They belong to the initial model, and to what parts draw once for the whole run.
        """
        yield from (("model",), ("form",), ("settle",))
        for exchange in (*self.method.exchanges, *([self.method.probe] if self.method.probe else ())):
            yield from exchange.solver.purposes()
            yield from exchange.view.purposes(client) if client is not None else ()

    def words(
        self, number: int, client: int | None = None, purposes: Iterable[Purpose] = (), **more: Any
    ) -> dict[str, Any]:
        """Return the named values of every message: run, round, and the client's last aggregated round.

        ``purposes`` are those of the run's key that the client needs for this message, beside those of ``purposes``.
        """
        anew = client in self.anew
        alike = self.method.training.shared_purposes(number) if self.method.training.secure else ()
        known = NEVER if client is None or anew else int(self.clients.get(client).get(FOLDED, NEVER))
        return {
            "run": self.about["id"],
            "round": number,
            "rounds": self.options_of(number).rounds,
            "keys": messages.keys_text(self.key, dict.fromkeys([*self.purposes(client), *alike, *purposes])),
            "precision": self.options.precision,
            "checkpointing": self.options.checkpointing,
            "known": known,
            "anew": anew,
            **more,
        }

    def check_task(self, stage: Stage, client: int, reply: NodeReply, samples: int) -> CheckedReply:
        """Check the reply to a task of a stage. ``samples`` is the client's number of samples."""
        try:
            message = self.check_reply(stage.number, reply)
            if client in self.left_out:
                raise PayloadError(f"left out: it {self.left_out[client]}")
            return messages.checked(stage, message, samples, self.about["parameters"])
        except Exception as error:  # any error refuses the reply, and the run continues
            if reply.flag(OUT_OF_STEP):
                self.anew.add(client)
            failure = Failure(shown(Failure.of(error).reason), error)
            return CheckedReply(ClientReply(failure=failure, silent=reply.message is None), refused=reply.nbytes)

    def check_reply(self, number: int, reply: NodeReply) -> Message:
        """Return a reply's message, if it belongs to this run and round."""
        message = reply.checked()
        for name, wanted in (("run", self.about["id"]), ("round", number)):
            if (got := word(message, name, type(wanted))) != wanted:
                other = f"refused: the reply is for another {name}: expected {wanted}, got {shown(str(got))}"
                raise PayloadError(other)
        return message

    # Evaluation.

    def evaluate_round(self, number: int, ledger: Ledger) -> Evaluated:
        """Evaluate the global model on the server's test samples, if any, and let clients evaluate their models."""
        return self.evaluation.round(number, ledger)


class VoidError(RunError):
    """A round that does not count: too few clients replied, an update is out of scale, or the aggregation failed.

    Args:
        problem: the reason
        left_out: clients to leave out of the rest of the run, each with the reason
    """

    def __init__(self, problem: str, left_out: Mapping[int, str] | None = None) -> None:
        super().__init__(problem)
        self.left_out = dict(left_out or {})


def _share(share: float, clients: int) -> int:
    """Return the minimum number of clients for a fraction; rounding errors of the product do not count."""
    return math.ceil(round(share * clients, 9))
