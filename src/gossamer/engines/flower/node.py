"""A Flower node: one client of the method on its own machine.

A process may handle one message (``flower-supernode``) or all messages of a run (``gossamer deploy node``). So the
client state is in the journal, and data is read once per process. A node handles three types of messages: query (its
client number and sample counts), train, and evaluate. It sends the method's message and a few numbers, never a sample.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.supercore.logger import log
from torch import Tensor

from gossamer.core import secure, wire
from gossamer.core.errors import ConfigError, PayloadError, RunError
from gossamer.core.jobs import SILENT, Outgoing, round_key
from gossamer.core.method import Method
from gossamer.core.random import Key, KeyRing, Purpose
from gossamer.core.secure_exchange import SCRATCH, SUM, digest_of, without_scratch
from gossamer.core.types import Clock, Flops, Params, State
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure, TaskOutcome, reason
from gossamer.engines.evaluate import Evaluator, evaluation_exchange
from gossamer.engines.executors.base import threads
from gossamer.engines.flower import credentials
from gossamer.engines.flower.credentials import PINNED, pinned
from gossamer.engines.flower.journal import Journal, JournalEntry, OutOfStepError
from gossamer.engines.flower.messages import (
    ARRAYS,
    EVALUATING,
    FIGURE,
    LIMIT,
    REQUEST,
    content,
    data,
    fingerprint,
    metric_words,
    read_keys,
    told,
    word,
)
from gossamer.engines.metric_sums import BITS, metric_numbers, metric_segments
from gossamer.engines.warm_start import Init
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.primitives import KeyRoster, signer
from gossamer.tasks.objective import Objective
from gossamer.tasks.precision import FLOAT32, products
from gossamer.tasks.task import AnyTask, Task, task_at

Words = dict[str, Any]
Ask = Callable[["Member", Message], tuple[Words, bytes]]

FAULT, OUT_OF_STEP, PROOF = "fault", "out_of_step", "proof"
"""Names of values in a reply: the reason of a failure, whether the client state caused it, the proof of a number."""

UNSAID = "it could not train: the log of the node says why, and a message would say something about its samples"
"""What a server hears of an error in training, if the updates of nodes are hidden."""

ROSTER = "roster"
"""The name of the roster in the query of a server with secure aggregation."""


class Node:
    """Handles messages; tasks are cached for the life of the process."""

    def __init__(self, method: Method, task: AnyTask) -> None:
        self.method, self.task = method, task
        self._members: dict[tuple[int, str, str, str, bool, str], Member] = {}

    def handler(self, ask: Ask) -> Callable[[Message, Context], Message]:
        """Return a function for Flower to call; it reports every failure with a reason."""

        def handle(message: Message, context: Context) -> Message:
            try:
                member = self.member(message, context)
                with threads(1), products(FLOAT32, member.objective.device):  # training sets its own precision
                    words, sent = ask(member, message)
                    records = content(words, sent)
            except Exception as error:
                fault = {FAULT: self._said(error, message), OUT_OF_STEP: isinstance(error, OutOfStepError)}
                records = content(fault | _echo(message))
            return Message(records, reply_to=message)

        return handle

    def _said(self, error: Exception, message: Message) -> str:
        """Return what the server hears about an error: nothing about samples, if the updates of nodes are hidden."""
        exchange, private = self.method.training, self.method.codec.private
        about_protocol = isinstance(error, PayloadError | ConfigError | OutOfStepError)
        if about_protocol or not (exchange.secure is not None or private):
            return reason(error)
        log(WARNING, "round %s: %s", word(message, "round", int) + 1, reason(error))
        return UNSAID

    def member(self, message: Message, context: Context) -> "Member":
        """Return this node's client in the run of a message."""
        client, run = client_number(context.node_config), word(message, "run", str)
        keys = read_keys(word(message, "keys", str))
        device, precision = str(context.node_config.get("device", "cpu")), word(message, "precision", str)
        checkpointing, init = word(message, "checkpointing", bool), str(context.node_config.get("init", ""))
        known = client, run, device, precision, checkpointing, init
        if known not in self._members:
            task = task_at(self.task, client, context.node_config)
            if init:
                task = Init.of(Path(init).expanduser()).applied(task)
            self._members[known] = Member(self.method, task, client, keys, device, precision, checkpointing)
        member = self._members[known]
        member.know(keys)
        member.home, member.node = state_folder(context.node_config), context.node_id
        member.secret, member.own_roster = (_path(context.node_config, name) for name in ("key", "roster"))
        member.demand(context.node_config.get("min-clients"))
        return member

    def hello(self, member: "Member", message: Message) -> tuple[Words, bytes]:
        """Report the client number, with a proof if this node has a key, and the sample counts."""
        if member.bound.training.secure is not None:
            member.pin(word(message, ROSTER, str))
        return {**_echo(message), **member.describe(), **member.proof(message)}, b""

    def train(self, member: "Member", message: Message) -> tuple[Words, bytes]:
        """Train and return the upload."""
        result = member.train(message)
        training = member.bound.training
        if training.hides or training.solver.uses == "samples":  # a loss has no noise
            result = result._replace(loss=math.nan)
        if training.hides:  # nor have metrics of the codec, and operations, which follow from the number of samples
            result = result._replace(flops=Flops(0, 0), sent=result.sent._replace(figures={}))
        work = {"flops": result.flops.done, "useful": result.flops.useful}
        words = {**_echo(message), "loss": result.loss, **work, **result.delivery._asdict()}
        words |= {f"{FIGURE}{name}": value for name, value in result.sent.figures.items()}
        return words, bytes(result.sent.data)

    def answer(self, member: "Member", message: Message) -> tuple[Words, bytes]:
        """Answer in a phase of secure aggregation."""
        return _echo(message), member.answer(message)

    def evaluate(self, member: "Member", message: Message) -> tuple[Words, bytes]:
        """Evaluate the client's deployed model on its own test samples; under secure aggregation, mask the result."""
        if member.bound.training.secure is not None:
            return _echo(message), member.evaluate_masked(message)
        return {**_echo(message), **member.evaluate(message)}, b""


class Member:
    """One client, with its samples on its device."""

    def __init__(
        self,
        method: Method,
        task: Task,
        client: int,
        keys: Mapping[Purpose, Key],
        device: str,
        precision: str = FLOAT32,
        checkpointing: bool = False,
    ) -> None:
        if not 0 <= client < task.clients:
            raise ConfigError(f"partition-id is {client}, but the task has {task.clients} clients, numbered from 0")
        self.method, self.task, self.number = method, task.adapted(method.adapter), client
        self.key = KeyRing(dict(keys))
        # What leaves this machine is real: nobody can switch the noise of the operating system off, nor can the server.
        self.objective = Objective(self.task, device, self.key, precision, checkpointing, secure_noise=True)
        self.objective.check(self.objective.initial())  # labels beyond the outputs would end a GPU's process
        bound = method.bind(self.objective)
        exchanges = [*bound.exchanges, *([bound.probe] if bound.probe else [])]
        self.clients = {each.number: Client(bound, self.objective, each) for each in exchanges}
        self.bound, self.client = bound, self.clients[bound.training.number]
        self.home, self.node = Path(), 0
        self.secret: Path | None = None
        self.own_roster: Path | None = None
        self._roster: KeyRoster | None = None

    def know(self, keys: Mapping[Purpose, Key]) -> None:
        """Replace the keys that this client was given: each message has those that it needs."""
        self.key.granted.clear()
        self.key.granted.update(keys)

    def describe(self) -> Words:
        """Return what the server must know about this client."""
        return {
            "client": self.number,
            "samples": self._stated(len(self.task.split.train(self.number))),
            "tested": self._stated(len(self.task.split.test(self.number))),
            "test": self._stated(len(self.task.data.test)),
            **fingerprint(self.method, self.objective),
        }

    def _stated(self, samples: int) -> int:
        """Return a number of samples as the server may know it: only whether there are some, if updates are hidden."""
        return min(samples, 1) if self.bound.training.hides else samples

    def proof(self, message: Message) -> Words:
        """Return the proof that this node is the client it claims to be; nothing without a key."""
        if self.secret is None:
            return {}
        claimed = credentials.claim(word(message, "run", str), word(message, "challenge", str), self.node, self.number)
        return {PROOF: credentials.prove(self.secret, claimed)}

    def demand(self, fewest: Any) -> None:
        """Refuse smaller cohorts under secure aggregation than the node's settings allow."""
        protected = self.bound.training.secure
        if protected is None or fewest is None:
            return
        if not isinstance(protected.protocol, SecAgg) or type(fewest) is not int:
            raise ConfigError(f"min-clients in --node-config must be a whole number, for SecAgg, got {fewest!r}")
        protected.protocol = replace(protected.protocol, min_clients=max(fewest, protected.protocol.min_clients))

    def pin(self, sent: str) -> None:
        """Trust the roster of a server, if it is the one that this node knows; the node's own key must be on it."""
        self._roster = pinned(sent, self.home, self.own_roster)
        member, probe = self._signing(b"roster"), b"gossamer: is this key on the roster?"
        if not member.roster.verify(self.number, probe, member.sign(probe)):
            raise ConfigError(f"the key of this node is not that of client {self.number} on the roster: check key=")

    def _topic(self, message: Message, clock: Clock, evaluating: bool = False) -> bytes:
        """Return the text that names a round for what clients sign, with all that they are told alike."""
        protected = self.bound.training.secure
        assert protected is not None
        words = {
            "round": clock.round,
            "rounds": clock.rounds,
            "precision": word(message, "precision", str),
            "checkpointing": word(message, "checkpointing", bool),
        }
        run = f"{word(message, 'run', str)} {told(words, self.key.granted)}"
        return protected.topic(run, clock, evaluating=evaluating)

    def _signing(self, topic: bytes) -> secure.Member:
        """Return this client as it signs in secure aggregation."""
        if self.secret is None:
            raise ConfigError("secure aggregation needs the key of this node: key= in --node-config")
        if self._roster is None:  # a new process
            place = self.own_roster or self.home / PINNED
            if not place.exists():
                raise PayloadError("this node knows no roster yet: the server must ask for its number first")
            self._roster = pinned(place.read_text(), self.home, self.own_roster)
        return secure.Member(self.number, topic, signer(credentials.private_key(self.secret)), self._roster)

    def train(self, message: Message) -> ClientResult:
        """Run the task of a message, and write the journal before anything is sent."""
        clock, known, journal = self._read_header(message)
        key = round_key(self.key, clock.round)
        frame = Frame.of(data(message)) if self.bound.shared else SILENT.data
        client = self.clients.get(word(message, "exchange", int), self.client)
        samples, exchange = self.task.split.train(self.number), client.exchange
        if not exchange.last:  # only the last exchange has a client state
            return _result(client.do(ClientTask(clock, exchange.key(key), frame, {}, samples)))
        once = exchange.hides and exchange.secure is None  # masks are drawn once by their own rules
        with journal.alone():
            if once and (sent := journal.sent_before(clock, data(message))) is not None:
                return ClientResult(Outgoing(Frame.of(sent), {}), {}, math.nan, Flops(0, 0))
            if word(message, "anew", bool):
                journal.forget()
            state = journal.recall(clock.round, known, exchange.settle)
            if exchange.secure is not None:
                exchange.secure.check_topic(journal.scratch(), self._topic(message, clock))
                state = {**state, SCRATCH: journal.train_scratch()}
            result = _result(client.do(ClientTask(clock, key, frame, state, samples)))
            journal.note(JournalEntry(clock.round, known, without_scratch(state), result.state))
            if once:
                journal.keep_sent(clock, data(message), bytes(result.sent.data))
        return result

    def answer(self, message: Message) -> bytes:
        """Answer a request of secure aggregation, and write the new secrets before anything is sent."""
        clock, _, journal = self._read_header(message)
        if (protected := self.bound.training.secure) is None:
            raise PayloadError("the method of this node has no secure aggregation")
        with journal.alone():
            member = self._signing(self._topic(message, clock, word(message, EVALUATING, bool)))
            answer, scratch = protected.answer(
                word(message, "phase", str), data(message), clock, member, journal.scratch()
            )
            journal.note_scratch(scratch)
        return bytes(answer.data)

    def evaluate(self, message: Message) -> Words:
        """Evaluate the client's deployed model on its own test samples and, on request, on all local test samples."""
        clock, known, journal = self._read_header(message)
        if self.bound.training.hides:
            raise PayloadError("metrics on this client's samples have no noise: local privacy does not send them")
        with journal.alone():
            journal.check_evaluation(clock, data(message))
            state = journal.recall(clock.round + 1, known, self.bound.training.settle)
        evaluator, params, _ = self._deployed(message, clock, state)
        own, whole = metric_words(self.objective.metrics)
        found = dict(zip(own, evaluator.on_client(params, self.number), strict=True))
        if word(message, "whole", bool):
            found |= dict(zip(whole, evaluator.whole(params), strict=True))
        return found

    def evaluate_masked(self, message: Message) -> bytes:
        """Evaluate the client's deployed model on its own test samples, once per round, as a protected upload."""
        clock, known, journal = self._read_header(message)
        protected = self.bound.training.secure
        assert protected is not None
        request = wire.read_piece(word(message, REQUEST, bytes), word(message, ARRAYS, int))
        limit = word(message, LIMIT, int)
        if not 1 <= limit < 1 << BITS:
            raise PayloadError(f"the steps of a metric must be from 1 to {(1 << BITS) - 1:,}, got {limit}")
        with journal.alone():
            journal.check_evaluation(clock, data(message), once=True)
            state = journal.recall(clock.round + 1, known, self.bound.training.settle)
            protected.check_topic(journal.scratch(), self._topic(message, clock, evaluating=True))
            scratch = journal.train_scratch()
        evaluator, params, models = self._deployed(message, clock, state)
        values, tested = evaluator.on_client(params, self.number), len(self.task.split.test(self.number))
        numbers = metric_numbers(self.task, values, tested, limit)
        segments, sent = metric_segments(self.task, limit), digest_of(models)
        masked = protected.protocol.protect(numbers, segments, self.number, request, sent, scratch)
        return bytes(protected.message("up", SUM, clock, masked).data)

    def _deployed(self, message: Message, clock: Clock, state: State) -> tuple[Evaluator, Params, tuple[Params, ...]]:
        """Return what evaluates the client's deployed model, this model, and the models of the message."""
        key, samples = round_key(self.key, clock.round), self.task.split.train(self.number)
        models: tuple[Params, ...] = (self.client.built,)  # the initial model if the method shares nothing
        if self.bound.shared:
            models = evaluation_exchange(self.bound).read_download(data(message), {}, clock, key).models
        held = self.client.choose(models, samples)
        tuned = self.client.tuned(self.bound.training.deploy(held, state, self.number), clock, key, samples)
        params = self.method.parametrization.deploy(tuned, self.client.built)

        def labels(client: int) -> Tensor | None:
            return self.client.labels(self.task.split.train(client))

        return Evaluator(self.objective, labels if self.bound.training.labels else None), params, models

    def _read_header(self, message: Message) -> tuple[Clock, int, Journal]:
        clock = Clock(word(message, "round", int), word(message, "rounds", int), self.number)
        if not 0 <= clock.round < clock.rounds:
            raise PayloadError(f"round {clock.round + 1} of {clock.rounds} was not announced")
        journal = Journal(self.home, word(message, "run", str), self.number)
        return clock, word(message, "known", int), journal


def _path(settings: Mapping[str, Any], name: str) -> Path | None:
    """Return the file that a setting of a node names; none if it is not given."""
    return Path(str(settings[name])).expanduser() if name in settings else None


def client_number(settings: Mapping[str, Any]) -> int:
    """Return the client number of a node: its ``partition-id``."""
    number = settings.get("partition-id")
    if type(number) is not int:
        raise ConfigError(
            f"a node needs the number of its client, got partition-id={number!r}: "
            "start its SuperNode with --node-config 'partition-id=0'"
        )
    return number


def state_folder(settings: Mapping[str, Any]) -> Path:
    """Return the folder of a node's client state: its ``state-dir``, or a default in the user's home."""
    usual = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gossamer"
    return Path(str(settings.get("state-dir", usual))).expanduser()


def _result(done: TaskOutcome) -> ClientResult:
    if isinstance(done.result, Failure):
        raise RunError(done.result.reason) from done.result.cause
    return done.result


def _echo(message: Message) -> Words:
    return {"run": word(message, "run", str), "round": word(message, "round", int)}
