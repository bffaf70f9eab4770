"""What server and clients of a round of SecAgg+ both know: the graph of neighbours, sizes, and what is signed.

The graph is that of Bell et al., CCS 2020, https://eprint.iacr.org/2020/704. The clients of a round, in random order,
form a ring. The neighbours of a client are the ``degree / 2`` clients on each side: a Harary graph. Pairs of neighbours
share masks, and each client gives shares of its two secrets to its neighbours and itself, ``members = degree + 1`` in
all. ``needed`` shares reconstruct a secret.

Every client knows the whole list of clients, and the order of the ring is a hash of the list. So every client computes
the same graph, and checks the whole list of survivors before it agrees to it (``Graph.sound``):

- Each survivor has ``needed`` survivors among its members, itself counted.
- In a sparse graph, at least half of any ``degree / 2`` consecutive clients of the ring are survivors.

Let n be the number of clients, k the degree, t the number of needed shares, h = k / 2 and c the largest number of
clients that collude with the server: the share ``colluding`` of n. The lists of survivors that clients agree to are the
same everywhere (see ``gossamer.parts.secure.secagg``), so honest members reveal one of the two secrets of a client. A
round can fail in three ways:

1. Secrecy: t members of an honest client collude, and give its other secret to the server.
2. Secrecy: without the colluding clients and those that are lost, the graph of survivors falls into pieces, and the
   server learns the sum of each piece. Then h consecutive clients of the ring are no honest survivors, in two places.
   Half of them are survivors, so at least 2 ceil(h / 2) clients in these two places collude.
3. Liveness: more than m - t members of a client are lost, or more than half of h consecutive clients, or so many
   clients that there is no quorum.

The server chooses who is called lost, and knows the ring when it does. Up to ``CERTAIN`` clients, the degree is such
that t > c and 2 ceil(h / 2) > c: the first two failures are impossible, whichever clients collude. Above, colluding
clients are at random places of the ring, and the numbers in the two places and among the members are hypergeometric.
The server can try keys of clients that collude with it until the hash suits it, or leave out clients from the list. So
the probability of the first two is at most 2^-80 for any client of a cohort: 2^-40, the value of the paper, after 2^40
tries. The third one concerns clients that are lost by chance: ``dropouts`` n of them, at random places. It is at most
2^-30, as in the paper. All probabilities are computed exactly.

A cohort of at most ``SMALL`` clients has the complete graph of Bonawitz et al. (CCS 2017,
https://eprint.iacr.org/2017/281), and so has one that no smaller degree protects. It is as safe
as a sparse graph, and stays safe with more colluding clients than stated, as long as 2 quorum > n + c: up to a third of
the clients with the usual threshold, where a sparse graph opens single clients (``analysis.secure_groups``). Beside the
vector and its masks, a simulated round takes 16 ms and 19 kB of uplink per client with 100 clients, server included.
With 200 clients it would take 31 ms and 37 kB, where the sparse graph takes 11 ms and 11 kB.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.bits import bits
from gossamer.core.secure import Ring, SumSegment
from gossamer.parts.secure.primitives import digest, numbered, raw

SECRECY = 2.0**-80
LIVENESS = 2.0**-30
SMALL = 100
"""The largest cohort whose graph is complete by default."""
CERTAIN = 1000
"""The largest cohort whose graph is safe whichever clients collude, if they are no more than the stated share."""
ROUNDING = 1e-9  # 0.1 of 30 clients are 3, although 0.1 * 30 is above 3


class Bounds(NamedTuple):
    """The shares of a cohort that a protocol is chosen for.

    Args:
        threshold: share of the members that reconstruct a secret
        colluding: largest share of clients that help the server
        dropouts: largest share of clients that are lost
    """

    threshold: float
    colluding: float
    dropouts: float


class Failure(NamedTuple):
    """Upper bounds on the probability that a round with the stated shares fails.

    Args:
        secrecy: that the server can learn more than the sum
        liveness: that the sum cannot be known, and the round is refused
    """

    secrecy: float
    liveness: float


def needed(threshold: float, members: int) -> int:
    """Return how many of the members reconstruct a secret: more than half of them.

    >>> needed(2 / 3, 20), needed(0.5, 20)
    (14, 11)
    """
    return max(math.ceil(threshold * members - ROUNDING), members // 2 + 1)


def quorum(clients: int, bounds: Bounds) -> int:
    """Return how many clients must agree to a list of survivors, so that no other list has as many.

    Two lists share at least 2 quorum - n clients, and only colluding ones agree to both.

    >>> quorum(100, Bounds(2 / 3, 0.1, 0.1)), quorum(20, Bounds(0.55, 0.1, 0.1))
    (67, 12)
    """
    return max(needed(bounds.threshold, clients), (clients + count(bounds.colluding, clients)) // 2 + 1)


def count(share: float, clients: int) -> int:
    """Return the largest number of clients that is at most a share of them."""
    return math.floor(share * clients + ROUNDING)


def failure(clients: int, degree: int, bounds: Bounds) -> Failure:
    """Return the probabilities of failure of a graph.

    >>> failure(100, 99, Bounds(2 / 3, 0.1, 0.1))
    Failure(secrecy=0.0, liveness=0.0)
    """
    bad, lost = count(bounds.colluding, clients), count(bounds.dropouts, clients)
    members, need, half = degree + 1, needed(bounds.threshold, degree + 1), degree // 2
    least = quorum(clients, bounds)
    few = float(clients - lost < least)
    if degree >= clients - 1:  # all clients are members of all, and as many shares are needed as make a quorum
        return Failure(float(bad >= least), few)
    exposed = clients * tail(clients - 1, bad, degree, need)
    apart = math.comb(clients, 2) * tail(clients, bad, 2 * half, 2 * kept(half))
    stuck = clients * tail(clients - 1, lost, degree, members - need + 1)
    gaps = clients * tail(clients, lost, half, half - kept(half) + 1)
    return Failure(min(1.0, exposed + apart), min(1.0, few + stuck + gaps))


def kept(consecutive: int) -> int:
    """Return how many of so many consecutive clients of the ring must survive."""
    return -(-consecutive // 2)


def tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that at least ``least`` of ``drawn`` are marked, drawn without replacement.

    >>> tail(10, 5, 2, 1)  # 1 - (5 / 10) (4 / 9)
    0.7777777777777778
    """
    marked = min(marked, population)
    plain = population - marked
    ways = sum(math.comb(marked, x) * math.comb(plain, drawn - x) for x in range(max(0, least), min(marked, drawn) + 1))
    return ways / math.comb(population, drawn)  # whole numbers: only this division rounds


@lru_cache(maxsize=1024)
def smallest_degree(clients: int, bounds: Bounds) -> int:
    """Return the smallest degree that protects a cohort; that of the complete graph if there is none, or if small.

    >>> smallest_degree(20, Bounds(2 / 3, 0.1, 0.1)), smallest_degree(200, Bounds(2 / 3, 0.1, 0.1))
    (19, 60)
    """
    if clients > SMALL:
        most = 0.0 if clients <= CERTAIN else SECRECY
        for degree in range(2, clients - 1, 2):
            found = failure(clients, degree, bounds)
            if found.secrecy <= most and found.liveness <= LIVENESS:
                return degree
    return clients - 1


class Graph:
    """The neighbours of the clients of a list, which are called by their places in it, from 0.

    Args:
        size: the number of clients
        degree: the number of neighbours of each one
        seed: a digest of the list; the order of the ring follows from it
    """

    def __init__(self, size: int, degree: int, seed: bytes) -> None:
        self.size, self.complete = size, degree >= size - 1
        self.half = 0 if self.complete else degree // 2
        draws = [hashlib.sha256(b"gossamer ring" + seed + at.to_bytes(8, "little")).digest() for at in range(size)]
        self.ring = sorted(range(size), key=draws.__getitem__)
        self._place = {client: at for at, client in enumerate(self.ring)}

    def members(self, client: int) -> list[int]:
        """Return the clients with shares of a client's secrets, itself included; number i has the point i + 1."""
        if self.complete:
            return list(range(self.size))
        at = self._place[client]
        return [self.ring[(at + step) % self.size] for step in range(-self.half, self.half + 1)]

    def point(self, client: int, member: int) -> int:
        """Return the point of the share that a member has of a client's secrets."""
        if self.complete:
            return member + 1
        return (self._place[member] - self._place[client] + self.half) % self.size + 1

    def neighbours(self, client: int) -> list[int]:
        """Return the neighbours of a client, in ascending order."""
        return sorted(member for member in self.members(client) if member != client)

    def sound(self, survivors: npt.NDArray[np.bool_], need: int) -> str:
        """Return why no client may agree to a list of survivors; empty if every client may."""
        if self.complete:
            few = int(survivors.sum())
            return "" if few >= need else f"{few} clients survive, {need} are needed"
        order = survivors[self.ring].astype(np.int64)
        among = _windows(order, 2 * self.half + 1)  # of the window that begins h before each client
        held: Any = np.roll(among, self.half)
        if (few := int(held[order > 0].min(initial=self.size))) < need:
            return f"{few} of the members of a survivor survive, {need} are needed"
        if (few := int(_windows(order, self.half).min())) < kept(self.half):
            return f"{few} of {self.half} consecutive clients survive, {kept(self.half)} are needed: a group is cut off"
        return ""


def _windows(order: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the sums of ``length`` consecutive entries of a ring, from each entry on."""
    sums = np.concatenate([[0], np.cumsum(np.concatenate([order, order[: length - 1]]))])
    found: npt.NDArray[np.int64] = sums[length:] - sums[:-length]
    return found


@lru_cache(maxsize=8)
def graph_of(size: int, degree: int, seed: bytes) -> Graph:
    """Return the graph of a list. In a simulation, all clients share one."""
    return Graph(size, degree, seed)


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
