"""Evaluation under secure aggregation: the phases of a training exchange, for the metrics of clients.

Nodes evaluate the model of a round, and send their metrics as a protected upload (``gossamer.engines.metric_sums``).
So the server learns means over clients. The exchange has a topic of its own: what clients sign for it is worth nothing
in training. A node takes part once per round.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flwr.app import Message, MessageType, RecordDict
from torch import Tensor

from gossamer.core.binding import BoundMethod
from gossamer.core.exchange import Outcome
from gossamer.core.jobs import Folding, Outgoing
from gossamer.core.random import Key
from gossamer.core.secure import Roster, SecureAggregation, SecureRound
from gossamer.core.secure_exchange import BoundSecure, digest_of
from gossamer.core.types import Clock, Payload, State
from gossamer.core.wire import Body, Frame, Kind
from gossamer.engines.client import Failure
from gossamer.engines.flower.fleet import NodePool, NodeReply
from gossamer.engines.flower.messages import ARRAYS, LIMIT, REQUEST
from gossamer.engines.flower.replies import answer_of
from gossamer.engines.flower.settings import Settings
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metric_sums import limit_of, metric_segments
from gossamer.engines.metrics import Ledger
from gossamer.engines.secure import Host, PhaseReplies
from gossamer.engines.stage import Stage
from gossamer.tasks.task import Task


class EvaluatedRun(Host, Protocol):
    """A deployed run, as its evaluation sees it.

    Args:
        method: the bound method
        task: the task
        settings: the settings of the deployment
        fleet: the nodes
    """

    method: BoundMethod
    task: Task
    settings: Settings
    fleet: NodePool

    def ask_phase(
        self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger, *, evaluating: bool = False
    ) -> PhaseReplies:
        """Send the requests of a phase, and yield the reply of each client."""
        ...

    def plain_evaluation(self, stage: Stage) -> Stage:
        """Return the stage in which the clients of another one receive the models that they evaluate."""
        ...

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None], ledger: Ledger | None, **more: Any
    ) -> RecordDict:
        """Return the content of the message to a client."""
        ...

    def check_reply(self, number: int, reply: NodeReply) -> Message:
        """Return a reply's message, if it belongs to this run and round."""
        ...


class MetricSum:
    """The secure sum of metrics, as ``SecureExchange`` sees the secure aggregation of an exchange.

    Args:
        run: the run
        secure: the secure aggregation of its training exchange
        clients: the number of clients that are asked
    """

    def __init__(self, run: EvaluatedRun, secure: BoundSecure, clients: int) -> None:
        self.run, self.secure, self.limit = run, secure, limit_of(clients)
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

    def message(self, way: Kind, phase: str, clock: Clock, arrays: Payload) -> Outgoing:
        """Return a request as a message."""
        return self.secure.message(way, phase, clock, arrays)

    def read(self, way: Kind, phase: str, sent: Frame | bytes, clock: Clock) -> Payload:
        """Return the arrays of an answer."""
        return self.secure.read(way, phase, sent, clock)

    def check_sum(self, cohort: int, clients: int) -> None:
        """Accept any number of clients that the protocol accepts: metrics have no noise of their own."""

    def fold(self, acc: Folding, state: State, total: Tensor, clients: int, clock: Clock, key: Key) -> Folding:
        """Keep the sum."""
        self.total = total
        return acc


class EvaluatingHost:
    """A deployed run, as ``SecureExchange`` sees it while clients evaluate.

    Args:
        run: the run
        sums: the secure sum
    """

    def __init__(self, run: EvaluatedRun, sums: MetricSum) -> None:
        self.run, self.sums = run, sums
        self.server, self.outcomes = run.server, list[Outcome]()
        self.run_name, self.roster = run.run_name, run.roster

    @property
    def liars(self) -> Mapping[int, str]:
        """The clients that broke the protocol and are not in a record yet: those of the run."""
        return self.run.liars

    @liars.setter
    def liars(self, liars: Mapping[int, str]) -> None:
        self.run.liars = liars

    def clock(self, number: int, client: int = -1) -> Clock:
        """Return the clock of a round."""
        return self.run.clock(number, client)

    def clock_and_key(self, stage: Stage, client: int) -> tuple[Clock, Key]:
        """Return the clock and the random key of a client in an exchange."""
        return self.run.clock_and_key(stage, client)

    def ask_phase(self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger) -> PhaseReplies:
        """Send the requests of a phase, and yield the reply of each client."""
        return self.run.ask_phase(stage, phase, requests, ledger, evaluating=True)

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Let clients evaluate, and put the protected metrics of each into the inbox."""
        run, common, contents = self.run, dict[int, Body | None](), {}
        assert stage.secure is not None
        for client in stage.active:
            request = Body.of(stage.secure.request(client))
            more = {REQUEST: bytes(request.data), ARRAYS: request.arrays, LIMIT: self.sums.limit, "whole": False}
            contents[client] = run.client_task(run.plain_evaluation(stage), client, common, None, **more)
        for client, reply in run.fleet.ask(MessageType.EVALUATE, contents, run.settings.deadline):
            try:
                inbox.put(client, ClientReply(answer_of(run.check_reply(stage.number, reply))))
            except Exception as error:  # any error refuses the reply, and the evaluation continues
                inbox.put(client, ClientReply(failure=Failure.of(error), silent=reply.message is None))

    def check_uploads(self, stage: Stage, uploads: int) -> None:
        """Accept any number of clients that the protocol accepts."""

    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Do nothing: evaluation changes no client state."""
