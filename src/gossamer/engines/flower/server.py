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
from functools import cached_property, partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.logger import log
from flwr.superlink.grid import http_grid
from torch import Tensor, nn

from gossamer.core import tree, wire
from gossamer.core.bound import BoundExchange
from gossamer.core.channel import Receipt
from gossamer.core.downlink import NEVER as NO_VERSION
from gossamer.core.errors import ConfigError, PayloadError, RunError, require
from gossamer.core.exchange import GLOBAL, Arrival, Outcome
from gossamer.core.jobs import Folding, Outgoing, round_purpose
from gossamer.core.method import Method
from gossamer.core.random import Key, Purpose, secret_key
from gossamer.core.schedule import Schedule
from gossamer.core.solver import ForwardSolver
from gossamer.core.types import State
from gossamer.core.untrusted import shown
from gossamer.core.wire import Body
from gossamer.engines.client import Failure
from gossamer.engines.control import Callback, Callbacks
from gossamer.engines.evaluate import Evaluated, Evaluator, evaluation_exchange, figures
from gossamer.engines.flower import identity
from gossamer.engines.flower.fleet import NodePool, NodeReply
from gossamer.engines.flower.journal import NEVER
from gossamer.engines.flower.messages import (
    EVALUATING,
    PHASE,
    content,
    fingerprint,
    keys_text,
    metric_words,
    read_keys,
    told,
    word,
)
from gossamer.engines.flower.node import OUT_OF_STEP, PROOF, ROSTER
from gossamer.engines.flower.real_time import RealTime
from gossamer.engines.flower.replies import CheckedReply, answer_of, checked
from gossamer.engines.flower.roster import read_roster, roster_text
from gossamer.engines.flower.scales import LEFT_OUT, Scales, left_out_of, named
from gossamer.engines.flower.secure_metrics import EvaluatingHost, MetricSum
from gossamer.engines.flower.settings import Settings
from gossamer.engines.flower.supernode import known_release, shorten_pulls
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.kept_run import kept_key
from gossamer.engines.metric_sums import means_of
from gossamer.engines.metrics import Ledger
from gossamer.engines.options import Options
from gossamer.engines.result import Result
from gossamer.engines.run import PATIENCE, FederatedRun, Stage, Watch
from gossamer.engines.secure import PhaseReplies, PhaseReply, SecureExchange
from gossamer.engines.warm_start import Init
from gossamer.parts.privacy.budget import parts_of
from gossamer.parts.secure.primitives import KeyRoster
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import Record, read_about
from gossamer.runs.report.anomalies import anomalies_of, rows
from gossamer.runs.report.evaluation import EVALUATION
from gossamer.runs.report.scores import Score, primary
from gossamer.runs.report.secure import LIARS
from gossamer.runs.trackers.tracking import Track, Tracking
from gossamer.tasks.data.partition import Split
from gossamer.tasks.losses import loss_name
from gossamer.tasks.precision import check_type, on_cpu
from gossamer.tasks.task import AnyTask, Task, task_at

FOLDED = "folded"
"""Entry of the server's copy of a client state: the client's last aggregated round."""

NO_KEYS = (
    "secure aggregation needs the public keys of the nodes, with which they check each other: keys=FOLDER with"
    " node-0.pub and so on (gossamer deploy keys makes them)"
)
"""Why a run with secure aggregation does not start."""

TOO_LATE = "it had not replied at the end of the round"
"""Why a client without a failure does not count as a reply."""

SUMS_ALONE = "sums of clients: secure aggregation hides the metrics of single ones"
"""Where the metrics come from under secure aggregation."""

NO_CLIENT = "by the server alone: clients whose updates are hidden send no metrics"
"""Why there are no metrics of clients."""

TIMES = ("time", "tasks", "spent_in_vain")
"""The entries of a record under a schedule, which a void attempt has too."""


def server_app(
    method: Method,
    task: AnyTask,
    rounds: int = 30,
    callbacks: Callbacks = (),
    track: Track = None,
    **settings: Any,
) -> ServerApp:
    """Return the Flower app for the server.

    ``callbacks`` and ``track`` are those of ``simulate``; ``settings`` are fields of ``Settings``. The entry ``track``
    of a run's configuration replaces the argument.

    ``task`` is a ``Task`` or a function that returns one. The function takes no argument, ``None`` (the server is not a
    client), or ``None`` and the run's configuration (a dictionary).
    """
    defaults = Settings(rounds=rounds, **settings)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        if known_release():
            shorten_pulls(http_grid)
        chosen = defaults.given(context.run_config)
        key = kept_key(Path(chosen.out).expanduser().absolute()) if chosen.resume else None
        task_here, init = task_at(task, None, context.run_config), initial_weights(chosen)
        run = FlowerRun(method, task_here, chosen, grid, init=init, key=key)
        serve(run, callbacks, chosen.track or track)

    return app


def initial_weights(settings: Settings) -> Init | None:
    """Return the initial weights of a deployment: those that a resumed run keeps, or those of its settings."""
    if settings.resume:
        return Init.kept(Path(settings.out).expanduser().absolute())
    return Init.of(Path(settings.init).expanduser()) if settings.init else None


def serve(run: "FlowerRun", callbacks: Callbacks = (), track: Track = None) -> Result:
    """Run all remaining rounds of a deployed run."""
    path = Path(run.settings.out).expanduser().absolute()
    run.tracking = Tracking.started(track, path if run.settings.resume else None, partial(log, WARNING))
    folder = run.restore(path) if run.settings.resume else run.create(path)
    for warning in folder.warnings:
        log(WARNING, warning)
    try:
        return run.run(folder, partial(_log_round, primary(run.about)), callbacks)
    finally:
        folder.close()


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
        super().__init__(method, task, _options(settings, method), request, init, secret)
        check_type(settings.precision, self.objective.layout.dtype)
        self.settings = settings
        self.choice = {"executor": "flower"}
        self.about |= {"id": uuid.uuid4().hex, "name": settings.name, "deployment": asdict(settings), **self.choice}
        self.challenge = secrets.token_hex(16)
        keys = Path(settings.keys) if settings.keys and grid is not None else None
        self.keys = {client: identity.public_key(keys, client) for client in range(task.clients)} if keys else {}
        signed = self.method.training.secure is None or grid is None or bool(self.keys)
        require((signed, NO_KEYS))
        wanted = fingerprint(method, self.objective)
        self.fleet = NodePool(grid, task.clients, self.hello, wanted, self.identify)
        self.anew: set[int] = set()
        self.renewed: set[int] = set()
        self.void: list[Record] = []
        self.scales, self.last_scales = Scales(), Scales()  # of an exchange, and of each client's last update
        self.left_out: dict[int, str] = {}
        self.dispatcher: RealTime | None = self._real_time(self.options.schedule) if self.options.schedule else None

    def _real_time(self, schedule: Schedule) -> RealTime:
        """Return the clock of a schedule."""
        made = RealTime(self, schedule)
        self.about |= {"slots": made.slots, "refills": schedule.refills}
        return made

    @property
    def precision_here(self) -> str:
        """The precision of the nodes as far as any device has it: the server trains nothing, but states memory."""
        return on_cpu(self.options.precision)

    def restore(self, path: Path) -> RunFolder:
        """Load the last checkpoint of a run folder, and keep the run's ID: nodes find their client state by it."""
        folder = super().restore(path)
        self.about["id"] = read_about(path)["id"]
        self.left_out = left_out_of(self.metrics)
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
        return f"{words['run']} {told(words, read_keys(words['keys']))}"

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
            claimed = identity.claim(self.about["id"], self.challenge, node, client)
            identity.check_proof(self.keys[client], claimed, word(message, PROOF, str))

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
            self.void.append({"reason": str(problem), **spent, LEFT_OUT: named(problem.left_out), **times})
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
        self._check_replies(stage)
        if not all(tree.finite(model) for model in stage.exchange.server.download(after, GLOBAL).models):
            largest = self.scales.largest()
            raise VoidError(f"the aggregated model is not finite; {self._named(largest)}", largest)

    def _check_replies(self, stage: Stage) -> None:
        """Raise ``VoidError`` if too few clients replied, of those that the round wants."""
        if self.mixes:
            return
        missing = {each.client: each.reason or TOO_LATE for each in stage.outcomes if each.reason or each.silent}
        count = len(stage.assigned)
        wanted = count if self.dispatcher is None else min(count, self.cohort_size)
        replied, needed = count - len(missing), _share(self.settings.min_replies, wanted)
        if replied < needed:
            why = "; ".join(f"client {client}: {reason}" for client, reason in missing.items())
            raise VoidError(f"{replied} of {count} clients replied, {needed} are needed ({why})")

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Send tasks, and take replies as they arrive until the deadline."""
        self.scales = Scales()
        if self.dispatcher is not None:
            self.dispatcher.exchange(stage, ledger, inbox)
            return
        with ledger.time("download"):
            client_tasks = self.client_tasks(stage, stage.active, ledger, exchange=stage.exchange.number)
        for client, reply in self.fleet.ask(MessageType.TRAIN, client_tasks, self.settings.deadline):
            with ledger.time("receive"):
                inbox.put(client, self.accept(stage, client, reply, ledger))

    def ask_phase(
        self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger, *, evaluating: bool = False
    ) -> PhaseReplies:
        """Send the requests to the nodes, and take answers as they arrive until the deadline."""
        more: dict[str, Any] = {"phase": phase, EVALUATING: evaluating}
        words = {client: self.words(stage.number, client, **more) for client in requests}
        contents = {client: content(words[client], bytes(sent.data)) for client, sent in requests.items()}
        for sent in requests.values():
            ledger.down.update(sent.kinds)
        for client, reply in self.fleet.ask(PHASE, contents, self.settings.deadline):
            yield self._phase_reply(stage, client, reply, ledger)

    def _phase_reply(self, stage: Stage, client: int, reply: NodeReply, ledger: Ledger) -> PhaseReply:
        """Check the reply of a node in a phase, and record its bytes."""
        try:
            frame = answer_of(self.check_reply(stage.number, reply))
            ledger.answer(client, stage.exchange.envelope.kinds("up", wire.read_sizes(frame)), Receipt(delivered=True))
            return PhaseReply(client, frame)
        except Exception as error:  # any error refuses the reply, and the round continues
            ledger.up["refused"] += reply.nbytes
            failure = Failure(shown(Failure.of(error).reason), error)
            return PhaseReply(client, failure=failure, silent=reply.message is None)

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

    def client_tasks(
        self, stage: Stage, clients: Sequence[int], ledger: Ledger | None, **more: Any
    ) -> dict[int, RecordDict]:
        """Return the message content of each client."""
        common: dict[int, Body | None] = {}
        return {client: self.client_task(stage, client, common, ledger, **more) for client in clients}

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
            yield from exchange.solver.purposes() if isinstance(exchange.solver, ForwardSolver) else ()
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
            "keys": keys_text(self.key, dict.fromkeys([*self.purposes(client), *alike, *purposes])),
            "precision": self.options.precision,
            "checkpointing": self.options.checkpointing,
            "known": known,
            "anew": anew,
            **more,
        }

    def accept(self, stage: Stage, client: int, reply: NodeReply, ledger: Ledger) -> ClientReply:
        """Check a reply, record what it cost, and return its upload, or the reason why it is refused."""
        checked = self.check_task(stage, client, reply, self.fleet.peers[client].samples)
        checked.note(client, ledger)
        return checked.reply

    def check_task(self, stage: Stage, client: int, reply: NodeReply, samples: int) -> CheckedReply:
        """Check the reply to a task of a stage. ``samples`` is the client's number of samples."""
        try:
            message = self.check_reply(stage.number, reply)
            if client in self.left_out:
                raise PayloadError(f"left out: it {self.left_out[client]}")
            return checked(stage, message, samples, self.about["parameters"])
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
                raise PayloadError(
                    f"refused: the reply is for another {name}: expected {wanted}, got {shown(str(got))}"
                )
        return message

    # Evaluation.

    def evaluate_round(self, number: int, ledger: Ledger) -> Evaluated:
        """Evaluate the global model on the server's test samples, if any, and let clients evaluate their models."""
        models = self.method.global_models(self.server)
        here = self._evaluator if self.method.shared and len(models) == 1 and len(self.task.data.test) else None
        if self.method.training.secure is not None:
            return self._secure_metrics(number, here, ledger)
        if self.method.training.hides:  # metrics of single clients would say what their updates may not
            ledger.measure({EVALUATION: NO_CLIENT})
            return (
                dict(zip(("loss", *self.objective.metrics), here.whole(self.deployed()), strict=True)) if here else {}
            )
        found = self._client_metrics(number, here is None and len(models) == 1, ledger)
        own, everything = metric_words(self.objective.metrics)
        mine = {client: tuple(words[name] for name in own[1:]) for client, words in found.items()}
        if len(models) > 1:
            whole = [_mean(found.values(), name, "tested") for name in own]
        else:
            whole = list(here.whole(self.deployed())) if here else [_mean(found.values(), name) for name in everything]
        return figures(self.task.metrics, whole, mine, self.task.clients)

    def _secure_metrics(self, number: int, here: Evaluator | None, ledger: Ledger) -> Evaluated:
        """Return means of the clients' metrics from a secure sum, and the server's own metrics of the global model."""
        secure, busy = self.method.training.secure, {*(self.dispatcher.busy if self.dispatcher else ()), *self.anew}
        assert secure is not None
        down, up = self.fleet.bytes_down, self.fleet.bytes_up
        asked = [c for c, peer in sorted(self.fleet.peers.items()) if peer.tested and c not in busy]
        asked = [client for client in asked if client not in self.excluded]
        sums, costs, problem = MetricSum(self, secure, len(asked)), Ledger(), ""
        stage = Stage(self.method.training, number, dict.fromkeys(asked, GLOBAL))
        try:
            secure.protocol.check_cohort(len(asked))
            costs.begin()
            SecureExchange(EvaluatingHost(self, sums), stage, sums, costs).run(Folding(None, None))
            problem = costs.figures["secure"].get("refused", "")
        except ConfigError as error:
            problem = str(error)
        found = means_of(self.task, sums.total, sums.limit, len(asked)) if sums.total is not None else Evaluated()
        if here is not None:
            found |= dict(zip(("loss", *self.objective.metrics), here.whole(self.deployed()), strict=True))
        summed = costs.figures["secure"]["summed"] if sums.total is not None else 0
        if self.liars and "secure" in ledger.figures:  # named in this evaluation, after the figures of the round
            named = {str(client): why for client, why in self.liars.items()}
            known = ledger.figures["secure"].get(LIARS, {})
            ledger.measure({"secure": {**ledger.figures["secure"], LIARS: {**known, **named}}})
        ledger.measure({EVALUATION: f"{SUMS_ALONE}: {problem or f'of {summed} clients in this round'}"})
        ledger.notes["evaluation_failures"] = costs.failures
        ledger.notes["bytes_evaluation"] = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        return found

    def plain_evaluation(self, stage: Stage) -> Stage:
        """Return the stage in which the clients of another one receive the models that they evaluate."""
        return Stage(self._evaluation, stage.number, {client: self.method.home(client) for client in stage.assigned})

    @cached_property
    def _evaluation(self) -> BoundExchange:
        return evaluation_exchange(self.method)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.objective)

    def _client_metrics(self, number: int, everything: bool, ledger: Ledger) -> dict[int, dict[str, float]]:
        """Return the evaluations of all connected clients with test samples, in client order.

        Nodes that train are not asked: they have one message at a time.
        """
        down, up = self.fleet.bytes_down, self.fleet.bytes_up
        peers = [c for c, peer in sorted(self.fleet.peers.items()) if peer.tested or (everything and peer.test)]
        own, whole = metric_words(self.objective.metrics)
        found, failed, names = dict[int, dict[str, float]](), [], [*own, *(whole if everything else ())]
        busy = self.dispatcher.busy if self.dispatcher else ()
        known = [client for client in peers if client not in self.anew and client not in busy]
        stage = Stage(self._evaluation, number, {client: self.method.home(client) for client in known})
        client_tasks = self.client_tasks(stage, known, None, whole=everything)
        for client, reply in self.fleet.ask(MessageType.EVALUATE, client_tasks, self.settings.deadline):
            try:
                message = self.check_reply(number, reply)
                values = {name: self._checked(word(message, name, float), name) for name in names}
                found[client] = {**values, "tested": self.fleet.peers[client].tested}
            except PayloadError as error:
                failed.append({"client": client, "node": self.fleet.name(client), "reason": shown(str(error))})
        ledger.notes["evaluation_failures"] = failed
        ledger.notes["bytes_evaluation"] = {"down": self.fleet.bytes_down - down, "up": self.fleet.bytes_up - up}
        return dict(sorted(found.items()))

    def _checked(self, value: float, name: str) -> float:
        """Check a value of a node's evaluation; a client without own test samples has NaN."""
        known = dict(zip(("own", *self.objective.metrics), (self.task.metrics[0], *self.task.metrics), strict=True))
        metric = known.get(name) or known.get(name.removeprefix("own_"))
        if metric is None:
            low, top = 0.0 if loss_name(self.task.loss) else -math.inf, math.inf
        elif metric.format == "percent":
            low, top = 0.0, 1.0
        else:
            return value  # it may be undefined or infinite: the client then counts in no mean
        if not (low <= value <= top and abs(value) < math.inf) and not (name.startswith("own") and math.isnan(value)):
            raise PayloadError(f"refused: {name} must be in [{low:g}, {top:g}], got {value}")
        return value


def _options(settings: Settings, method: Method) -> Options:
    """Return the options of a run. With differential privacy, no client is excluded because of its updates."""
    options = settings.options()
    return replace(options, exclude_after=None) if parts_of(method.training) else options


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


def _mean(found: Iterable[Mapping[str, float]], name: str, weight: str = "") -> float:
    """Return the mean of a metric over clients, weighted equally or by another metric."""
    terms = [(words[name], words[weight] if weight else 1.0) for words in found if math.isfinite(words[name])]
    return sum(value * count for value, count in terms) / sum(count for _, count in terms) if terms else math.nan


def _log_round(score: Score, record: Record) -> None:
    value = record.get(score.name)
    shown = f", {score.words} {score.write(value)}" if value is not None else ""
    log(INFO, "round %s: %s clients%s", record["round"], len(record["clients"]), shown)
    for failure in record["failures"]:
        who = f"client {failure['client']} (node {failure['node']})"
        log(WARNING, "round %s: %s: %s", record["round"], who, failure["reason"])
    for mine in anomalies_of([record]):
        log(WARNING, "round %s: client %s is far from the cohort: %s", record["round"], *rows([mine])[0][::2])
