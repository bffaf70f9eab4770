"""Secure aggregation of an exchange: its messages, and the decoded sum.

A ``BoundSecure`` belongs to a ``BoundExchange``. It turns the payloads of a ``SecureAggregation`` into messages and
back, protects the uploads of clients, and gives the sum to the server part. Requests and answers are sections with the
name of their phase. A protected upload is the section ``sum``, in place of the codec's payload.

The client encodes its update as without secure aggregation. ``Codec.to_sum`` turns the payload into small whole
numbers, which are masked. So the server learns no more than the sum of these numbers over the cohort.

All clients must train the same models: with a model of its own, a client could be told apart in the sum. So the keys of
masks depend on a digest of what a client has decoded from its download, which the server computes too.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.core import sections, wire
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import GLOBAL, Section
from gossamer.core.jobs import Broadcast, Folding, Job, Outgoing
from gossamer.core.random import Key, fold
from gossamer.core.secure import Member, Roster, SecureAggregation, SecureRound, SumSegment, TooFewClientsError
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.core.untrusted import check_names
from gossamer.core.view import CHANGE, PART
from gossamer.core.wire import Body, Frame, Kind

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange

TRAIN = "train"
"""The phase in which clients train, between the phases of setup and those of closing."""

SUM = "sum"
"""The section of a protected upload."""

SCRATCH = "scratch"
"""The entry of a client state with the client's secrets, within an exchange."""

ROUND = "round"
"""The entry of a scratch with the round that it belongs to."""

ABOUT = "about"
"""The entry of a scratch with the topic that it belongs to, as bytes."""

REHEARSAL: State = {"rehearsal": torch.ones(1)}
"""The scratch of a task that only measures an executor: its upload is not protected, and goes nowhere."""

EXACT = {torch.float32: 2**24, torch.float64: 2**53}
"""The whole numbers below which each type holds all of them."""


class BoundSecure:
    """The secure aggregation of a bound exchange.

    Args:
        exchange: the exchange, whose other parts are bound
        protocol: the secure aggregation
    """

    def __init__(self, exchange: "BoundExchange", protocol: SecureAggregation) -> None:
        self.exchange, self.protocol = exchange, protocol
        self._digests: list[tuple[Broadcast, bytes]] = []  # the last ones: clients in one process share a broadcast

    @property
    def sections(self) -> tuple[Section, ...]:
        """A section per phase, and that of the protected upload. Their bytes are counted as ``secure.PHASE``."""
        return tuple(Section(name) for name in (*self.protocol.setup, TRAIN, *self.protocol.closing, SUM))

    def check(self) -> None:
        """Refuse an exchange whose uploads reveal more than a sum, or do not add up."""
        exchange = self.exchange
        view, name = type(exchange.view).__name__, type(exchange.server).__name__
        about = "secure aggregation reveals only a sum, and"
        own = ", ".join(section.name for section in exchange.sent_sections if not section.common)
        server, codec = exchange.server.unsummable(), exchange.codec.unsummable()
        require(
            (exchange.send in ("change", "model"), f"{about} clients of this method send no update"),
            (not server, f"{about} {server}"),
            (not codec, f"{about} {codec}"),
            (exchange.view.common, f"{about} clients hold different parts of the model with {view}: use Full()"),
            (exchange.view.section != CHANGE, f"{about} {view} sends what changed in each client's part"),
            (exchange.view.section != PART, f"{about} {view} describes the part of each client: use Full()"),
            (not exchange.per_client, f"{about} {name} keeps a model for each client, who must train the same one"),
            (not own, f"{about} {name} sends each client {own} of its own, and all must receive the same"),
            (not exchange.solver.sections, f"{about} {type(exchange.solver).__name__} sends values per client"),
            (exchange.labels is None, f"{about} labels=own sends the labels of each client: use labels=all"),
            (exchange.down.begin() is None, f"{about} this downlink sends updates on: use a codec, or Delta(codec)"),
        )

    # Both sides.

    def topic(self, run: str, clock: Clock, *, evaluating: bool = False) -> bytes:
        """Return the text that names a round and this exchange, or its evaluation, for what clients sign."""
        what = "evaluation" if evaluating else f"exchange {self.exchange.number}"
        return f"gossamer {run} round {clock.round} {what}".encode()

    def digest(self, broadcast: Broadcast) -> bytes:
        """Return the digest of what clients have decoded: the models, and the values of the server's sections."""
        for known, digest in self._digests:
            if known.models is broadcast.models and known.sections is broadcast.sections:
                return digest
        found = digest_of((broadcast.models, broadcast.sections))
        self._digests = [*self._digests[-1:], (broadcast, found)]
        return found

    def message(self, way: Kind, phase: str, clock: Clock, arrays: Payload) -> Outgoing:
        """Return a request or an answer as a message."""
        body = Body.of(sections.joined({}, {phase: arrays}))
        return self.exchange.envelope.address(way, clock, self.exchange.version(clock), float(way == "up"), body)

    def read(self, way: Kind, phase: str, data: Frame | bytes, clock: Clock) -> Payload:
        """Return the arrays of a message of a phase. Raise ``PayloadError`` to refuse it."""
        message = wire.unpack(data)
        self.exchange.envelope.check(message.head, way, clock, self.exchange.version(clock))
        payload, unread = sections.split(message.arrays)
        check_names(payload, ())
        if phase not in unread:
            raise PayloadError(f"the message has no section {phase}")
        # Copies: arrays of a message share one buffer, and a client keeps some of them.
        arrays = {name: array.clone() for name, array in unread.pop(phase).items()}
        sections.check_read(unread)
        return arrays

    # Client side.

    def answer(
        self, phase: str, data: Frame | bytes, clock: Clock, member: Member, scratch: State
    ) -> tuple[Outgoing, State]:
        """Return the answer to a request as a message, and the new scratch."""
        request = self.read("down", phase, data, clock)
        answer, scratch = self.protocol.answer(phase, member, request, scratch)
        kept = {ROUND: torch.tensor(clock.round), ABOUT: torch.frombuffer(bytearray(member.topic), dtype=torch.uint8)}
        return self.message("up", phase, clock, answer), {**scratch, **kept}

    @staticmethod
    def check_topic(scratch: State, topic: bytes) -> None:
        """Refuse to make an upload with secrets for another topic.

        The topic names all that clients were told and that the digest of the models does not cover. So a server that
        tells one client something else, such as another learning rate, gets no upload that fits the others.
        """
        about = scratch.get(ABOUT, torch.empty(0, dtype=torch.uint8))
        if about.cpu().numpy().tobytes() != topic:
            raise PayloadError("the server tells this client something else than before in this round")

    def protected(self, payload: Payload, job: Job) -> Payload:
        """Return an encoded update as the arrays of a protected upload."""
        scratch = job.state.get(SCRATCH)
        if scratch is not None and scratch.keys() == REHEARSAL.keys():
            return payload
        if scratch is None or job.request is None:
            raise PayloadError("the server asked for an upload that is not protected by secure aggregation")
        if ROUND in scratch and int(scratch[ROUND]) != job.clock.round:  # a protocol without setup has no keys
            raise PayloadError("the server asked for an upload in another round than that of this client's keys")
        if job.broadcast is None or job.scale is not None:
            raise PayloadError("the server sent this client a model or a loss scale of its own")
        codec = self.exchange.codec
        values = codec.to_sum(payload, self.exchange.coding(job))
        segments = codec.sum_segments(job.layout)
        models = self.digest(job.broadcast)
        return self.protocol.protect(values, segments, job.clock.client, job.request, models, scratch)

    # Server side.

    def begin(
        self, state: State, clients: Sequence[int], clock: Clock, key: Key, run: str, roster: Roster
    ) -> SecureRound:
        """Begin the exchange with these clients. ``run`` is the name of the run."""
        # What clients decode is the same for all forms of the download, so that of the whole model will do.
        models = self.digest(self.exchange.broadcast(state, clock, key))
        return self.protocol.begin(clients, self.segments(state, clock, key), self.topic(run, clock), roster, models)

    def segments(self, state: State, clock: Clock, key: Key) -> tuple[SumSegment, ...]:
        """Return the segments of the vectors that are summed in a round."""
        return self.exchange.codec.sum_segments(self._held(state, clock, key)[1])

    def _held(self, state: State, clock: Clock, key: Key) -> tuple[Part, Layout, Params]:
        """Return the part that all clients of a round hold, its layout, and the model that they receive."""
        exchange = self.exchange
        (model,) = exchange.down.models(state, exchange.server.download(state, GLOBAL).models)
        part = exchange.view.part(model, clock, fold(key, "view"), None)
        return part, part.layout(model), model

    def check_sum(self, cohort: int, clients: int) -> None:
        """Raise ``TooFewClientsError`` if the noise of these clients, of a cohort, is not enough for their sum."""
        if clients < (needed := self.exchange.codec.fewest(cohort)):
            raise TooFewClientsError(
                f"secure aggregation: {clients} of {cohort} clients sent an upload, and the noise of {needed} is "
                "needed for differential privacy: use a larger share of dropouts, or more clients per round"
            )

    def fold(self, acc: Folding, state: State, total: Tensor, clients: int, clock: Clock, key: Key) -> Folding:
        """Return the accumulator with the sum of several clients' vectors."""
        server = self.exchange.server
        part, layout, model = self._held(state, clock, key)
        arrival = self.exchange.sum_arrival(part, layout, model, clients, self.exchange.codec_key(clock, key))
        small = int(total.max()) < EXACT[layout.dtype] if len(total) else True
        vector = total.to(layout.dtype if small else torch.float64).to(model[layout.shapes[0][0]].device)
        return acc._replace(total=server.fold_sum(acc.total, arrival, vector, clients))


def digest_of(value: Any) -> bytes:
    """Return the digest of a nest of tensors and numbers."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.digest()


def _feed(found: Any, value: Any) -> None:
    """Add a nest of tensors and numbers to a digest, such that no two nests have the same bytes."""
    if isinstance(value, Tensor):
        found.update(f"tensor {value.dtype} {list(value.shape)};".encode())
        found.update(wire.array_bytes(value.detach().reshape(-1)))
    elif isinstance(value, Mapping):
        found.update(f"mapping {len(value)};".encode())
        for name in sorted(value):
            found.update(f"{len(name)} {name};".encode())
            _feed(found, value[name])
    elif isinstance(value, tuple | list):
        found.update(f"sequence {len(value)};".encode())
        for each in value:
            _feed(found, each)
    else:
        found.update(f"{type(value).__name__} {value!r};".encode())


def without_scratch(state: Mapping[str, object]) -> State:
    """Return a client state without the secrets of an exchange."""
    return {name: value for name, value in state.items() if name != SCRATCH}
