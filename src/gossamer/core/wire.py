"""Wire format: messages to bytes and back, one buffer per message.

    header    47 bytes, little endian: magic, version, kind, exchange, number of common arrays, number of single
              arrays, round, model version, client, codec id, weight, length of the rest, checksum
    common    a table with an entry per array in name order: name length, name, type code, count as a LEB128 varint;
              then the little-endian bytes of the arrays in the same order, without padding
    single    a second piece in the same format, with the arrays of this client

The common piece goes to all clients of a round. It is encoded, checked and decoded once; only the header differs. The
checksum is the CRC-32 of both pieces followed by the other 43 bytes of the header. It detects damage, not manipulation.
Messages are untrusted: lengths are compared with the number of bytes before anything is allocated, and nothing is
unpickled. The encoding is canonical: ``pack`` turns every message that ``unpack`` accepts into the same bytes.
``docs/wire.md`` shows a message byte by byte.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core import chunks
from gossamer.core.delivery import OVERHEAD as OVERHEAD
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload

MAGIC = b"GSMR"
VERSION = 3
HEADER = struct.Struct("<4sBBBHHIIIIdQI")
CHECKED = HEADER.size - 4  # the checksum is the header's last field
ALIGNMENT = 64  # bytes, of each array in memory
CPU = torch.device("cpu")
NOT_FINITE = "values that are not finite"
NAMES = f"1 to 255 printable ASCII characters and not {OVERHEAD!r}"

Kind = Literal["down", "up"]
KINDS: tuple[Kind, ...] = ("down", "up")

# Codes never change: a new type gets a new number. NumPy has no bfloat16, so its bits are sent as int16.
CODES: dict[torch.dtype, tuple[int, str]] = {
    torch.uint8: (1, "<u1"),
    torch.int8: (2, "<i1"),
    torch.int16: (3, "<i2"),
    torch.int32: (4, "<i4"),
    torch.int64: (5, "<i8"),
    torch.float16: (6, "<f2"),
    torch.bfloat16: (7, "<i2"),
    torch.float32: (8, "<f4"),
    torch.float64: (9, "<f8"),
}
TYPES = {code: dtype for dtype, (code, _) in CODES.items()}


@dataclass(frozen=True, eq=False)
class Message:
    """A decoded message.

    Messages compare by identity, because tensors have no boolean equality. Compare the bytes from ``pack`` instead.

    Args:
        kind: down (to the client) or up (to the server)
        round: the round
        client: the client's number
        codec: the codec id
        weight: up: the number of samples; down: the factor of the loss, 0 for none
        payload: the arrays of this client
        exchange: the number of the exchange in the round
        version: the version of the model in a download, or from which an update was trained
        common: the arrays that all clients of the round share
    """

    kind: Kind
    round: int
    client: int
    codec: int
    weight: float
    payload: Payload
    exchange: int = 0
    version: int = 0
    common: Payload = field(default_factory=dict)

    @property
    def head(self) -> "Head":
        """The header fields."""
        return Head(self.kind, self.round, self.client, self.codec, self.weight, self.exchange, self.version)

    @property
    def arrays(self) -> Payload:
        """All arrays, from both pieces."""
        return {**self.common, **self.payload}


@dataclass(frozen=True)
class ArrayEntry:
    """One entry of a table: name, type and count of an array."""

    name: str
    dtype: torch.dtype
    count: int

    @property
    def nbytes(self) -> int:
        """The number of bytes of the array."""
        return self.count * self.dtype.itemsize


class Body:
    """A piece of a message: its arrays, and their bytes, which are made when they are asked for.

    Args:
        payload: the arrays; of one message, or with ``like`` a row of the arrays of a group
        like: a piece with arrays of the same names, types and lengths, whose table is the same
    """

    def __init__(self, payload: Payload, like: "Body | None" = None) -> None:
        self.payload = payload
        if like is None:
            entries = _entries(payload) if payload else []
            self.table, self.names = _table(entries) if entries else b"", [entry.name for entry in entries]
            self.sizes = {entry.name: entry.nbytes for entry in entries} | {OVERHEAD: len(self.table)}
        else:
            self.table, self.names, self.sizes = like.table, like.names, like.sizes
        self.nbytes = sum(self.sizes.values())

    @classmethod
    def of(cls, payload: Payload) -> "Body":
        """Return a piece with these arrays. Its tensors may be on any device."""
        return cls(payload)

    @property
    def arrays(self) -> int:
        """The number of arrays."""
        return len(self.names)

    @cached_property
    def data(self) -> bytes | memoryview:
        """Table and arrays as bytes."""
        return _joined(self.table, [self.payload[name] for name in self.names])

    @cached_property
    def checksum(self) -> int:
        """The CRC-32 of the bytes."""
        return checksum(self.data)


NOTHING = Body({})
"""A piece without arrays."""


class Rows:
    """The own pieces of the messages of K clients that were trained together: a matrix for each array.

    Args:
        arrays: the arrays of all messages by name, [K, m]

    ``found`` keeps what a reader has computed from all rows at once, such as the decoded vectors.
    """

    def __init__(self, arrays: Payload) -> None:
        self.arrays, self.found = arrays, dict[str, Any]()

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values()))) if self.arrays else 0

    def bodies(self) -> list[Body]:
        """Return the piece of each message: views of the matrices, with one table for all."""
        rows = [dict(zip(self.arrays, row, strict=True)) for row in zip(*self.arrays.values(), strict=True)]
        first = Body(rows[0])
        return [first, *(Body(row, like=first) for row in rows[1:])]


class Letter(NamedTuple):
    """A message before it is made into bytes.

    Args:
        head: the header fields
        own: the piece of this client
        common: the piece that all clients of the round share
        group: the pieces of the clients that were trained together with this one, if it is one of them
        row: its number among them
    """

    head: "Head"
    own: Body
    common: Body = NOTHING
    group: Rows | None = None
    row: int = 0


class Frame:
    """A message in three pieces, so that messages can share the common one. ``bytes(frame)`` joins them.

    A message that was made in this process is a letter, and becomes bytes when somebody asks for them. One that stays
    in the process is read as a letter: no header, no checksum, and no copy on the host.

    Args:
        head: the header
        common: the piece that all clients of the round share
        single: the piece of this client
        letter: the message that the bytes are made from, in place of them
    """

    def __init__(
        self,
        head: bytes = b"",
        common: bytes | memoryview = b"",
        single: bytes | memoryview = b"",
        letter: Letter | None = None,
    ) -> None:
        self.letter, self._pieces = letter, None if letter else (head, common, single)
        self._checksum: int | None = None

    @property
    def pieces(self) -> tuple[bytes, bytes | memoryview, bytes | memoryview]:
        """Header, common piece and single piece."""
        if self._pieces is None:
            assert self.letter is not None
            head, self._checksum = _header(self.letter)
            self._pieces = head, self.letter.common.data, self.letter.own.data
        return self._pieces

    @property
    def head(self) -> bytes:
        """The header."""
        return self.pieces[0]

    @property
    def common(self) -> bytes | memoryview:
        """The piece that all clients of the round share."""
        return self.pieces[1]

    @property
    def single(self) -> bytes | memoryview:
        """The piece of this client."""
        return self.pieces[2]

    @property
    def checksum(self) -> int | None:
        """The CRC-32 of the message, if this process or its worker computed it when it made the pieces."""
        return self._checksum if self.pieces else None

    @classmethod
    def of(cls, data: "bytes | Frame") -> "Frame":
        """Split the bytes of a message into pieces, as its header and table say. The single piece is not copied."""
        if isinstance(data, Frame):
            return data
        _, _, _, _, arrays, *_ = _checked_head(data[: HEADER.size], len(data))
        rest = memoryview(data)[HEADER.size :]
        entries, at = _read_table(rest, arrays)
        at += sum(entry.nbytes for entry in entries)
        if at > len(rest):
            raise PayloadError(f"arrays run past the message's {len(data):,} bytes")
        return cls(data[: HEADER.size], bytes(rest[:at]), rest[at:])

    def __len__(self) -> int:
        if self._pieces is None:
            assert self.letter is not None
            return HEADER.size + self.letter.own.nbytes + self.letter.common.nbytes
        return sum(map(len, self._pieces))

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def with_checksum(self, checksum: int | None) -> "Frame":
        """Return the frame with the checksum that was computed from its pieces, so that it is not computed again."""
        self._checksum = checksum
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Frame, (self.head, bytes(self.common), bytes(self.single))


class Head(NamedTuple):
    """The fields of a header, without those about the pieces."""

    kind: Kind
    round: int
    client: int
    codec: int
    weight: float
    exchange: int = 0
    version: int = 0


class Counts(NamedTuple):
    """The numbers of arrays in the two pieces of a message."""

    common: int
    single: int


def codec_id(description: str) -> int:
    """Return the id of a codec in a header: the CRC-32 of its description."""
    return zlib.crc32(description.encode())


def checksum(piece: bytes | memoryview, before: int = 0) -> int:
    """Return the CRC-32 of a piece, continued from the checksum of the pieces before it."""
    return chunks.crc32(piece, before)


def pack(message: Message) -> bytes:
    """Encode a message. Its tensors may be on any device."""
    if twice := message.common.keys() & message.payload.keys():
        raise PayloadError(f"array {min(twice)!r} is in both pieces of the message")
    return bytes(address(message.head, Body.of(message.payload), Body.of(message.common)))


def address(head: Head, own: Body, common: Body = NOTHING, group: Rows | None = None, row: int = 0) -> Frame:
    """Return a message with this header and these pieces; its bytes are made when they are asked for."""
    for name, most in (("round", 2**32), ("client", 2**32), ("codec", 2**32), ("exchange", 2**8), ("version", 2**32)):
        value = getattr(head, name)
        if not 0 <= value < most:
            raise PayloadError(f"{name} must be from 0 to {most - 1:,}, got {value}")
    if head.kind not in KINDS:
        raise PayloadError(f"kind must be 'down' or 'up', got {head.kind!r}")
    _check_weight(head.weight)
    return Frame(letter=Letter(head, own, common, group, row))


def _header(letter: Letter) -> tuple[bytes, int]:
    """Return the header of a message as bytes, and the checksum of the message."""
    head, own, common = letter[:3]
    which = KINDS.index(head.kind), head.exchange, common.arrays, own.arrays
    numbers = head.round, head.version, head.client, head.codec, head.weight, common.nbytes + own.nbytes
    checked = HEADER.pack(MAGIC, VERSION, *which, *numbers, 0)[:CHECKED]
    whole = checksum(checked, checksum(own.data, common.checksum) if common.arrays else own.checksum)
    return checked + struct.pack("<I", whole), whole


def sizes(message: Message) -> dict[str, int]:
    """Bytes by array name, and of header and tables as ``overhead``; they sum to the length of the packed message."""
    return summed(Body.of(message.payload), Body.of(message.common))


def summed(*pieces: Body) -> dict[str, int]:
    """Bytes of a message with these pieces, by array name; header and tables are the overhead."""
    overhead = HEADER.size + sum(piece.sizes[OVERHEAD] for piece in pieces)
    return {name: n for piece in pieces for name, n in piece.sizes.items()} | {OVERHEAD: overhead}


def piece_size(payload: Payload) -> int:
    """Return the number of bytes of a piece with these arrays."""
    entries = _entries(payload)
    return len(_table(entries)) + sum(entry.nbytes for entry in entries)


def _entries(payload: Payload) -> list[ArrayEntry]:
    if len(payload) > 0xFFFF:
        raise PayloadError(f"a message holds at most 65,535 arrays, got {len(payload):,}")
    for name, tensor in payload.items():
        if not _named_well(name):
            raise PayloadError(f"array name {name!r} must be {NAMES}")
        if tensor.dim() != 1:
            raise PayloadError(f"{name!r} must have 1 dimension, got {tensor.dim()}")
        if tensor.dtype not in CODES:
            raise PayloadError(f"{name!r} is {_short(tensor.dtype)}, which the wire format does not support")
    return [ArrayEntry(name, payload[name].dtype, payload[name].numel()) for name in sorted(payload)]


def _named_well(name: str) -> bool:
    return 1 <= len(name) <= 255 and name.isascii() and name.isprintable() and name != OVERHEAD


def _check_weight(weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise PayloadError(f"weight must be finite and at least 0, got {weight}")


def _table(entries: list[ArrayEntry]) -> bytes:
    return b"".join(
        bytes([len(entry.name)]) + entry.name.encode() + bytes([CODES[entry.dtype][0]]) + varint(entry.count)
        for entry in entries
    )


def varint(number: int) -> bytes:
    """Return a number that is not negative in LEB128."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _joined(table: bytes, tensors: list[Tensor]) -> bytes | memoryview:
    """Return a table and the bytes of tensors after each other.

    From a GPU, the bytes go straight to pinned memory, which torch uses again and again: this is several times faster.
    """
    if not any(tensor.is_cuda for tensor in tensors):
        return b"".join([table, *map(array_bytes, tensors)])
    pieces = [tensor.detach().contiguous().view(torch.uint8) for tensor in tensors]
    sizes = [len(table), *map(len, pieces)]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    first, *places = buffer.split(sizes)
    first.numpy()[:] = np.frombuffer(table, np.uint8)
    for place, piece in zip(places, pieces, strict=True):
        place.copy_(piece)
    return buffer.numpy().data


def array_bytes(tensor: Tensor) -> memoryview:
    """Return the little-endian bytes of a tensor, which may be on any device."""
    if tensor.is_cuda:
        return memoryview(_joined(b"", [tensor]))
    array: npt.NDArray[Any] = _plain(tensor.detach().cpu().contiguous()).numpy()
    return array.astype(CODES[tensor.dtype][1], copy=False).view(np.uint8).data


def _plain(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def unpack(data: bytes | Frame, device: torch.device = CPU) -> Message:
    """Decode a message, with its arrays on a device. Raise ``PayloadError`` with the reason if it is refused."""
    frame = Frame.of(data)
    head, counts = read_head(frame)
    pieces = (frame.common, counts.common), (frame.single, counts.single)
    common, own = (read_piece(piece, arrays, device) for piece, arrays in pieces)
    if twice := common.keys() & own.keys():
        raise PayloadError(f"array {min(twice)!r} is in both pieces of the message")
    return Message(*head[:5], own, head.exchange, head.version, common)


def read_head(frame: Frame, common: int | None = None) -> tuple[Head, Counts]:
    """Check the header and the checksum, and return the fields. ``common`` is the checksum of the common piece."""
    _, _, kind, exchange, shared, own, round, model, client, codec, weight, _, wanted = _checked_head(
        frame.head, len(frame)
    )
    found = frame.checksum
    if found is None:
        before = checksum(frame.common) if common is None else common
        found = checksum(frame.head[:CHECKED], checksum(frame.single, before))
    if found != wanted:
        raise PayloadError(f"message has checksum {found:08x}, its header says {wanted:08x}")
    if kind >= len(KINDS):
        raise PayloadError(f"message has kind {kind}, known are 0 (down) and 1 (up)")
    _check_weight(weight)
    return Head(KINDS[kind], round, client, codec, weight, exchange, model), Counts(shared, own)


def _checked_head(head: bytes, total: int) -> tuple[Any, ...]:
    """Return the fields of a header. Raise ``PayloadError`` for a wrong magic, version or total length."""
    if len(head) < HEADER.size:
        raise PayloadError(f"message holds {total} bytes, a header alone has {HEADER.size}")
    fields = HEADER.unpack(head)
    magic, version, length = fields[0], fields[1], fields[-2]
    if magic != MAGIC:
        raise PayloadError(f"message begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise PayloadError(f"message has version {version}, this release reads version {VERSION}")
    if total != HEADER.size + length:
        raise PayloadError(f"message holds {total} bytes, its header says {HEADER.size + length}")
    return fields


def read_sizes(frame: Frame) -> dict[str, int]:
    """Return the number of bytes by array name, from the tables of a message."""
    _, counts = read_head(frame)
    found, overhead = dict[str, int](), HEADER.size
    for piece, arrays in ((frame.common, counts.common), (frame.single, counts.single)):
        view = memoryview(piece)
        entries, table = _read_table(view, arrays)
        _check_room(view, entries, table)
        found |= {entry.name: entry.nbytes for entry in entries}
        overhead += table
    return found | {OVERHEAD: overhead}


def read_piece(piece: bytes | memoryview, arrays: int, device: torch.device = CPU) -> Payload:
    """Decode a piece with this number of arrays. The arrays are copies, on a device.

    They share one buffer. A GPU gets it in one transfer from pinned memory, or from the piece, if that is in pinned
    memory. The bytes are used as they are: torch runs on little-endian machines.
    """
    view = memoryview(piece)
    entries, at = _read_table(view, arrays)
    _check_room(view, entries, at)
    starts = _aligned(entries)
    source = _pinned(view) if device.type == "cuda" and entries else None
    if source is None:
        buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
        for entry, start in zip(entries, starts, strict=False):
            bytes_ = np.frombuffer(view, np.uint8, entry.nbytes, at)
            chunks.copy(bytes_, buffer.numpy()[start : start + entry.nbytes])
            at += entry.nbytes
        buffer = buffer.to(device, non_blocking=True)
    else:
        buffer = torch.empty(starts[-1], dtype=torch.uint8, device=device)
        for entry, start in zip(entries, starts, strict=False):
            buffer[start : start + entry.nbytes].copy_(source[at : at + entry.nbytes])
            at += entry.nbytes
    pieces = ((entry, buffer[start : start + entry.nbytes]) for entry, start in zip(entries, starts, strict=False))
    return {entry.name: bytes_.view(entry.dtype) for entry, bytes_ in pieces}


def _pinned(view: memoryview) -> Tensor | None:
    """Return the bytes of a piece as a tensor, if they are in pinned memory, which is never read-only."""
    found = None if view.readonly else torch.frombuffer(view, dtype=torch.uint8)
    return found if found is not None and found.is_pinned() else None


def _aligned(entries: Sequence[ArrayEntry]) -> list[int]:
    """Return the start of each array in a buffer, and the length of the buffer."""
    return [0, *accumulate(-(-entry.nbytes // ALIGNMENT) * ALIGNMENT for entry in entries)]


def _check_room(view: memoryview, entries: list[ArrayEntry], at: int) -> None:
    nbytes = sum(entry.nbytes for entry in entries)
    if nbytes != len(view) - at:
        raise PayloadError(f"arrays hold {len(view) - at:,} bytes, the table says {nbytes:,}")


def _read_table(view: memoryview, arrays: int) -> tuple[list[ArrayEntry], int]:
    entries: list[ArrayEntry] = []
    at = 0
    for _ in range(arrays):
        entry, at = _read_entry(view, at)
        before = entries[-1].name if entries else ""
        if before >= entry.name:
            raise PayloadError(f"array {entry.name!r} comes after {before!r}: names must be in ascending order")
        entries.append(entry)
    return entries, at


def _read_entry(view: memoryview, at: int) -> tuple[ArrayEntry, int]:
    length, at = _read_byte(view, at)
    name = bytes(view[at : at + length]).decode("latin-1")  # decodes any byte, so that the error can show the name
    if len(name) != length:
        raise PayloadError(f"table ends inside a name of {length} bytes")
    if not _named_well(name):
        raise PayloadError(f"array name {name!r} must be {NAMES}")
    code, at = _read_byte(view, at + length)
    if code not in TYPES:
        raise PayloadError(f"{name!r} has type code {code}, known are {min(TYPES)} to {max(TYPES)}")
    count, at = read_varint(view, at)
    return ArrayEntry(name, TYPES[code], count), at


def _read_byte(view: memoryview, at: int) -> tuple[int, int]:
    if at >= len(view):
        raise PayloadError(f"table runs past the body's {len(view)} bytes")
    return view[at], at + 1


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it. Raise ``PayloadError`` if it is not canonical."""
    number = 0
    for shift in range(0, 63, 7):
        group, at = _read_byte(view, at)
        number |= (group & 0x7F) << shift
        if group < 0x80:
            if group == 0 and shift > 0:
                raise PayloadError(f"count {number} is not encoded in the shortest form")
            return number, at
    raise PayloadError("a count has more than 63 bits")


def expect(payload: Payload, name: str, dtype: torch.dtype, count: int | None) -> Tensor:
    """Return an array of a payload. Raise ``PayloadError`` if it is missing or has another type or count.

    Codecs call it to read a payload: ``[count]``, or ``[K, count]`` of the messages of a group, which are checked
    together. With ``None``, it is the array of one message, of any length. What comes over a link has one dimension.
    """
    tensor = payload.get(name)
    if tensor is not None and tensor.dtype == dtype and tensor.dim() in (1, 2):
        any_length = count is None and tensor.dim() == 1
        if any_length or tensor.shape[-1] == count:
            return tensor
    wanted = f"expected {'' if count is None else f'{count:,} '}{_short(dtype)} values named {name!r}"
    if tensor is None:
        raise PayloadError(f"{wanted}, got {', '.join(map(repr, sorted(payload))) or 'an empty payload'}")
    shape = "" if tensor.dim() == 1 else f" in {tensor.dim()} dimensions"
    raise PayloadError(f"{wanted}, got {tensor.numel():,} {_short(tensor.dtype)} values{shape}")


def finite(tensor: Tensor, name: str) -> Tensor:
    """Return the tensor. Raise ``PayloadError`` if it contains an infinity or a NaN."""
    if not all_finite(tensor):
        bad = int((~torch.isfinite(tensor)).sum())
        raise PayloadError(f"{name!r} holds {bad:,} of {tensor.numel():,} {NOT_FINITE}")
    return tensor


def all_finite(tensor: Tensor) -> bool:
    """Return whether a tensor contains neither an infinity nor a NaN.

    A sum is finite only if all its terms are, and faster than an elementwise test. The test is needed only if the sum
    is not finite, because large finite values may overflow.
    """
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
