"""The server side of a federated run, independent of how clients are reached.

A round has five steps:

1. Sample the cohort.
2. For each exchange of the method, send each client its task, let it train, and aggregate the uploads.
   Uploads are aggregated in client order, whatever their order of arrival.
3. Finish the exchange: compute the new server state.
4. Evaluate the models.
5. Write the record and the checkpoint.

Each client of an exchange has one ``Outcome``. If a client fails, or its upload is refused, the record states the
reason and the round continues without it. Under a schedule, ``gossamer.engines.dispatch`` decides which clients start
when, and which updates are aggregated together.

Engines implement the transport: ``gossamer.engines.simulation`` trains clients in this process,
``gossamer.engines.flower`` reaches them across a network.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import median_low

from torch import Tensor

from gossamer.core import tree
from gossamer.core.bound import BoundExchange
from gossamer.core.errors import RunError
from gossamer.core.exchange import GLOBAL, Arrival, Outcome
from gossamer.core.jobs import Folding, Outgoing, round_key
from gossamer.core.random import Key, secret_key
from gossamer.core.sampler import Pool
from gossamer.core.secure import Roster
from gossamer.core.types import Clock, Params, State
from gossamer.core.untrusted import TOO_LARGE, shown
from gossamer.core.wire import NOT_FINITE, Body
from gossamer.engines.anomalies import AnomalyWatch
from gossamer.engines.client import Failure
from gossamer.engines.control import Callback, Callbacks, ask, callbacks_of, out_of_patience
from gossamer.engines.dispatch import Dispatcher
from gossamer.engines.divergence import warn_of_divergence
from gossamer.engines.evaluate import Evaluated
from gossamer.engines.inbox import ClientReply, Immediate, Inbox, Replies
from gossamer.engines.kept_run import KeptRun
from gossamer.engines.metrics import Ledger
from gossamer.engines.result import Result as Result
from gossamer.engines.secure import PhaseReplies, SecureExchange, liars_of, proven
from gossamer.engines.stage import Stage as Stage
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import ANOMALIES, EXCLUDED, EXTENDED, STOPPED, Record
from gossamer.runs.releases import Releases
from gossamer.runs.report.scores import deciding, scores_of
from gossamer.runs.report.text import count
from gossamer.tasks.precision import FLOAT32, products

Watch = Callable[[Record], None]
"""Called with the record of a round, once it is saved."""

PATIENCE = 3
"""A run stops after this number of consecutive rounds in which every client failed."""


class CodecWarning(UserWarning):
    """The metrics of a codec show that the codec limits the run."""


class FederatedRun(KeptRun):
    """A run in progress: its rounds, on top of what is kept."""

    warned = False
    """Whether a warning of a codec was shown."""
    excluded: Sequence[int] = ()
    """The clients that are not sampled any more."""
    liars: Mapping[int, str] = {}
    """The clients that broke the protocol of secure aggregation and are not in a record yet, with the reasons."""
    sizes: Mapping[int, int] = {}
    """The number of samples that each client has, by its own account."""
    dispatcher: Dispatcher | None = None
    """The tasks in flight, under a schedule."""
    releases: Releases | None = None
    """What a run with noise from the operating system may have released."""

    @property
    def mixes(self) -> bool:
        """Whether updates of several versions are aggregated together."""
        return self.dispatcher is not None and self.dispatcher.schedule.keeps_late

    # Implemented by engines.

    @abstractmethod
    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Let the active clients train, and put the reply of each into the inbox."""

    @abstractmethod
    def ask_phase(self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger) -> PhaseReplies:
        """Send the requests of a phase of secure aggregation, and yield the reply of each client."""

    @abstractmethod
    def run_name(self, number: int) -> str:
        """Return a name that no other run has, for what clients sign in a round of secure aggregation."""

    @property
    @abstractmethod
    def roster(self) -> Roster:
        """The public keys of all clients, for secure aggregation."""

    @abstractmethod
    def available(self) -> Mapping[int, int]:
        """Return the connected clients, with their numbers of training samples."""

    @abstractmethod
    def claims(self) -> Mapping[int, int]:
        """Return the numbers of samples of all connected clients, also of those that have a task."""

    @abstractmethod
    def evaluate_round(self, number: int, ledger: Ledger) -> Evaluated:
        """Evaluate the models after a round."""

    @abstractmethod
    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Prepare a round, before its first exchange."""

    @abstractmethod
    def close(self) -> None:
        """Release processes and memory."""

    # Rounds.

    def run(self, folder: RunFolder | None, watch: Watch, callbacks: Callbacks = ()) -> Result:
        """Run all remaining rounds."""
        try:
            exact = products(FLOAT32, self.objective.device)  # in aggregation and evaluation; training sets its own
            with self.tracking.run(self.about, self.metrics, folder.path if folder else None), exact:
                self.rounds(folder, watch, callbacks_of(callbacks))
        finally:
            self.close()
        return Result.of(self, folder.path if folder else None)

    def rounds(self, folder: RunFolder | None, watch: Watch, callbacks: Sequence[Callback]) -> None:
        """Run the remaining rounds; stop early if every client fails repeatedly, or if there is a reason to stop."""
        streak, problem = 0, ""
        if self.privacy and self.secure_noise:
            stated = [record.get("figures", {}).get("privacy", {}).get("releases", 0) for record in self.metrics]
            self.releases = Releases(folder.path if folder else None, max([len(self.metrics), *stated]))
        while not self.finished:
            number = len(self.metrics)
            self._check_budget(number)
            record = self.round(number, folder, callbacks)
            self.tracking.log(record)
            watch(record)
            failed = _all_failed(self.outcomes, record["clients"])
            streak = streak + 1 if failed else 0
            if failed:
                reason = f"client {failed.client}: {failed.reason}{_advice(failed)}"
                problem = f"every client failed in round {number + 1}: {reason}"
            if streak == PATIENCE:
                break
        if problem:
            raise RunError(problem)

    def round(self, number: int, folder: RunFolder | None, callbacks: Sequence[Callback] = ()) -> Record:
        """Run one round, from the cohort to the checkpoint."""
        ledger = Ledger()
        cohort = self.train(number, ledger)
        with ledger.time("evaluate"):
            options = self.options_of(number)
            due = (number + 1) % options.eval_every == 0 or number + 1 == options.rounds
            evaluated = self.evaluate_round(number, ledger) if due else {}
        if self.privacy:
            ledger.measure({"privacy": self.privacy.figures(number + 1, self.repeats(number + 1))})
        record = ledger.record(number + 1, cohort, evaluated)
        self.metrics.append(record)
        self.liars = {client: why for client, why in self.liars.items() if client not in liars_of([record])}
        if evaluated:
            warn_of_divergence(self.metrics, scores_of(self.about["task"])[0], self._trained())
        try:
            self.decide(record, callbacks)
        finally:  # the round counts, whatever a callback raises
            if folder is not None:
                self.save(record, folder)
        return record

    def repeats(self, done: int) -> int:
        """Return how many more results may have been released than rounds are finished."""
        return max(0, self.releases.count - done) if self.releases else 0

    def _check_budget(self, done: int) -> None:
        """Raise if rounds that were repeated after a crash have used up the privacy budget."""
        again = self.repeats(done)
        if self.privacy and again and (reason := self.privacy.reason_to_stop(done, again)) is not None:
            twice = f"{count(again, 'round')} began a second time after a crash, which counts"
            raise RunError(f"the privacy budget of the run is spent: {twice}: {reason}")

    def _trained(self) -> list[Params]:
        """Return the trained tensors of the initial model and of the global ones."""
        models = [self.like, *self.method.global_models(self.server)]
        return [{name: model[name] for name in self.objective.trained} for model in models]

    def decide(self, record: Record, callbacks: Sequence[Callback]) -> None:
        """Note in the record of a round whether the run ends with it, and why."""
        options = self.options_of(record["round"] - 1)
        begins = (each["after"] for each in self.about.get(EXTENDED, ()))
        since = max((at for at in begins if at < record["round"]), default=0)
        reason = options.until.reason(record, self.scores) if options.until else None
        if reason is None and options.patience:
            reason = out_of_patience(self.metrics[since:], options.patience, deciding(self.about))
        if reason is None and self.privacy and record["round"] < options.rounds:
            reason = self.privacy.reason_to_stop(record["round"], self.repeats(record["round"]))
        record |= {STOPPED: reason} if reason else {}
        asked = ask(callbacks, record, self)
        record |= {STOPPED: asked} if asked and not reason else {}

    def train(self, number: int, ledger: Ledger) -> list[int]:
        """Run all exchanges of a round and return the cohort; client states are committed only if all succeed."""
        before, self.outcomes, begun = self.server, [], False
        try:
            if self.dispatcher:
                self.dispatcher.begin_round()
            cohort = self.cohort(number, ledger)
            if self.releases:
                self._check_budget(number)
                self.releases.begin(number, cohort)
                begun = True
            self.prepare(number, cohort, ledger)
            for exchange in self.method.exchanges:
                self.run_exchange(exchange, number, cohort, ledger)
        except BaseException:
            if begun and self.releases and self.privacy and self.privacy.central:  # the sum has not left this process
                self.releases.void(number)
            training = self.method.training
            self.server = training.void(before, [each for each in self.outcomes if each.exchange == training.number])
            self.clients.discard()
            self.models.discard()
            raise
        self.clients.commit()
        self.models.commit()
        if self.mixes:
            return sorted({outcome.client for outcome in self.outcomes})
        return cohort

    def cohort(self, number: int, ledger: Ledger) -> list[int]:
        """Sample the cohort of a round, in client order."""
        available = self.available()
        self.sizes = self.claims()
        self.excluded = sorted({*self.exclusion.update(self.metrics), *liars_of(self.metrics), *proven(self.liars)})
        if self.excluded:
            ledger.notes[EXCLUDED] = self.excluded
        count = self.dispatcher.free if self.dispatcher else self.cohort_size
        proposed = self.propose(number, available, count)
        if self.method.probe is None:
            return proposed
        self.prepare(number, proposed, ledger)
        return self.method.sampler.choose(self.run_exchange(self.method.probe, number, proposed, ledger), count)

    def propose(self, number: int, available: Mapping[int, int], count: int) -> list[int]:
        """Let the sampler choose from available clients, given with their numbers of samples."""
        if not count or not available:
            return []
        if self.excluded:
            available = {client: samples for client, samples in available.items() if client not in self.excluded}
        if (most := self.most_samples()) < math.inf:
            available = {client: int(min(samples, most)) for client, samples in available.items()}
        secret = self.releases is not None
        pool, key = Pool(self.task.clients, available, count, secret), secret_key() if secret else self.key
        return self.method.sampler.propose(pool, self.clock(number), key)

    def all_clients(self) -> int:
        """Return the number of clients, connected or not."""
        return self.task.clients

    def most_samples(self) -> float:
        """Return the number of samples above which a claim does not count: a multiple of the clients' median."""
        if (multiple := self.options.max_weight) is None or not self.sizes:
            return math.inf
        return float(max(1, int(multiple * median_low(self.sizes.values()))))

    def run_exchange(
        self, exchange: BoundExchange, number: int, cohort: Sequence[int], ledger: Ledger
    ) -> Sequence[Outcome]:
        """Run one exchange: send, train, aggregate, finish. Return the clients' outcomes, in client order."""
        clock = self.clock(number)
        assigned = exchange.server.assign(self.server, cohort, clock, self.key)
        if assigned is None:
            return []
        assigned = dict(assigned)
        ledger.begin()
        most, acc = self.most_samples(), exchange.begin(self.server, assigned)
        comparable = exchange.last and exchange.secure is None  # of a sum, no client can be compared with others
        watch = AnomalyWatch(self.key) if comparable and self.options.anomalies else None
        stage = Stage(exchange, number, assigned, most=most, watch=watch)

        def deliver(client: int, reply: ClientReply) -> None:
            nonlocal acc
            acc, outcome = self.fold_reply(self.stage_of(stage, client, reply), client, reply, acc, ledger)
            stage.outcomes.append(outcome)
            self.outcomes.append(outcome)

        with ledger.time("train"):
            if exchange.secure is not None:
                acc = SecureExchange(self, stage, exchange.secure, ledger).run(acc)
            else:
                self.exchange(stage, ledger, Immediate(deliver) if self.mixes else Inbox(stage.active, deliver))
        if stage.limited:
            ledger.notes["limited"] = stage.limited
        after = self.finish(stage, acc)
        self.check_exchange(stage, after)
        if watch and (named := watch.report()):
            ledger.notes[ANOMALIES] = named
        self.server = after = exchange.advance(self.server, after, acc, stage.outcomes, clock)
        arrived = [outcome.client for outcome in stage.outcomes if outcome.folded] if exchange.last else []
        changes = {client: (self.clients.get(client), self.clients.staged(client)) for client in arrived}
        ledger.measure(exchange.measure(after, acc, changes))
        self._warn(exchange, ledger.reported)
        return stage.outcomes

    def stage_of(self, stage: Stage, client: int, reply: ClientReply) -> Stage:
        """Return the stage in which a client got its task: the current one, or that of an earlier version."""
        if self.dispatcher is None or reply.version is None:
            return stage
        if reply.version == stage.number and client in stage.assigned:  # not from an attempt that did not count
            return stage
        return stage.earlier(reply.version, self.dispatcher.versions[reply.version], [client])

    def _warn(self, exchange: BoundExchange, figures: Mapping[str, float]) -> None:
        """Show a warning of the codec, once per run."""
        text = exchange.codec.warning(figures) if figures and not self.warned else None
        if text is not None:
            self.warned = True
            warnings.warn(text, CodecWarning, stacklevel=2)

    def fold_reply(
        self, stage: Stage, client: int, reply: ClientReply, acc: Folding, ledger: Ledger
    ) -> tuple[Folding, Outcome]:
        """Fold a client's reply into the accumulator, and stage its state; return the accumulator and the outcome."""
        failure, known, values = reply.failure, State(), dict[str, float]()
        if reply.data is not None and failure is None:
            try:
                acc, known, values = self._fold(stage, client, reply, acc)
                ledger.fold(client)
            except Exception as error:  # any error of a decoder refuses the upload, and the run continues
                refused = Failure.of(error)
                failure = refused._replace(reason=shown(f"refused: {refused.reason}"))  # it may quote the upload
        if failure is not None:
            ledger.fail(client, failure.reason)
        arrived = reply.data is not None and failure is None
        if stage.exchange.last:
            self.settle_client(stage, client, reply, arrived, known)
        version, (reason, cause) = stage.exchange.version(self.clock(stage.number)), failure or ("", None)
        about = (values, reason, cause, reply.injected, reply.silent)
        return acc, Outcome(client, stage.exchange.number, version, arrived, *about)

    def _fold(
        self, stage: Stage, client: int, reply: ClientReply, acc: Folding
    ) -> tuple[Folding, State, dict[str, float]]:
        assert reply.data is not None
        clock, key = self.clock_and_key(stage, client)
        known = self.view_state(stage, client)
        to = stage.assigned[client]
        arrival, after = stage.exchange.read_upload(reply.data, stage.server or self.server, clock, key, to, known)
        if self.dispatcher:
            arrival = self._adapted(stage, replace(arrival, staleness=stage.staleness))
        values = {name: value for name, value in arrival.sections.items() if isinstance(value, float)}
        with stage.exchange.decoded(arrival) if stage.watch else nullcontext((arrival, None)) as (readable, update):
            self.admit(stage, arrival, update)
            if arrival.samples > stage.most:
                stage.limited.append(client)
            acc = stage.exchange.fold(acc, replace(readable, samples=min(arrival.samples, stage.most)))
            if stage.watch and update is not None:
                stage.watch.note(arrival, update)
        return acc, after, values

    def _adapted(self, stage: Stage, arrival: Arrival) -> Arrival:
        """Return an update as the schedule lets it count, given its staleness.

        Statistics, such as the variances of BatchNorm, are means of values: the sum of changes from several versions
        could be negative. So their changes are relative to the current model.
        """
        assert self.dispatcher is not None
        model = stage.exchange.server.download(self.server, GLOBAL).models[arrival.choice]
        if arrival.staleness and self.objective.averaged:
            arrival = arrival.from_model(model, self.objective.averaged)
        return self.dispatcher.schedule.adapt(arrival, model)

    def admit(self, stage: Stage, arrival: Arrival, update: Tensor | None) -> None:
        """Check an update before it is folded; raise ``PayloadError`` to refuse it. By default, all are admitted.

        ``update`` is the decoded update, if it is known.
        """

    def check_uploads(self, stage: Stage, uploads: int) -> None:
        """Raise if a round with this number of uploads does not count. Called before secure sums are unmasked."""

    def finish(self, stage: Stage, acc: Folding) -> State:
        """Return the server state after the aggregation of an exchange."""
        return stage.exchange.finish(self.server, acc, self.clock(stage.number))

    @abstractmethod
    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Stage a client's state, once it is known whether its upload arrived.

        ``known`` is the client's view state according to its upload.
        """

    def check_exchange(self, stage: Stage, after: State) -> None:
        """Raise if the run cannot continue: all clients failed for one reason, or the model is not finite."""
        alone = [outcome for outcome in stage.outcomes if outcome.reason and not outcome.injected]
        if alone and len(alone) == len(stage.assigned) and len({outcome.reason for outcome in alone}) == 1:
            count = f"all {len(alone)} clients" if len(alone) > 1 else f"client {alone[0].client}"
            reason = f"{alone[0].reason}{_advice(alone[0])}"
            raise RunError(f"{count} failed in round {stage.number + 1}: {reason}") from alone[0].cause
        if not all(tree.finite(model) for model in stage.exchange.server.download(after, GLOBAL).models):
            raise RunError(
                f"the global model is not finite after round {stage.number + 1}: training diverges; start a new run "
                "with a smaller learning rate (--lr, or --global-lr where there is one)"
            )

    def download(self, stage: Stage, client: int, common: dict[int, Body | None]) -> Outgoing:
        """Return the download of a client. ``common`` keeps the pieces that clients of the stage share, by version."""
        clock, key = self.clock_and_key(stage, client)
        exchange, held, server = stage.exchange, self.held(stage, client), stage.server or self.server
        if held not in common:
            common[held] = exchange.make_common(server, clock, key, held)
        known, request = self.view_state(stage, client), stage.secure.request(client) if stage.secure else None
        return exchange.make_download(server, clock, key, stage.assigned[client], known, common[held], request)

    def held(self, stage: Stage, client: int) -> int:
        """Return the version of the model that a client has acknowledged."""
        return stage.exchange.held(self.server, client)

    def view_state(self, stage: Stage, client: int) -> State | None:
        """Return the server's copy of a client's view state; none before the client's first round."""
        return self.clients.get(client).get("view") if stage.exchange.last else None

    def clock_and_key(self, stage: Stage, client: int) -> tuple[Clock, Key]:
        """Return the clock and the random key of a client in an exchange."""
        return self.clock(stage.number, client), stage.exchange.key(self.round_key(stage.number))

    def round_key(self, number: int) -> Key:
        """Return the random key of a round."""
        return round_key(self.key, number)

    def clock(self, number: int, client: int = -1) -> Clock:
        """Return the clock of a round, for a client or, by default, for the server."""
        return Clock(number, self.options_of(number).rounds, client)


def _advice(failed: Outcome) -> str:
    """Return what to do about a failure of all clients, if that is clear."""
    diverged = failed.reason.endswith((NOT_FINITE, TOO_LARGE)) if failed.reason else False
    return ": training diverges; use a smaller learning rate" if diverged else ""


def _all_failed(outcomes: Sequence[Outcome], cohort: Sequence[int]) -> Outcome | None:
    """Return the last failure of a round if every client of the cohort failed, else none.

    If all candidates of a loss probe failed, the cohort is empty.
    """
    failed = [outcome for outcome in outcomes if outcome.reason and not outcome.injected]
    return failed[-1] if failed and {outcome.client for outcome in failed} >= set(cohort) else None
