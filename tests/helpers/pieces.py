"""Pieces of messages with any bytes."""

from gossamer.core.wire import OVERHEAD, Body


def piece_of(data: bytes, arrays: int) -> Body:
    """A piece with these bytes, which need not be those of its arrays."""
    piece = Body({})
    piece.names, piece.sizes, piece.nbytes = ["any"] * arrays, {OVERHEAD: 0}, len(data)
    vars(piece)["data"] = data
    return piece
