"""The graph of neighbours of SecAgg+ (Bell et al., CCS 2020, https://eprint.iacr.org/2020/704), and its parameters.

The clients of a round, in random order, form a ring. The neighbours of a client are the ``degree / 2`` clients on each
side: a Harary graph. Pairs of neighbours share masks, and each client gives shares of its two secrets to its neighbours
and itself, ``members = degree + 1`` in all. ``needed`` shares reconstruct a secret.

Let n be the number of clients, k the degree and t the number of needed shares, with at most ``colluding`` n clients
that help the server and at most ``dropouts`` n that are lost. The order is random, so the numbers of both among
neighbours are hypergeometric. A round can fail in three ways:

1. Secrecy: colluding neighbours hold enough shares. A server that says to half of the neighbours that a client was
   lost, and to the others that it was not, needs 2t shares of k + 1 members, and colluding members give both. So
   secrets are safe if fewer than 2t - (k + 1) neighbours collude.
2. Secrecy: without colluding and lost clients, the graph falls into pieces, and the server learns the sum of each
   piece. This takes k / 2 consecutive clients in the ring.
3. Liveness: more than k - t neighbours of a client are lost, and its secret cannot be reconstructed.

The probability that this happens to any client is at most n times that of one client. ``degree`` is the smallest even
number with at most 2^-40 for secrecy and 2^-30 for liveness, the values of the paper. The probabilities are computed
exactly. A cohort of at most ``SMALL`` clients has the complete graph of Bonawitz et al. (CCS 2017,
https://eprint.iacr.org/2017/281), and so has one that no smaller degree protects. The second failure is impossible
there, and the others are impossible with the stated shares if ``colluding < 2 threshold - 1`` and
``threshold <= 1 - dropouts``.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gossamer.core.random import Key, permutation

SECRECY = 2.0**-40
LIVENESS = 2.0**-30
SMALL = 33
"""The largest cohort whose graph is complete by default. Its degree is close to that of a hundred clients."""
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


def failure(clients: int, degree: int, bounds: Bounds) -> Failure:
    """Return the probabilities of failure of a graph.

    >>> failure(100, 32, Bounds(2 / 3, 0.1, 0.1)).liveness
    0.0
    """
    bad, lost = (math.floor(share * clients + ROUNDING) for share in (bounds.colluding, bounds.dropouts))
    members, need = degree + 1, needed(bounds.threshold, degree + 1)
    exposed = clients * tail(clients - 1, bad, degree, 2 * need - members)
    apart = 0.0 if degree >= clients - 1 else clients * tail(clients, bad + lost, degree // 2, degree // 2)
    stuck = clients * tail(clients - 1, lost, degree, degree - need + 1)
    # The complete graph has one set of members: a lost client is among the lost ones.
    if degree >= clients - 1:
        stuck = float(clients - lost < need)
    return Failure(min(1.0, exposed + apart), min(1.0, stuck))


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

    >>> smallest_degree(20, Bounds(2 / 3, 0.1, 0.1))
    19
    """
    if clients > SMALL:
        for degree in range(2, clients - 1, 2):
            found = failure(clients, degree, bounds)
            if found.secrecy <= SECRECY and found.liveness <= LIVENESS:
                return degree
    return clients - 1


def neighbourhoods(clients: Sequence[int], degree: int, key: Key) -> dict[int, list[int]]:
    """Return the neighbours of each client in ascending order. The order of the ring follows from a public key."""
    if degree >= len(clients) - 1:
        return {client: [other for other in sorted(clients) if other != client] for client in clients}
    ring = [clients[at] for at in permutation(key, len(clients))]
    steps = [step for half in range(1, degree // 2 + 1) for step in (half, -half)]
    return {client: sorted(ring[(at + step) % len(ring)] for step in steps) for at, client in enumerate(ring)}
