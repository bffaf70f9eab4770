"""What server and clients of a round both know: the sizes of the protocol, and the form of its messages."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect

KEYS, SHARES, TRAIN, UNMASK = "keys", "shares", "train", "unmask"
PHASES = (KEYS, SHARES, TRAIN, UNMASK)


class Rules(NamedTuple):
    """The sizes of the protocol in a round.

    Args:
        clients: the number of clients at the start
        degree: the number of neighbours of each client
        needed: the number of shares that reconstruct a secret
        quorum: the number of clients that must be left in every phase
    """

    clients: int
    degree: int
    needed: int
    quorum: int


def tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor.

    >>> tensor(b"ab")
    tensor([97, 98], dtype=torch.uint8)
    """
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def raw(array: Tensor) -> bytes:
    """Return the bytes of a tensor of uint8."""
    return array.cpu().numpy().tobytes()


def expect_bytes(payload: Payload, name: str, count: int) -> bytes:
    """Return an array of bytes of a payload."""
    return raw(expect(payload, name, torch.uint8, count))


def pieces(data: bytes, size: int) -> list[bytes]:
    """Return bytes in pieces of a size.

    >>> pieces(b"abcd", 2)
    [b'ab', b'cd']
    """
    return [data[at : at + size] for at in range(0, len(data), size)]


def expect_number(payload: Payload, name: str, least: int) -> int:
    """Return a number of a payload that is not below ``least``."""
    if (number := int(expect(payload, name, torch.int64, 1))) < least:
        raise PayloadError(f"{name!r} must be at least {least}, got {number}")
    return number
