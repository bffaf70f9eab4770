"""The sums of secure aggregation without masks: for studies of accuracy, which masks do not change.

A client sends the whole numbers that it would mask, packed in the bits of the same rings, and the server adds them. So
the sum is the one of ``SecAgg``, bit for bit, and so is the size of the vector. There are no keys and no shares. This
protects nobody. It needs no package for cryptography, and a round takes no longer than one without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.secure import (
    Member,
    Ring,
    Roster,
    SecureAggregation,
    SecureRound,
    SumSegment,
    TooFewClientsError,
)
from gossamer.core.types import Payload, State
from gossamer.parts.secure.primitives import add_packed, joined, lanes_of, packed, rings, zeros


class ClearRound(SecureRound):
    """One round at the server.

    Args:
        clients: the clients of the round
        rings: the rings of the vectors
    """

    def __init__(self, clients: Sequence[int], rings: Sequence[Ring]) -> None:
        self.clients, self.rings = sorted(clients), rings
        self._lanes, self._summed = zeros(rings), set[int]()

    def open_phase(self, phase: str) -> list[int]:
        """Return all clients: there is one phase, training."""
        return self.clients

    def request(self, client: int) -> Payload:
        """Return the number of clients, on which the rings depend."""
        return {"clients": torch.tensor([len(self.clients)])}

    def accept(self, client: int, answer: Payload) -> None:
        """Add the vector of a client."""
        add_packed(self._lanes, self.rings, answer, "values")
        self._summed.add(client)

    def total(self) -> Tensor:
        """Return the sum."""
        if not self._summed:
            raise TooFewClientsError("no client sent its vector")
        return joined(self._lanes)

    @property
    def summed(self) -> list[int]:
        """The clients that sent their vectors."""
        return sorted(self._summed)

    @property
    def liars(self) -> Mapping[int, str]:
        """Nobody: there is nothing to lie about."""
        return {}

    @property
    def reach(self) -> float:
        """Nothing is hidden, so that nobody can add more than its limit."""
        return 1.0


@dataclass(frozen=True)
class ClearSums(SecureAggregation):
    """Sums of whole numbers in the clear."""

    def check_cohort(self, clients: int) -> None:
        """Accept any number of clients."""

    def begin(
        self, clients: Sequence[int], segments: Sequence[SumSegment], topic: bytes, roster: Roster, models: bytes
    ) -> SecureRound:
        """Begin a round."""
        return ClearRound(clients, rings(segments, len(clients)))

    def answer(self, phase: str, member: Member, request: Payload, scratch: State) -> tuple[Payload, State]:
        """Refuse every phase: there is none besides training."""
        raise PayloadError(f"expected no phase, got {phase!r}")

    def protect(
        self,
        values: Tensor,
        segments: Sequence[SumSegment],
        client: int,
        request: Payload,
        models: bytes,
        scratch: State,
    ) -> Payload:
        """Return the values, packed."""
        held = rings(segments, int(request["clients"]))
        return {"values": packed(lanes_of(values, segments, held), held)}
