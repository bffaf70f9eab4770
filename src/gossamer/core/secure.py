"""Secure aggregation interface: the server learns the sum of the uploads of a round, and no single upload.

An exchange with a ``SecureAggregation`` has phases before and after training. In a phase, the server sends a request to
each client, and each client answers. All requests and answers are payloads, which the engine sends as messages.

          server (a ``SecureRound``)                            client (``SecureAggregation``)
    open_phase, request ──────────── a phase of setup ─────────▶ answer(phase, member, request, scratch)
    accept              ◀─────────────────────────────────────── an answer, and a new scratch
    request             ──────────── with the model ───────────▶ train
    accept              ◀─────────────────────────────────────── protect(values, segments, ..., models, scratch)
    open_phase, request ──────────── a phase of closing ───────▶ answer(phase, member, request, scratch)
    total               ◀─────────────────────────────────────── an answer

A client that is lost in one phase is not asked in the next one. The values of a client are small whole numbers. They
are summed modulo a power of two that holds the sum of the whole cohort, so the sum is exact.

Neither side trusts the other. Each client has a long-term signing key, and a ``Roster`` says which public key belongs
to which client. A client knows the roster from elsewhere than this round's server, so that the server cannot invent
clients or replace their keys. A client that breaks the protocol is named (``SecureRound.liars``), and the round goes
on without it.

The scratch of a client is a ``State``. It holds the secrets of one round: an engine keeps it between the phases of an
exchange, and forgets it after the last one. Each phase is answered once, and a scratch makes one upload.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from gossamer.core.errors import GossamerError
from gossamer.core.fields import CheckedFields
from gossamer.core.types import Payload, State

LIED = "lied: "
"""How the reason begins for which a client is left out that broke the protocol, as its own statements show."""

DISPUTED = "disputed: "
"""How the reason begins for which a client is left out of a round over disputed shares: its accusers may lie."""


class TooFewClientsError(GossamerError):
    """Too few clients are left in a phase: the sum of this round cannot be known."""


class Ring(NamedTuple):
    """Consecutive entries of a vector that are summed modulo 2 to the power of ``bits``.

    Args:
        size: the number of entries
        bits: the number of bits of each entry, at most 32
    """

    size: int
    bits: int


class SumSegment(NamedTuple):
    """Consecutive entries of the vectors that a codec sums, with the same limit.

    Args:
        size: the number of entries
        limit: the largest value of an entry; the smallest is 0
    """

    size: int
    limit: int


def rings_of(segments: Iterable[SumSegment], clients: int) -> tuple[Ring, ...]:
    """Return the smallest rings that hold the sums of this number of clients.

    >>> rings_of([SumSegment(10, 1), SumSegment(3, 255)], 100)
    (Ring(size=10, bits=7), Ring(size=3, bits=15))
    """
    return tuple(Ring(size, (limit * clients).bit_length()) for size, limit in segments)


class Roster(ABC):
    """Which public key belongs to which client of a run. Server and clients have the same one, or refuse each other."""

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """A digest of all clients with their keys, of 32 bytes: two rosters with the same one are the same."""

    @abstractmethod
    def verify(self, client: int, data: bytes, signature: bytes) -> bool:
        """Return whether a signature of data is one of this client; never for a client that is not on the roster."""


class Member(NamedTuple):
    """A client, as it takes part in one exchange of one round.

    Args:
        client: its number
        topic: names the run, the round and the exchange; what is signed for one topic is worth nothing in another one
        sign: returns the client's signature of data, with its long-term key
        roster: the roster that the client trusts
    """

    client: int
    topic: bytes
    sign: Callable[[bytes], bytes]
    roster: Roster


class SecureRound(ABC):
    """The server's side of one exchange of one round. It is not kept between rounds.

    Whatever clients send, its methods raise no other errors than ``PayloadError`` and ``TooFewClientsError``.
    """

    @abstractmethod
    def open_phase(self, phase: str) -> list[int]:
        """Begin a phase, and return the clients that are asked, in client order.

        These are the clients that have answered in all earlier phases. Raises ``TooFewClientsError`` if the sum cannot
        be known any more. ``train`` is the phase in which clients train.
        """

    @abstractmethod
    def request(self, client: int) -> Payload:
        """Return the request of the current phase to a client. In ``train``, it is a section of the download."""

    @abstractmethod
    def accept(self, client: int, answer: Payload) -> None:
        """Take the answer of a client in the current phase. Raises ``PayloadError`` to refuse it.

        In ``train``, the answer is the result of ``protect``.
        """

    @abstractmethod
    def total(self) -> Tensor:
        """Return the sum, in int64, of the clients that have answered in ``train``, whose number is ``summed``.

        Called after the last phase. Raises ``TooFewClientsError`` if too few clients have answered in it.
        """

    @property
    @abstractmethod
    def summed(self) -> list[int]:
        """The clients whose values are in the sum, in client order."""

    @property
    @abstractmethod
    def liars(self) -> Mapping[int, str]:
        """The clients that broke the protocol, as far as it is known by now, each with a reason.

        Reasons begin with ``LIED``, or ``DISPUTED`` where the accusers of a client may lie.
        """

    @property
    @abstractmethod
    def reach(self) -> float:
        """The largest value that one client can add to an entry of the sum, in units of the limit of honest clients.

        It is that of the segment where it is largest. No protocol that hides single values can see that it was used.
        """


class SecureAggregation(CheckedFields, ABC):
    """A protocol for the sum of the uploads of a round. The same object serves the server and the clients.

    Args:
        setup: the names of the phases before training, in order
        closing: the names of the phases after training
    """

    setup: ClassVar[tuple[str, ...]] = ()
    closing: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def check_cohort(self, clients: int) -> None:
        """Raise ``ConfigError`` if a round with this number of clients is not protected."""

    @abstractmethod
    def begin(
        self, clients: Sequence[int], segments: Sequence[SumSegment], topic: bytes, roster: Roster, models: bytes
    ) -> SecureRound:
        """Begin the exchange with these clients. Called by the server.

        ``segments`` describe the vectors, ``models`` is a digest of what all clients receive and train. An upload from
        other models is refused.
        """

    @abstractmethod
    def answer(self, phase: str, member: Member, request: Payload, scratch: State) -> tuple[Payload, State]:
        """Return the answer to a request, and the new scratch. Called by the client; the request is untrusted.

        Raises ``PayloadError`` if the server breaks the protocol. A refused request spends nothing of the scratch.
        """

    @abstractmethod
    def protect(
        self,
        values: Tensor,
        segments: Sequence[SumSegment],
        client: int,
        request: Payload,
        models: bytes,
        scratch: State,
    ) -> Payload:
        """Return a client's values, masked and packed. ``request`` is that of the phase ``train``.

        The values are whole numbers in a tensor of any type, from 0 to the limit of their segment. ``models`` is the
        digest of what the client received and trained. Called once per scratch.
        """
