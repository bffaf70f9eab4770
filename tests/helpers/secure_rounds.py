"""Rounds of secure aggregation without an engine: a server and its clients, some of which are lost in a phase."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core.secure import Member, Roster, SecureAggregation, SecureRound, SumSegment
from gossamer.core.types import Payload, State
from gossamer.parts.secure.primitives import SimulatedKeys

TOPIC, MODELS = b"a run, round 0", bytes(32)
PEOPLE = SimulatedKeys(1 << 41)
"""The keys of all clients of all tests."""


def member(client: int, topic: bytes = TOPIC, roster: Roster = PEOPLE) -> Member:
    return Member(client, topic, PEOPLE.signer(client), roster)


Change = Callable[[str, int, Payload], Payload]
"""Changes a message of a phase: its client and its payload."""


def unchanged(_phase: str, _client: int, payload: Payload) -> Payload:
    return payload


@dataclass
class Rehearsal:
    """A round, phase by phase. ``lost`` are the clients that do not answer, by phase."""

    protocol: SecureAggregation
    values: Mapping[int, Tensor]
    segments: Sequence[SumSegment]
    lost: Mapping[str, Sequence[int]] = field(default_factory=dict)
    request: Change = unchanged
    answer: Change = unchanged

    def __post_init__(self) -> None:
        self.server: SecureRound = self.protocol.begin(list(self.values), self.segments, TOPIC, PEOPLE, MODELS)
        self.asked = list(self.values)
        self.scratch: dict[int, State] = {client: {} for client in self.values}
        self.requests: dict[tuple[str, int], Payload] = {}
        self.answers: dict[tuple[str, int], Payload] = {}

    def phase(self, phase: str) -> None:
        self.asked = self.server.open_phase(phase)
        self.phase_answers(phase)

    def phase_answers(self, phase: str) -> None:
        """Let the clients answer in a phase that was opened."""
        for client in self.asked:
            request = self.request(phase, client, self.server.request(client))
            self.requests[phase, client] = request
            if client not in self.lost.get(phase, ()):
                self.answers[phase, client] = self.answer(phase, client, self.reply(phase, client, request))
                self.server.accept(client, self.answers[phase, client])

    def reply(self, phase: str, client: int, request: Payload) -> Payload:
        if phase == "train":
            values, scratch = self.values[client], self.scratch[client]
            return self.protocol.protect(values, self.segments, client, request, MODELS, scratch)
        answer, self.scratch[client] = self.protocol.answer(phase, member(client), request, self.scratch[client])
        return answer

    def rest(self, *phases: str) -> None:
        for phase in phases:
            self.phase(phase)

    def until(self, last: str) -> "Rehearsal":
        phases = [*self.protocol.setup, "train", *self.protocol.closing]
        for phase in phases[: phases.index(last) + 1]:
            self.phase(phase)
        return self

    def total(self) -> Tensor:
        return self.until("unmask").server.total()

    def plain(self) -> Tensor:
        """Return the sum of the clients in the sum."""
        size = sum(segment.size for segment in self.segments)
        return sum((self.values[client].long() for client in self.server.summed), torch.zeros(size, dtype=torch.int64))


def values_of(segments: Sequence[SumSegment], clients: Sequence[int], seed: int = 0) -> dict[int, Tensor]:
    """Return values of each client: limits are reached."""
    draw = torch.Generator().manual_seed(seed)
    parts = {
        client: [torch.randint(0, limit + 1, (size,), generator=draw) for size, limit in segments] for client in clients
    }
    return {client: torch.cat([torch.empty(0, dtype=torch.int64), *found]) for client, found in parts.items()}
