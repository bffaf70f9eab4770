"""Secure aggregation interface: the server learns the sum of the uploads of a round, and no single upload.

An exchange with a ``SecureAggregation`` has phases before and after training. In a phase, the server sends a request to
each client, and each client answers. All requests and answers are payloads, which the engine sends as messages.

          server (a ``SecureRound``)                            client (``SecureAggregation``)
    open_phase, request ──────────── a phase of setup ─────────▶ answer(phase, request, scratch)
    accept              ◀─────────────────────────────────────── an answer, and a new scratch
    note                ──────────── with the model ───────────▶ train
    add                 ◀─────────────────────────────────────── protect(values, rings, note, scratch)
    open_phase, request ──────────── a phase of closing ───────▶ answer(phase, request, scratch)
    total               ◀─────────────────────────────────────── an answer

A client that is lost in one phase is not asked in the next one. The values of a client are small whole numbers. They
are summed modulo a power of two that holds the sum of the whole cohort, so the sum is exact.

The scratch of a client is a ``State``. It holds the secrets of one round: an engine keeps it between the phases of an
exchange, and forgets it after the last one. Each phase of ``closing`` is answered once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from gossamer.core.errors import GossamerError
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.types import Payload, State


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


class SecureRound(ABC):
    """The server's side of one exchange of one round. It is not kept between rounds."""

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
    def begin(self, clients: Sequence[int], segments: Sequence[SumSegment], key: Key) -> SecureRound:
        """Begin the exchange with these clients. Called by the server.

        ``segments`` describe the vectors. ``key`` is for public choices, such as the graph of neighbours: it is known
        to everybody, so secrets never follow from it.
        """

    @abstractmethod
    def answer(self, phase: str, client: int, request: Payload, scratch: State) -> tuple[Payload, State]:
        """Return the answer to a request, and the new scratch. Called by the client; the request is untrusted."""

    @abstractmethod
    def protect(
        self, values: Tensor, segments: Sequence[SumSegment], client: int, request: Payload, scratch: State
    ) -> Payload:
        """Return a client's values, masked and packed. ``request`` is that of the phase ``train``.

        The values are whole numbers in a tensor of any type, from 0 to the limit of their segment.
        """
