"""Expand compressed files within a limit: a small file can claim, or expand to, more than the memory has.

Sizes that a file claims are checked before anything is read. What a compressed stream really holds is not known before
it is read, so it is read in pieces, and refused as soon as the limit is passed.
"""

import zlib
from pathlib import Path
from typing import Protocol
from zipfile import ZipFile

PIECE = 2**20
"""Bytes that are expanded at once."""


class Stream(Protocol):
    """Something to read bytes from."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        ...


def file_bytes(path: Path, room: int) -> bytes:
    """Return the bytes of a file of at most ``room`` bytes."""
    check(path.stat().st_size, room)
    return path.read_bytes()


def member(archive: ZipFile, name: str, room: int) -> bytes:
    """Return a member of a zip archive, to its end, where its checksum is verified."""
    check(archive.getinfo(name).file_size, room)
    with archive.open(name) as stream:
        return whole(stream, room)


def whole(stream: Stream, room: int) -> bytes:
    """Return all bytes of a stream. Raise ``ValueError`` if there are more than ``room``."""
    limited, pieces = Limited(stream, room), list[bytes]()
    while piece := limited.read(PIECE):
        pieces.append(piece)
    return b"".join(pieces)


class Limited:
    """A stream that raises ``ValueError`` when more than ``room`` bytes are read from it."""

    def __init__(self, stream: Stream, room: int) -> None:
        self._stream, self._room, self._left = stream, room, room

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes."""
        piece = self._stream.read(min(size, PIECE))
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError(f"it expands to more than {self._room:,} bytes, more than the set has")
        return piece


def inflated(data: bytes, room: int) -> bytes:
    """Return what a zlib stream expands to, to its end, where its checksum is verified.

    Raises ``ValueError`` if that is more than ``room`` bytes, or if the stream is cut short.
    """
    engine, pieces, size = zlib.decompressobj(), list[bytes](), 0
    while not engine.eof:
        pieces.append(engine.decompress(data, PIECE))
        data, size = engine.unconsumed_tail, size + len(pieces[-1])
        check(size, room)
        if not (data or pieces[-1]):
            raise ValueError("a compressed stream is cut short")
    return b"".join(pieces)


def check(size: int, room: int) -> None:
    """Raise ``ValueError`` for a size of more than ``room`` bytes."""
    if size > room:
        raise ValueError(f"it holds {size:,} bytes, more than the {room:,} of the set")
