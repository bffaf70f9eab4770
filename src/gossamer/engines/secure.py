"""An exchange with secure aggregation: phases before training, protected uploads, and phases after them.

A client that is lost in a phase, or whose answer is refused, takes no part in the later ones. If too few clients are
left, the sum stays unknown: the round ends without an aggregation, and the record has the reason. A client that broke
the protocol is named in the record, whether its upload is in the sum or not, and takes no part in later rounds.

No sum is unmasked of a round that will be repeated. The difference of two sums over almost the same clients would be
the update of one client.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from gossamer.core.exchange import Outcome
from gossamer.core.jobs import Folding, Outgoing
from gossamer.core.random import Key
from gossamer.core.secure import LIED, Roster, SecureAggregation, SecureRound, TooFewClientsError
from gossamer.core.secure_exchange import SUM, TRAIN
from gossamer.core.types import Clock, Payload, State
from gossamer.core.untrusted import shown
from gossamer.core.wire import Frame, Kind
from gossamer.engines.client import Failure
from gossamer.engines.inbox import ClientReply, Inbox, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage
from gossamer.runs.records import Record
from gossamer.runs.report.part_reports import LIARS, REACH


class NoSumWarning(UserWarning):
    """A round of secure aggregation ended without a sum."""


class PhaseReply(NamedTuple):
    """The reply of a client in a phase.

    Args:
        client: the client
        data: its answer; none if it did not arrive
        failure: why the client failed; none if it did not
        silent: whether the failure is that the client did not answer
    """

    client: int
    data: Frame | None = None
    failure: Failure | None = None
    silent: bool = False


PhaseReplies = Iterator[PhaseReply]
"""The replies of clients in a phase, as they arrive."""


class Host(Protocol):
    """A run, as an exchange with secure aggregation sees it.

    Args:
        server: the server state
        outcomes: the outcomes of the round so far
        liars: clients that broke the protocol and are not in a record yet, with the reasons
    """

    server: State
    outcomes: list[Outcome]
    liars: Mapping[int, str]

    def run_name(self, number: int) -> str:
        """Return a name that no other run has, and what all clients are told in a round."""
        ...

    @property
    def roster(self) -> Roster:
        """The public keys of all clients."""
        ...

    def clock(self, number: int, client: int = -1) -> Clock:
        """Return the clock of a round."""
        ...

    def clock_and_key(self, stage: Stage, client: int) -> tuple[Clock, Key]:
        """Return the clock and the random key of a client in an exchange."""
        ...

    def ask_phase(self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger) -> PhaseReplies:
        """Send the requests of a phase, and yield the reply of each client."""
        ...

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Let the active clients train, and put the reply of each into the inbox."""
        ...

    def check_uploads(self, stage: Stage, uploads: int) -> None:
        """Raise if a round with this number of uploads does not count."""
        ...

    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Stage a client's state, once it is known whether its upload arrived."""
        ...


class Sums(Protocol):
    """What is summed: the uploads of a training exchange (``BoundSecure``), or the metrics of clients."""

    @property
    def protocol(self) -> SecureAggregation:
        """The protocol."""
        ...

    def begin(
        self, state: State, clients: Sequence[int], clock: Clock, key: Key, run: str, roster: Roster
    ) -> SecureRound:
        """Begin the exchange with these clients. ``run`` is the name of the run."""
        ...

    def message(self, way: Kind, phase: str, clock: Clock, arrays: Payload) -> Outgoing:
        """Return a request as a message."""
        ...

    def read(self, way: Kind, phase: str, data: Frame | bytes, clock: Clock) -> Payload:
        """Return the arrays of an answer. Raise ``PayloadError`` to refuse it."""
        ...

    def check_sum(self, cohort: int, clients: int) -> None:
        """Raise ``TooFewClientsError`` if the sum of these clients, of a cohort, may not be known."""
        ...

    def fold(self, acc: Folding, state: State, total: Tensor, clients: int, clock: Clock, key: Key) -> Folding:
        """Return the accumulator with the sum."""
        ...


class SecureExchange:
    """Runs an exchange with secure aggregation.

    Args:
        run: the run, which reaches the clients
        stage: the exchange, and its clients
        secure: what is summed
        ledger: the costs of the round
    """

    def __init__(self, run: Host, stage: Stage, secure: Sums, ledger: Ledger) -> None:
        self.engine, self.stage, self.secure, self.ledger = run, stage, secure, ledger
        self.clock, self.key = run.clock_and_key(stage, stage.active[0] if stage.active else -1)
        self.replies: dict[int, ClientReply] = {}  # of the phase of training, and of clients that are lost before
        self.late: dict[int, Failure | None] = {}  # clients that are lost after their upload
        self.left: dict[str, int] = {}  # the number of clients that answered in each phase

    def run(self, acc: Folding) -> Folding:
        """Run all phases, and return the accumulator with the sum."""
        protocol, summed, problem = self.secure.protocol, set[int](), ""
        with self.ledger.time("secure"):
            run, state = self.engine, self.engine.server
            named = run.run_name(self.stage.number), run.roster
            self.round = self.secure.begin(state, self.stage.active, self.clock, self.key, *named)
        try:
            with self.ledger.time("secure"):
                for phase in protocol.setup:
                    self._phase(phase)
            self._train()
            self.engine.check_uploads(self.stage, self.left[TRAIN])
            self.secure.check_sum(len(self.stage.active), self.left[TRAIN])
            with self.ledger.time("secure"):
                for phase in protocol.closing:
                    self._phase(phase)
                total, summed = self.round.total(), set(self.round.summed)
            acc = self.secure.fold(acc, self.engine.server, total, len(summed), self.clock, self.key)
        except TooFewClientsError as error:
            problem = str(error)
            warnings.warn(f"round {self.stage.number + 1} has no sum: {problem}", NoSumWarning, stacklevel=2)
        finally:  # also if the round does not count: it is repeated without them
            run.liars = {**run.liars, **self.round.liars}
        for client in self.stage.active:
            self._settle(client, client in summed, problem)
        self.ledger.measure({"secure": self._figures(len(summed), problem)})
        return acc

    def _phase(self, phase: str) -> None:
        """Ask the clients that are left, and take their answers."""
        asked = self.round.open_phase(phase)
        clocks = {client: self.engine.clock(self.stage.number, client) for client in asked}
        requests = {
            client: self.secure.message("down", phase, clocks[client], self.round.request(client)) for client in asked
        }
        self.left[phase] = 0
        for reply in self.engine.ask_phase(self.stage, phase, requests, self.ledger):
            failure = reply.failure
            if reply.data is not None and failure is None:
                failure = self._accept(phase, phase, reply.client, reply.data)
            if failure is not None or reply.data is None:
                self._lose(reply, failure)

    def _accept(self, phase: str, section: str, client: int, data: Frame) -> Failure | None:
        """Take an answer; return why it is refused, if it is."""
        clock = self.engine.clock(self.stage.number, client)
        try:
            self.round.accept(client, self.secure.read("up", section, data, clock))
        except Exception as error:  # any error of a reader refuses the message, and the round continues
            refused = Failure.of(error)
            return refused._replace(reason=shown(f"refused: {refused.reason}"))
        self.left[phase] += 1
        return None

    def _lose(self, reply: PhaseReply, failure: Failure | None) -> None:
        """Note why a client was lost. After its upload, that matters only if the sum stays unknown."""
        if reply.client in self.replies:
            self.late[reply.client] = failure
        else:
            self.replies[reply.client] = ClientReply(failure=failure, silent=reply.silent)

    def _train(self) -> None:
        """Let the clients that are left train, and take their protected uploads."""
        active = self.round.open_phase(TRAIN)
        self.left[TRAIN] = 0
        stage = self.stage.protected(self.round, active)
        self.engine.exchange(stage, self.ledger, Inbox(active, self._deliver))

    def _deliver(self, client: int, reply: ClientReply) -> None:
        failure = reply.failure
        if reply.data is not None and failure is None:
            failure = self._accept(TRAIN, SUM, client, reply.data)
        self.replies[client] = reply._replace(failure=failure)

    def _settle(self, client: int, summed: bool, problem: str) -> None:
        """Record the outcome of a client, and stage its state."""
        reply = self.replies.get(client, ClientReply())
        failure = reply.failure or (self._without_sum(client, reply, problem) if problem else None)
        if (lie := self.round.liars.get(client)) is not None:
            failure = Failure(lie)
        if failure is not None:
            self.ledger.fail(client, failure.reason)
        if summed:
            self.ledger.fold(client)
            failure = None  # its upload counts, even if it lied in a later phase
        exchange = self.stage.exchange
        self.engine.settle_client(self.stage, client, reply, summed, State())
        reason, cause = failure or ("", None)
        version = exchange.version(self.engine.clock(self.stage.number))
        outcome = Outcome(client, exchange.number, version, summed, {}, reason, cause, reply.injected, reply.silent)
        self.stage.outcomes.append(outcome)
        self.engine.outcomes.append(outcome)

    def _without_sum(self, client: int, reply: ClientReply, problem: str) -> Failure | None:
        """Return why a client counts as failed in a round without a sum; none if a message of it was lost."""
        if client in self.late:
            return self.late[client]
        lost = client in self.replies and reply.data is None
        return None if lost else Failure(problem)

    def _figures(self, summed: int, problem: str) -> dict[str, Any]:
        """Return the entry of the record: how many clients answered in each phase, and what was summed."""
        figures = {"asked": len(self.stage.active), **self.left, "summed": summed, REACH: self.round.reach}
        liars = {str(client): reason for client, reason in self.engine.liars.items()}
        return figures | ({LIARS: liars} if liars else {}) | ({"refused": problem} if problem else {})


def liars_of(metrics: Sequence[Record]) -> set[int]:
    """Return the clients that broke the protocol of secure aggregation in any of these rounds."""
    figures = (record.get("figures", {}).get("secure", {}) for record in metrics)
    return {client for each in figures for client in proven(each.get(LIARS, {}))}


def proven(liars: Mapping[Any, str]) -> set[int]:
    """Return the clients whose own statements show that they lied. Others may be accused by lying neighbours."""
    return {int(client) for client, why in liars.items() if why.startswith(LIED)}
