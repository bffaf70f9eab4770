"""Exact steps: the uploads of a round, or their sum, with which a client repeats the aggregation.

A step lists the arrivals in folding order: the client's number, its number of samples, and the arrays of its payload as
they arrived. Each has three varints, the length as a varint, and a piece of the wire format. Arrays of tensors that are
shorter as new values are left out (``Codec.replayed``). The client reconstructs the arrivals, and calls ``begin``,
``fold`` and ``finish`` of its own copy of the server. All random numbers follow from the keys of the round.

Where the codec's vectors are whole numbers (``Codec.sum_segments``) and the server needs only their sum, with equal
weights (``Server.unsummable``), the step may be the sum instead: the number of arrivals, 0 in place of the number of
samples, and the sum as the only payload, close to the entropy of its histogram (``pack``). The client calls
``fold_sum``. Sums of whole numbers are exact, so the model is the same.

Where the codec's vectors are any numbers, but short, as the scalars of zeroth-order methods, the step may be the
server's sum of them (``Server.total``): the sum as it is, and the sum of the weights. The client continues the
aggregation from there. The shortest of these forms is sent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core import entropy, tree, wire
from gossamer.core.bound import received
from gossamer.core.errors import PayloadError, listed, require
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.jobs import moved, round_key, round_purpose
from gossamer.core.random import Key, Purpose
from gossamer.core.server import Server
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.core.untrusted import check_names
from gossamer.core.wire import Body, expect, finite
from gossamer.parts.downlinks.steps import Steps

if TYPE_CHECKING:
    from gossamer.core.bound import BoundExchange


NOBODY = -1
"""The client of a sum. Its codec has a key that all clients share, or needs none."""

TOTAL, WEIGHT = "total", "weight"
"""The arrays of a sum that is sent on."""


class Note(NamedTuple):
    """What a step contains of an arrival: the client, its number of samples, and the arrays of its payload.

    A sum has no samples, and the number of its arrivals in place of the client.
    """

    client: int
    samples: int
    payload: Payload

    def data(self) -> bytes:
        """Return the note as bytes."""
        piece = Body.of(self.payload)
        numbers = (self.client, self.samples, piece.arrays, len(piece.data))
        return b"".join((*map(wire.varint, numbers), piece.data))


@dataclass
class Notes:
    """The notes of a round.

    Args:
        listed: those of the arrivals, one after the other
        count: the number of arrivals
        total: the sum of their vectors
        acc: the accumulator of a server whose sum is sent on
    """

    listed: bytearray = field(default_factory=bytearray)
    count: int = 0
    total: Tensor | None = None
    acc: Any = None


class Replay(Steps):
    """Repeats the aggregation of a server.

    Args:
        exchange: the exchange, with its bound parts
        layout: the tensors that are aggregated again
        summing: whether steps may be sums of whole numbers
        relaying: whether steps may be the server's sum of short vectors
        listing: whether steps may list the arrivals
    """

    exact = True

    def __init__(
        self,
        exchange: "BoundExchange",
        layout: Layout,
        summing: bool = False,
        relaying: bool = False,
        listing: bool = True,
    ) -> None:
        self.exchange, self.layout, self.listing = exchange, layout, listing
        self.summing, self.relaying = summing, relaying
        self.replayed = exchange.server.replayed_state
        self.limit = max((segment.limit for segment in exchange.codec.sum_segments(layout)), default=0)
        self.size = exchange.codec.sum_size(layout)

    @classmethod
    def of(cls, exchange: "BoundExchange", sums_only: bool = False) -> "Replay":
        """Return the steps of an exchange. Refuse parts whose results clients cannot repeat bit for bit."""
        server, codec, outline = exchange.server, exchange.codec, exchange.outline
        sections = [section.name for part in (server, exchange.solver) for section in part.sections]
        sections = [name for name in sections if name not in server.replayed_state]
        lossy = (
            "send the compressed change of the model, Delta(codec) or --down delta:eden:2, or whole models, Dense() or "
            "--down dense"
        )
        whole = exchange.exchange.view.whole
        cannot = server.unreplayable(whole)
        require(
            (not cannot, f"Delta cannot repeat the aggregation: {cannot}: {lossy}"),
            (not codec.unreplayable(), f"Delta cannot repeat the aggregation: {codec.unreplayable()}"),
            (not sections, f"Delta cannot repeat an aggregation with the sections {', '.join(sections)}: {lossy}"),
        )
        _, layout = codec.replayed({}, Layout.of(outline))
        state = [name for name in server.init(outline) if name not in ("params", *server.replayed_state)]
        require(
            (not state, f"Delta cannot repeat an aggregation with the state {', '.join(state)}: {lossy}"),
            (
                bool(layout.shapes),
                f"Delta needs a codec that compresses the uploads, got codec={exchange.codec}: {lossy}",
            ),
            (
                len(layout.shapes) == len(outline) or not server.replayed_state,
                f"Delta cannot send new values of tensors with the state {', '.join(server.replayed_state)}: {lossy}",
            ),
            *_torn(server, layout),
        )
        if not whole:
            require((not sums_only, "Delta(sums_only=True) needs clients that hold the whole model: use Full()"))
            return cls(exchange, layout)
        problem, short = _unsummed(exchange, layout), exchange.codec.sum_size(layout) < layout.size
        relaying = server.sums_codes and exchange.codec.common and short
        require((not (sums_only and problem and not relaying), f"Delta(sums_only=True) cannot send sums: {problem}"))
        return cls(exchange, layout, not problem, relaying and bool(problem), not sums_only)

    def begin(self) -> Notes:
        """Return empty notes."""
        return Notes()

    def note(self, notes: Notes, arrival: Arrival, room: int) -> Notes:
        """Add an arrival to the list and to the sum."""
        payload, _ = self.exchange.codec.replayed(arrival.payload, arrival.layout)
        notes.count += 1
        if self.listing and len(notes.listed) <= room:
            notes.listed += Note(arrival.client, int(arrival.samples), payload).data()
        if self.summing:
            again = self._arrival(arrival.version, arrival.client, arrival.samples, payload, arrival.model)
            assert again.to_sum is not None
            whole = again.to_sum().to(torch.int32)
            notes.total = whole if notes.total is None else notes.total.add_(whole)
        if self.relaying:
            server = self.exchange.server
            acc = server.begin({"params": arrival.model}, {}) if notes.acc is None else notes.acc
            notes.acc = server.fold(acc, arrival)
        return notes

    def make(self, held: Params, model: Params, notes: Notes, version: int) -> bytes:
        """Return the list of the arrivals or their sum, whichever is shorter."""
        found = [bytes(notes.listed)] if self.listing or not notes.count else []
        if notes.total is not None:
            found.append(Note(notes.count, 0, pack(notes.total.cpu(), self.limit * notes.count)).data())
        total = self.exchange.server.total(notes.acc) if self.relaying and notes.count else None
        if total is not None:
            weight = torch.tensor([total[1]], dtype=torch.float64)
            found.append(Note(notes.count, 0, {TOTAL: total[0].cpu(), WEIGHT: weight}).data())
        return min(found, key=len)

    def purposes(self, step: bytes, version: int) -> Iterable[Purpose]:
        """Return the keys of the codecs and views behind the listed arrivals, and nothing else of their clients."""
        round_ = round_purpose(version)
        yield from self.exchange.server.purposes(version)
        if self.exchange.codec.common:
            yield (*round_, "codec")
        for note in _notes(step, self.exchange.context.clients):
            client = (*round_, "client", note.client if note.samples else NOBODY)
            if not self.exchange.codec.common:
                yield (*client, "codec")
            if note.samples and not self.exchange.exchange.view.whole:
                yield (*client, "view")

    def take(self, held: State, step: bytes, clock: Clock) -> State:
        """Return the covered tensors after the aggregation of a round."""
        params: Params = held["params"]
        server, start, device = self.exchange.server, {n: params[n] for n, _ in self.layout.shapes}, tree.device(params)
        notes, state = list(_notes(step, self.exchange.context.clients)), State({**held, "params": start})
        acc = server.begin(state, dict.fromkeys((note.client for note in notes if note.samples), GLOBAL))
        for note in notes:
            arrays = moved(note.payload, device)
            if note.samples:
                acc = server.fold(acc, self._arrival(clock.round, note.client, float(note.samples), arrays, start))
            elif self.relaying:
                acc = self._relayed(acc, note, arrays, clock.round, start)
            elif self.summing:
                total = unpack(note.payload, self.size, self.limit * note.client)
                whole = total.to(device, self.layout.dtype)
                acc = server.fold_sum(acc, self._arrival(clock.round, NOBODY, 1.0, {}, start), whole, note.client)
            else:
                raise PayloadError("a step holds a sum, and this method has none")
        after = server.finish(state, acc, clock._replace(client=-1))
        return {name: after[name] for name in ("params", *self.replayed)}

    def _relayed(self, acc: Any, note: Note, arrays: Payload, version: int, start: Params) -> Any:
        """Return the accumulator with the sum of a round's vectors."""
        check_names(arrays, {TOTAL, WEIGHT})
        total = finite(expect(arrays, TOTAL, self.layout.dtype, self.size), TOTAL)
        weight = float(finite(expect(arrays, WEIGHT, torch.float64, 1), WEIGHT))
        if weight <= 0:
            raise PayloadError(f"the weights of a step must be positive, got {weight}")
        return self.exchange.server.fold_total(acc, self._arrival(version, NOBODY, 1.0, {}, start), total, weight)

    def _arrival(self, version: int, client: int, samples: float, payload: Payload, start: Params) -> Arrival:
        """Return an arrival with the covered tensors alone. ``start`` is the model that the client had received."""
        key = self.exchange.key(round_key(self.exchange.context.network.key, version))
        up = self.exchange.codec_key(Clock(version, version + 1, client), key)
        part, layout = self._part(Clock(version, version + 1, client), key)
        ctx = received(layout, up, part, start)
        arrival = self.exchange.arrival(client, part, ctx, samples, payload)
        return replace(arrival, model=start)

    def _part(self, clock: Clock, key: Key) -> tuple[Part, Layout]:
        """Return the part of the covered tensors that a client held, and its layout."""
        if self.exchange.exchange.view.whole:
            return Part(), self.layout
        part, covered = self.exchange.part_of(clock, key), [name for name, _ in self.layout.shapes]
        return part, part.layout(self.exchange.outline).only(covered)


def _torn(server: Server, layout: Layout) -> Iterator[tuple[bool, str]]:
    """Yield a check per group of tensors that depend on each other: steps cover all of them, or none."""
    covered = {name for name, _ in layout.shapes}
    for group in server.joint:
        alone = f"{listed(group - covered)} of {listed(group)}, which depend on each other"
        yield group <= covered or not group & covered, f"Delta cannot send new values of {alone}: give them one codec"


def _unsummed(exchange: "BoundExchange", layout: Layout) -> str:
    """Return why a sum does not determine the next model; empty if it does."""
    server, limit = exchange.server, max((each.limit for each in exchange.codec.sum_segments(layout)), default=0)
    if not limit:
        return (
            "uploads are not whole numbers: use fedmrn or fedmrns with common noise (--common-noise --alpha 0.1 "
            "--weights uniform), fedpm or klms"
        )
    if reason := server.unsummable(exact=True):
        return reason
    # Every sum of whole numbers up to 2 / eps is exact.
    most = min(LARGEST, int(2 / torch.finfo(layout.dtype).eps)) // limit
    return "" if exchange.context.clients <= most else f"there are more than {most:,} clients"


def _notes(step: bytes, clients: int) -> Iterator[Note]:
    """Yield the arrivals of a step, or their sum."""
    view, at = memoryview(step), 0
    while at < len(view):
        numbers = []
        for _ in range(4):
            number, at = wire.read_varint(view, at)
            numbers.append(number)
        client, samples, arrays, length = numbers
        if not (client < clients if samples else 1 <= client <= clients):
            raise PayloadError(f"a step holds client {client} of {clients} with {samples} samples")
        if at + length > len(view):
            raise PayloadError(f"a step ends inside the arrays of client {client}")
        yield Note(client, samples, wire.read_piece(bytes(view[at : at + length]), arrays))
        at += length


LARGEST = (1 << 16) - 1
"""The largest sum."""
LOW, HIGH = "low", "high"


def pack(total: Tensor, limit: int) -> Payload:
    """Return sums from 0 to ``limit`` as a payload.

    >>> pack(torch.full((1000,), 3), 10)["low"].numel() * 8 / 1000
    0.192
    """
    return {name: entropy.encode(total >> shift & 0xFF, base) for name, (shift, base) in _symbols(limit).items()}


def unpack(payload: Payload, size: int, limit: int) -> Tensor:
    """Return ``size`` sums as int64. Raise ``PayloadError`` for a payload that ``pack`` cannot have produced."""
    total = torch.zeros(size, dtype=torch.int64)
    for name, (shift, base) in _symbols(limit).items():
        if name not in payload:
            raise PayloadError(f"expected an array named {name!r}")
        coded = expect(payload, name, torch.uint8, payload[name].numel())
        total += entropy.decode(coded, base, size).cpu().long() << shift
    if len(payload) > len(_symbols(limit)) or bool((total > limit).any()):
        raise PayloadError(f"expected sums up to {limit:,} alone, got {', '.join(sorted(payload))}")
    return total


def _symbols(limit: int) -> dict[str, tuple[int, int]]:
    """Return the lowest bit and the number of values of each symbol of a sum, by array name."""
    return {LOW: (0, min(limit, 0xFF) + 1)} | ({HIGH: (8, (limit >> 8) + 1)} if limit > 0xFF else {})
