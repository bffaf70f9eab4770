"""What server and clients of a round both know: the sizes of the protocol, what is signed, and the form of messages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.bits import bits
from gossamer.core.secure import Ring, SumSegment
from gossamer.core.types import Payload
from gossamer.core.wire import expect
from gossamer.parts.secure.graph import Graph, graph_of
from gossamer.parts.secure.primitives import digest, numbered

KEYS, SHARES, CHECK, TRAIN, CONSENT, UNMASK = "keys", "shares", "check", "train", "consent", "unmask"
PHASES = (KEYS, SHARES, CHECK, TRAIN, CONSENT, UNMASK)


class Rules(NamedTuple):
    """The sizes of the protocol in a round.

    Args:
        clients: the number of clients in the list of keys
        degree: the number of neighbours of each client
        needed: the number of shares that reconstruct a secret
        quorum: the number of clients that must agree to the list of survivors
        fewest: the number of clients that must be left in every phase, and so in the sum, if it is above the quorum
        accusers: the largest number of clients that may accuse an honest one falsely, together
    """

    clients: int
    degree: int
    needed: int
    quorum: int
    fewest: int = 0
    accusers: int = 0

    @property
    def members(self) -> int:
        """The number of clients with shares of a client's secrets, itself included."""
        return self.degree + 1

    @property
    def margin(self) -> int:
        """The number of disputes that name nobody: half of the members that can be lost, but one if any can.

        Either side of a dispute may lie. A dealer is at fault if more members than this call its shares wrong, and so
        is a member that calls more dealers wrong. As long as no more than this number of clients lie among the
        neighbours of an honest client, it is not named.
        """
        spare = self.members - self.needed
        return max(min(1, spare), spare // 2)

    def graph(self, listed: bytes) -> Graph:
        """Return the graph of neighbours of a list of keys, given its digest."""
        return graph_of(self.clients, self.degree, listed)


class Place(NamedTuple):
    """The round that all digests belong to.

    Args:
        topic: names the run, the round and the exchange
        nonce: a random number of the server
        roster: the digest of the roster
    """

    topic: bytes
    nonce: bytes
    roster: bytes

    def keys_claim(self, client: int, keys: bytes) -> bytes:
        """Return what a client signs with its long-term key: its three public keys of the round."""
        return digest("keys", *self, numbered(client), keys)

    def listed(self, clients: Sequence[int], *keys: bytes) -> bytes:
        """Return the digest of the list of all clients with their keys and signatures."""
        return digest("list", *self, numbered(*clients), *keys)


def dealer_context(listed: bytes, dealer: int) -> bytes:
    """Return what the hashes of a dealing depend on beside its values."""
    return digest("dealing", listed, numbered(dealer))


def inputs_digest(rings: Sequence[Ring], segments: Sequence[SumSegment], models: bytes) -> bytes:
    """Return the digest of what clients train and send: the form of their vectors, and the models."""
    form = (numbered(*ring, segment.limit) for ring, segment in zip(rings, segments, strict=True))
    return digest("inputs", models, *form)


def common_digest(listed: bytes, completed: Tensor, inputs: bytes) -> bytes:
    """Return the digest of all that must be the same at all clients: masks of others do not cancel.

    ``completed`` are the packed bits of the clients that have completed the setup.
    """
    return digest("common", listed, raw(completed), inputs)


def upload_claim(common: bytes) -> bytes:
    """Return what a client signs with its upload."""
    return digest("upload", common)


def consent_claim(common: bytes, survivors: Tensor) -> bytes:
    """Return what a client signs to agree to the packed bits of the survivors."""
    return digest("consent", common, raw(survivors))


def flags(places: Sequence[int] | set[int], size: int) -> Tensor:
    """Return packed bits: ones at these places of a list."""
    found = np.zeros(size, np.bool_)
    found[list(places)] = True
    return bits(torch.from_numpy(found))


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
