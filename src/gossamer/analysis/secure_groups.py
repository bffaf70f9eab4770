"""The smallest group of honest clients whose sum an active server can open, under the rules of ``SecAgg``.

The list of keys is given: n clients, of which c collude with the server. The server chooses who colludes, who completes
the setup, whom it calls lost, and what it says to whom. It can send any message. Let q be the quorum, t the number of
needed shares, k the degree, and h = k / 2.

**One list.** An honest client agrees to one list of survivors, and reveals shares after q clients have agreed to the
same one. Two lists with q clients each share at least 2 q - n clients, of which more than c are honest if 2 q > n + c:
there is one list S. Otherwise, a client that is in one list and not in the other can be opened alone.

**One secret.** So honest clients reveal shares of the self mask of each client of S, and of the key of each other one.
With fewer than t colluding members, the server has one of both secrets: of a client outside of S no self mask, of a
client of S no key. With t of them, any client of theirs can be opened alone.

**One piece.** What is left are masks between honest clients of S. All of them have signed that they saw the same list,
so that these masks cancel in the sum of a connected piece of the graph, and in no sum of fewer clients. S has q clients
at least, so a graph in one piece opens q - c at least: that is reached by colluding clients in S.

- A complete graph is in one piece.
- In a sparse graph, two pieces are apart in two places of the ring, with h consecutive clients each that are lost or
  collude. At least ceil(h / 2) of them are in S, since clients have checked that. So c >= 2 ceil(h / 2).
- If a piece is cut off, each of its clients has t - 1 neighbours in S: the others of the piece, or colluding ones. So
  it has at least t - c clients.

``smallest_group`` is the resulting bound, which is exact for a complete graph. ``smallest_opened`` tries all sets of
colluding clients and all lists, for small cohorts. ``smallest_cut`` finds by a maximum flow how many clients must
collude to cut off survivors of a given list.
"""

from collections import deque
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import numpy.typing as npt

from gossamer.core.extras import need
from gossamer.parts.secure.rules import Graph, Rules, kept

Flags = npt.NDArray[np.bool_]


def smallest_group(rules: Rules, colluding: int) -> int:
    """Return a lower bound on the honest clients in any sum that a server can open, with this number of colluding ones.

    >>> smallest_group(Rules(100, 99, 67, 67), 10), smallest_group(Rules(100, 99, 67, 67), 34)
    (57, 1)
    """
    if 2 * rules.quorum <= rules.clients + colluding or colluding >= rules.needed:
        return 1
    if rules.degree >= rules.clients - 1 or 2 * kept(rules.degree // 2) > colluding:
        return max(rules.quorum, rules.fewest) - colluding
    return max(1, rules.needed - colluding)


def smallest_opened(rules: Rules, colluding: int, seed: bytes = bytes(32)) -> int:
    """Return the same number for one graph exactly, by trying all lists of survivors and all sets of colluding clients.

    It assumes the first two arguments of the module: one list, and one secret of each client.
    """
    graph, least = Graph(rules.clients, rules.degree, seed), rules.clients
    for lost in range(rules.clients - max(rules.quorum, rules.fewest) + 1):
        for gone in combinations(range(rules.clients), lost):
            if graph.sound(flags(rules.clients, gone), rules.needed):
                continue
            survivors = set(range(rules.clients)).difference(gone)
            for bad in combinations(range(rules.clients), colluding):
                least = min(least, *map(len, pieces(graph, survivors.difference(bad))))
    return least


def flags(clients: int, gone: Iterable[int]) -> Flags:
    """Return true for each client but those that are gone."""
    there = np.ones(clients, np.bool_)
    there[list(gone)] = False
    return there


def pieces(graph: Graph, clients: set[int]) -> list[set[int]]:
    """Return the connected pieces of some clients of a graph."""
    left, found = set(clients), []
    while left:
        piece, waiting = set[int](), deque([min(left)])
        while waiting:
            if (at := waiting.popleft()) not in piece:
                piece.add(at)
                waiting.extend(left.intersection(graph.neighbours(at)) - piece)
        found.append(piece)
        left -= piece
    return found


def thinned(rules: Rules, seed: bytes = bytes(32)) -> tuple[Graph, Flags, int, int]:
    """Return a list of survivors that is easy to cut, to which clients still agree, and two clients on its two sides.

    As many clients as clients accept are lost in two places of the ring, opposite to each other.
    """
    graph, h = Graph(rules.clients, rules.degree, seed), rules.degree // 2
    there, gaps = np.ones(rules.clients, np.bool_), (0, rules.clients // 2)
    for start in gaps:
        for step in range(1, h, 2):
            place = graph.ring[(start + step) % rules.clients]
            there[place] = False
            if graph.sound(there, rules.needed) or there.sum() < max(rules.quorum, rules.fewest):
                there[place] = True
    # In the middle between the two places, on both sides.
    middle = (rules.clients // 2 - h) // 2 + h
    one, other = (graph.ring[(start + middle) % rules.clients] for start in gaps)
    return graph, there, one, other


def smallest_cut(graph: Graph, survivors: Flags, one: int, other: int) -> int:
    """Return how many other clients must be removed to separate two survivors, which are no neighbours.

    By Menger's theorem, it is the largest flow from one to the other if one unit can pass each client.
    """
    flows, sparse = need("scipy.sparse.csgraph"), need("scipy.sparse")
    left, size = np.flatnonzero(survivors).tolist(), graph.size
    # A client is an edge of capacity 1, from its entry to its exit.
    edges = [(at, size + at, size if at in (one, other) else 1) for at in left]
    edges += [(size + at, to, size) for at in left for to in graph.neighbours(at) if survivors[to]]
    rows, columns, capacities = zip(*edges, strict=True)
    network = sparse.csr_matrix((np.array(capacities, np.int32), (rows, columns)), shape=(2 * size, 2 * size))
    return int(flows.maximum_flow(network, one, size + other).flow_value)
