"""Evaluation of a deployed run: on the server's own test samples, by the nodes, and by the nodes under a secure sum.

Under secure aggregation, nodes evaluate the model of a round, and send their metrics as a protected upload
(``gossamer.engines.metric_sums``), in the phases of a training exchange. So the server learns means over clients. The
exchange has a topic of its own: what clients sign for it is worth nothing in training. A node takes part once per
round.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from flwr.app import Message, MessageType, RecordDict
from torch import Tensor

from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.exchange import GLOBAL, Outcome
from gossamer.core.jobs import Folding, Outgoing
from gossamer.core.random import Key
from gossamer.core.secure import Roster, SecureAggregation, SecureRound
from gossamer.core.secure_exchange import BoundSecure, digest_of
from gossamer.core.types import Clock, Params, State
from gossamer.core.untrusted import shown
from gossamer.core.wire import Body
from gossamer.engines.client import Failure
from gossamer.engines.evaluate import Evaluated, Evaluator, evaluation_exchange, figures
from gossamer.engines.flower.fleet import NodePool, NodeReply
from gossamer.engines.flower.messages import ARRAYS, LIMIT, REQUEST, answer_of, metric_words, word
from gossamer.engines.flower.real_time import RealTime
from gossamer.engines.flower.settings import Settings
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metric_sums import limit_of, means_of, metric_segments
from gossamer.engines.metrics import Ledger
from gossamer.engines.secure import Host, PhaseReplies, SecureExchange
from gossamer.engines.stage import Stage
from gossamer.runs.report.part_reports import EVALUATION, LIARS
from gossamer.tasks.losses import loss_name
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

SUMS_ALONE = "sums of clients: secure aggregation hides the metrics of single ones"
"""Where the metrics come from under secure aggregation."""

NO_CLIENT = "by the server alone: clients whose updates are hidden send no metrics"
"""Why there are no metrics of clients."""


class EvaluatedRun(Host, Protocol):
    """A deployed run, as its evaluation sees it.

    Args:
        method: the bound method
        task: the task
        objective: the task on the server's device
        settings: the settings of the deployment
        fleet: the nodes
        dispatcher: the clock of a schedule; none without a schedule
        anew: clients that have to start over
        excluded: the clients that are not sampled any more
    """

    method: BoundMethod
    task: Task
    objective: Objective
    settings: Settings
    fleet: NodePool
    dispatcher: RealTime | None
    anew: set[int]
    excluded: Sequence[int]

    def deployed(self) -> Params:
        """Return the global model."""
        ...

    def ask_phase(
        self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger, *, evaluating: bool = False
    ) -> PhaseReplies:
        """Send the requests of a phase, and yield the reply of each client."""
        ...

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None], ledger: Ledger | None, **more: Any
    ) -> RecordDict:
        """Return the content of the message to a client."""
        ...

    def check_reply(self, number: int, reply: NodeReply) -> Message:
        """Return a reply's message, if it belongs to this run and round."""
        ...


class NodeEvaluation:
    """The evaluations of a deployed run.

    Args:
        run: the run
    """

    def __init__(self, run: EvaluatedRun) -> None:
        self.run = run

    @cached_property
    def _exchange(self) -> BoundExchange:
        return evaluation_exchange(self.run.method)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.run.objective)

    def stage(self, number: int, clients: Iterable[int]) -> Stage:
        """Return the stage in which clients receive the models that they evaluate."""
        return Stage(self._exchange, number, {client: self.run.method.home(client) for client in clients})

    def round(self, number: int, ledger: Ledger) -> Evaluated:
        """Evaluate the global model on the server's test samples, if any, and let clients evaluate their models."""
        run = self.run
        models = run.method.global_models(run.server)
        mine = self._evaluator if run.method.shared and len(models) == 1 and len(run.task.data.test) else None
        if run.method.training.secure is not None:
            return self._summed(number, mine, ledger)
        if run.method.training.hides:  # metrics of single clients would say what their updates may not
            ledger.measure({EVALUATION: NO_CLIENT})
            return self._here(mine)
        found = self._of_clients(number, mine is None and len(models) == 1, ledger)
        own, everything = metric_words(run.objective.metrics)
        by_client = {client: tuple(words[name] for name in own[1:]) for client, words in found.items()}
        if len(models) > 1:
            whole = [_mean(found.values(), name, "tested") for name in own]
        else:
            whole = list(mine.whole(run.deployed())) if mine else [_mean(found.values(), name) for name in everything]
        return figures(run.task.metrics, whole, by_client, run.task.clients)

    def _here(self, mine: Evaluator | None) -> Evaluated:
        """Return the server's own metrics of the global model."""
        names = ("loss", *self.run.objective.metrics)
        return dict(zip(names, mine.whole(self.run.deployed()), strict=True)) if mine else {}

    def _of_clients(self, number: int, everything: bool, ledger: Ledger) -> dict[int, dict[str, float]]:
        """Return the evaluations of all connected clients with test samples, in client order.

        Nodes that train are not asked: they have one message at a time.
        """
        run = self.run
        down, up = run.fleet.bytes_down, run.fleet.bytes_up
        peers = [c for c, peer in sorted(run.fleet.peers.items()) if peer.tested or (everything and peer.test)]
        own, whole = metric_words(run.objective.metrics)
        found, failed, names = dict[int, dict[str, float]](), [], [*own, *(whole if everything else ())]
        busy = run.dispatcher.busy if run.dispatcher else ()
        stage = self.stage(number, [client for client in peers if client not in run.anew and client not in busy])
        common = dict[int, Body | None]()
        contents = {client: run.client_task(stage, client, common, None, whole=everything) for client in stage.assigned}
        for client, reply in run.fleet.ask(MessageType.EVALUATE, contents, run.settings.deadline):
            try:
                message = run.check_reply(number, reply)
                values = {name: self._checked(word(message, name, float), name) for name in names}
                found[client] = {**values, "tested": run.fleet.peers[client].tested}
            except PayloadError as error:
                failed.append({"client": client, "node": run.fleet.name(client), "reason": shown(str(error))})
        self._note(ledger, failed, down, up)
        return dict(sorted(found.items()))

    def _note(self, ledger: Ledger, failed: Sequence[Any], down: int, up: int) -> None:
        """Record what an evaluation cost, given the bytes of the run before it."""
        fleet = self.run.fleet
        ledger.notes["evaluation_failures"] = failed
        ledger.notes["bytes_evaluation"] = {"down": fleet.bytes_down - down, "up": fleet.bytes_up - up}

    def _checked(self, value: float, name: str) -> float:
        """Check a value of a node's evaluation; a client without own test samples has NaN."""
        task, names = self.run.task, ("own", *self.run.objective.metrics)
        known = dict(zip(names, (task.metrics[0], *task.metrics), strict=True))
        metric = known.get(name) or known.get(name.removeprefix("own_"))
        if metric is None:
            low, top = 0.0 if loss_name(task.loss) else -math.inf, math.inf
        elif metric.format == "percent":
            low, top = 0.0, 1.0
        else:
            return value  # it may be undefined or infinite: the client then counts in no mean
        if not (low <= value <= top and abs(value) < math.inf) and not (name.startswith("own") and math.isnan(value)):
            raise PayloadError(f"refused: {name} must be in [{low:g}, {top:g}], got {value}")
        return value

    def _summed(self, number: int, mine: Evaluator | None, ledger: Ledger) -> Evaluated:
        """Return means of the clients' metrics from a secure sum, and the server's own metrics of the global model."""
        run, secure = self.run, self.run.method.training.secure
        assert secure is not None
        busy = {*(run.dispatcher.busy if run.dispatcher else ()), *run.anew}
        down, up = run.fleet.bytes_down, run.fleet.bytes_up
        asked = [c for c, peer in sorted(run.fleet.peers.items()) if peer.tested and c not in busy]
        asked = [client for client in asked if client not in run.excluded]
        sums, costs, problem = MetricSum(run, secure, len(asked)), Ledger(), ""
        stage = Stage(run.method.training, number, dict.fromkeys(asked, GLOBAL))
        try:
            secure.protocol.check_cohort(len(asked))
            costs.begin()
            SecureExchange(EvaluatingHost(self, sums), stage, sums, costs).run(Folding(None, None))
            problem = costs.figures["secure"].get("refused", "")
        except ConfigError as error:
            problem = str(error)
        found = means_of(run.task, sums.total, sums.limit, len(asked)) if sums.total is not None else Evaluated()
        found |= self._here(mine)
        summed = costs.figures["secure"]["summed"] if sums.total is not None else 0
        if run.liars and "secure" in ledger.figures:  # named in this evaluation, after the figures of the round
            named = {str(client): why for client, why in run.liars.items()}
            known = ledger.figures["secure"].get(LIARS, {})
            ledger.measure({"secure": {**ledger.figures["secure"], LIARS: {**known, **named}}})
        ledger.measure({EVALUATION: f"{SUMS_ALONE}: {problem or f'of {summed} clients in this round'}"})
        self._note(ledger, costs.failures, down, up)
        return found


def _mean(found: Iterable[Mapping[str, float]], name: str, weight: str = "") -> float:
    """Return the mean of a metric over clients, weighted equally or by another metric."""
    terms = [(words[name], words[weight] if weight else 1.0) for words in found if math.isfinite(words[name])]
    return sum(value * count for value, count in terms) / sum(count for _, count in terms) if terms else math.nan


class MetricSum:
    """The secure sum of metrics, as ``SecureExchange`` sees the secure aggregation of an exchange.

    Args:
        run: the run
        secure: the secure aggregation of its training exchange
        clients: the number of clients that are asked
    """

    def __init__(self, run: EvaluatedRun, secure: BoundSecure, clients: int) -> None:
        self.run, self.secure, self.limit = run, secure, limit_of(clients)
        self.message, self.read = secure.message, secure.read
        self.total: Tensor | None = None

    @property
    def protocol(self) -> SecureAggregation:
        """The protocol of the training exchange."""
        return self.secure.protocol

    def begin(
        self, state: State, clients: Sequence[int], clock: Clock, key: Key, run: str, roster: Roster
    ) -> SecureRound:
        """Begin the exchange with these clients."""
        models = digest_of(tuple(self.run.method.global_models(state)))
        segments = metric_segments(self.run.task, self.limit)
        return self.protocol.begin(clients, segments, self.secure.topic(run, clock, evaluating=True), roster, models)

    def check_sum(self, cohort: int, clients: int) -> None:
        """Accept any number of clients that the protocol accepts: metrics have no noise of their own."""

    def fold(self, acc: Folding, state: State, total: Tensor, clients: int, clock: Clock, key: Key) -> Folding:
        """Keep the sum."""
        self.total = total
        return acc


class EvaluatingHost:
    """A deployed run, as ``SecureExchange`` sees it while clients evaluate.

    Args:
        evaluation: the evaluations of the run
        sums: the secure sum
    """

    def __init__(self, evaluation: NodeEvaluation, sums: MetricSum) -> None:
        self.evaluation, self.run, self.sums = evaluation, evaluation.run, sums
        self.server, self.outcomes = self.run.server, list[Outcome]()
        self.run_name, self.roster = self.run.run_name, self.run.roster
        self.clock, self.clock_and_key = self.run.clock, self.run.clock_and_key

    @property
    def liars(self) -> Mapping[int, str]:
        """The clients that broke the protocol and are not in a record yet: those of the run."""
        return self.run.liars

    @liars.setter
    def liars(self, liars: Mapping[int, str]) -> None:
        self.run.liars = liars

    def ask_phase(self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger) -> PhaseReplies:
        """Send the requests of a phase, and yield the reply of each client."""
        return self.run.ask_phase(stage, phase, requests, ledger, evaluating=True)

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Let clients evaluate, and put the protected metrics of each into the inbox."""
        run, common, contents = self.run, dict[int, Body | None](), {}
        assert stage.secure is not None
        plain = self.evaluation.stage(stage.number, stage.assigned)
        for client in stage.active:
            request = Body.of(stage.secure.request(client))
            more = {REQUEST: bytes(request.data), ARRAYS: request.arrays, LIMIT: self.sums.limit, "whole": False}
            contents[client] = run.client_task(plain, client, common, None, **more)
        for client, reply in run.fleet.ask(MessageType.EVALUATE, contents, run.settings.deadline):
            try:
                inbox.put(client, ClientReply(answer_of(run.check_reply(stage.number, reply))))
            except Exception as error:  # any error refuses the reply, and the evaluation continues
                inbox.put(client, ClientReply(failure=Failure.of(error), silent=reply.message is None))

    def check_uploads(self, stage: Stage, uploads: int) -> None:
        """Accept any number of clients that the protocol accepts."""

    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Do nothing: evaluation changes no client state."""
