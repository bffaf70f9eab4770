"""Exact steps: the uploads of a round, with which a client repeats the aggregation.

A step contains, for each arrival in folding order, the client's number, its number of samples, and the arrays of its
payload as they arrived: three varints, the length as a varint, and a piece of the wire format. Arrays of tensors that
are shorter as new values are left out (``Codec.replayed``). The client reconstructs the arrivals, and calls ``begin``,
``fold`` and ``finish`` of its own copy of the server. All random numbers follow from the keys of the round.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from gossamer.core import tree, wire
from gossamer.core.codec import replay_of
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.jobs import moved, round_key
from gossamer.core.server import unreplayable
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.core.wire import Body
from gossamer.parts.downlinks.steps import Steps

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange


class Note(NamedTuple):
    """What a step contains of an arrival: the client, its number of samples, and the arrays of its payload."""

    client: int
    samples: int
    payload: Payload


class Replay(Steps):
    """Repeats the aggregation of a server.

    Args:
        exchange: the exchange, with its bound parts
        layout: the tensors that are aggregated again
    """

    exact = True

    def __init__(self, exchange: "BoundExchange", layout: Layout) -> None:
        self.exchange, self.layout = exchange, layout

    @classmethod
    def of(cls, exchange: "BoundExchange") -> "Replay":
        """Return the steps of an exchange. Refuse parts whose results clients cannot repeat bit for bit."""
        server, codec, outline = exchange.server, replay_of(exchange.codec), exchange.outline
        sections = [section.name for part in (server, exchange.solver) for section in part.sections]
        lossy = "send the compressed change of the model, Delta(codec) or --down delta:eden:2, or use down=Dense()"
        require(
            (not unreplayable(server), f"Delta cannot repeat the aggregation: {unreplayable(server)}: {lossy}"),
            (not codec.unreplayable(), f"Delta cannot repeat the aggregation: {codec.unreplayable()}"),
            (not sections, f"Delta cannot repeat an aggregation with the sections {', '.join(sections)}: {lossy}"),
        )
        _, layout = codec.replayed({}, Layout.of(outline))
        state = [name for name in server.init(outline) if name != "params"]
        require(
            (not state, f"Delta cannot repeat an aggregation with the state {', '.join(state)}: {lossy}"),
            (
                bool(layout.shapes),
                f"Delta needs a codec that compresses the uploads, got codec={exchange.codec}: {lossy}",
            ),
        )
        return cls(exchange, layout)

    def note(self, arrival: Arrival) -> bytes:
        """Return client, samples and arrays as bytes."""
        payload, _ = replay_of(self.exchange.codec).replayed(arrival.payload, arrival.layout)
        piece = Body.of(payload)
        numbers = (arrival.client, int(arrival.samples), piece.arrays, len(piece.data))
        return b"".join((*map(wire.varint, numbers), piece.data))

    def make(self, held: Params, model: Params, notes: bytearray, version: int) -> bytes:
        """Return the notes of a round."""
        return bytes(notes)

    def take(self, held: Params, step: bytes, clock: Clock) -> Params:
        """Return the covered tensors after the aggregation of a round."""
        server, context = self.exchange.server, self.exchange.context
        key, device = self.exchange.key(round_key(context.network.key, clock.round)), tree.device(held)
        notes = list(_notes(step, context.clients))
        state: State = {"params": {name: held[name] for name, _ in self.layout.shapes}}
        acc = server.begin(state, dict.fromkeys((note.client for note in notes), GLOBAL))
        for client, samples, payload in notes:
            up = self.exchange.codec_key(clock._replace(client=client), key)
            arrays = moved(payload, device)
            acc = server.fold(acc, self.exchange.arrival(client, Part(), self.layout, float(samples), arrays, up))
        after: Params = server.finish(state, acc, clock._replace(client=-1))["params"]
        return after


def _notes(step: bytes, clients: int) -> Iterator[Note]:
    """Yield the arrivals of a step."""
    view, at = memoryview(step), 0
    while at < len(view):
        numbers = []
        for _ in range(4):
            number, at = wire.read_varint(view, at)
            numbers.append(number)
        client, samples, arrays, length = numbers
        if client >= clients or not samples:
            raise PayloadError(f"a step holds client {client} of {clients} with {samples} samples")
        if at + length > len(view):
            raise PayloadError(f"a step ends inside the arrays of client {client}")
        yield Note(client, samples, wire.read_piece(bytes(view[at : at + length]), arrays))
        at += length
