"""Rotation schedule: which client trains which model in each round of an epoch.

In an epoch each model visits each client for which it has a positive weight (PERM, Algorithm 1,
https://arxiv.org/abs/2310.17761). The paper uses N rounds for N clients, whatever the weights are. Here the pairs of a
model and a host are the edges of a bipartite graph, and the rounds are the colours of an edge colouring. The number of
rounds in an epoch is the largest number of visits of a model or to a host. No schedule has fewer. If all weights are
positive, these are N rounds, and the schedule is a random Latin square.

The colouring is drawn anew for each epoch, and its colours have a random order. A model thus visits its hosts in
uniformly random order, as the analysis of the paper assumes. A pair may have several visits in an epoch.

A table [hosts, rounds] holds the schedule of an epoch: the model that a host trains, or -1. Absent clients are an
extension of the paper. A visit that fails, because the host is absent or its upload is lost, is repeated later:

1. In round t of an epoch, the present hosts have the visits of colour t.
2. A present host without such a visit takes its earliest late visit with a model that no other host has in this round.
3. If some clients are absent, it may also take a visit of a later colour. If all are present, it stays idle: the
   colours alone already give the shortest epoch, and the order of a model's hosts stays uniformly random.

Steps 2 and 3 find the largest possible number of visits, by augmenting paths. If all clients are present and nothing is
lost, an epoch has one round per colour.

**Edge colouring** of a bipartite multigraph gives the rounds, so that nobody has two pairs in one round.

By Kőnig's theorem as many colours suffice as the largest number of edges at a vertex. No colouring has fewer. The proof
is the algorithm: an edge takes a colour that is free at both of its ends. If there is none, let colour a be free at the
left end and b at the right end. The path from the right end with edges of colours a, b, a, ... cannot reach the left
end. Swapping the two colours on it makes a free at both ends (Kempe's alternating paths).

Edges are coloured in a random order, so that the colouring is random too. Colours are tried from a rotating start, so
that they have similar numbers of edges.

Many edges are coloured at once first (``latin``): number the vertices of both sides at random; the edge of numbers i
and j takes the colour i + j modulo the number of colours. In a complete graph this is a random cyclic Latin square, and
no edge is left. Numbers are consecutive within a group of vertices with the same neighbours. Groups that are complete
graphs are therefore coloured completely too. Where two edges at a vertex would have the same colour, one of them waits.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import require
from gossamer.core.random import Key, fold, permutation

Indices = npt.NDArray[np.integer[Any]]
"""Numbers of vertices, edges or colours."""

Colours = npt.NDArray[np.int32]
"""The colour of each edge, or -1. Of many edges, 32-bit numbers take half of the memory."""

MANY = 10_000
"""From this number of edges on, ``latin`` comes first."""

Table = npt.NDArray[np.int32]
"""A schedule: the model that each host trains in each round, or -1."""

Flags = npt.NDArray[np.bool_]
"""One truth value per client, or per visit of a table."""

_LATEST: dict[tuple[bytes, bytes, int, Key], Table] = {}
"""The schedule drawn last: a server asks for it twice when an epoch begins."""


class Pairs(NamedTuple):
    """Pairs of a model and a host.

    Args:
        models: the model of each pair
        hosts: its host
    """

    models: Indices
    hosts: Indices

    def repeated(self, times: Indices) -> "Pairs":
        """Return each pair a number of times; the copies of a pair are neighbours."""
        if (times == 1).all():
            return self
        return Pairs(np.repeat(self.models, times), np.repeat(self.hosts, times))

    @property
    def most(self) -> int:
        """The largest number of pairs of a model or of a host."""
        return largest_degree(self.models, self.hosts)


def draw(pairs: Pairs, clients: int, key: Key) -> Table:
    """Return a random schedule: the model that each host trains in each round, or -1, [hosts, rounds].

    >>> from gossamer.core.random import key
    >>> draw(Pairs(np.array([0, 2, 2]), np.array([0, 1, 2])), 3, key(0)).shape
    (3, 2)
    """
    require((len(pairs.models) == len(pairs.hosts), "draw: pairs must have a model and a host each"))
    of = sha256(pairs.models.tobytes()).digest(), sha256(pairs.hosts.tobytes()).digest(), clients, key
    table = _LATEST.get(of)
    if table is None:
        table = np.full((clients, pairs.most), -1, dtype=np.int32)
        table[pairs.hosts, edge_colours(pairs.models, pairs.hosts, key)] = pairs.models
        _LATEST.clear()
        _LATEST[of] = table
    return table.copy()


def pending(table: Table, done: Flags, clients: int) -> Indices:
    """Return the number of pending visits of each model."""
    return np.bincount(table[(table >= 0) & ~done], minlength=clients)


def carried(table: Table, before: Table, done: Flags) -> Flags:
    """Return which visits of a new table are done, given the table that it replaces within an epoch."""
    left: dict[tuple[int, int], int] = {}
    for host, slot in np.argwhere(done & (before >= 0)).tolist():
        pair = host, int(before[host, slot])
        left[pair] = left.get(pair, 0) + 1
    now = np.zeros(table.shape, dtype=np.bool_)
    for (host, model), count in left.items():
        now[host, np.flatnonzero(table[host] == model)[:count]] = True
    return now


def slot(table: Table, done: Flags, turn: int, host: int, model: int) -> int:
    """Return the pending visit of a model to a host: that of round ``turn`` if there is one, else the first."""
    found = np.flatnonzero((table[host] == model) & ~done[host])
    return turn if turn in found else int(found[0])


def visits(table: Table, done: Flags, turn: int, present: Sequence[int]) -> dict[int, int]:
    """Return the model of each host in a round. Idle hosts are omitted.

    Args:
        table: the schedule of the epoch
        done: which of its visits are done
        turn: the number of rounds since the epoch began
        present: the clients of this round

    >>> table = np.array([[1, -1], [0, 1]], dtype=np.int32)
    >>> visits(table, np.zeros((2, 2), dtype=bool), 0, present=[0, 1])
    {0: 1, 1: 0}
    >>> visits(table, np.zeros((2, 2), dtype=bool), 1, present=[0, 1])
    {0: 1, 1: 0}
    >>> visits(table, np.array([[True, True], [True, False]]), 1, present=[0, 1])
    {1: 1}
    """
    _check(table, done, present)
    everyone = len(present) == len(table)
    options = {host: _options(table[host], done[host], turn, everyone) for host in sorted(present)}
    if turn < table.shape[1]:
        found = {host: models[0] for host, models in options.items() if models and models[0] == table[host, turn]}
    else:
        found = {}
    hosts, closed = {model: host for host, model in found.items()}, set[int]()
    for host in options:
        if host not in found:
            _augment(host, options, found, hosts, closed)
    return dict(sorted(found.items()))


def _options(models: Table, done: Flags, turn: int, everyone: bool) -> list[int]:
    """Return the models that a host may train, best first: due in this round, late, and due later."""
    open_ = np.flatnonzero((models >= 0) & ~done)
    now, late, later = open_[open_ == turn], open_[open_ < turn], open_[open_ > turn]
    slots = np.concatenate((now, late) if everyone else (now, late, later))
    return list(dict.fromkeys(models[slots].tolist()))


def _augment(
    host: int, options: dict[int, list[int]], found: dict[int, int], hosts: dict[int, int], closed: set[int]
) -> None:
    """Give a host a model. Other hosts may change theirs, but none loses its visit.

    ``found`` maps hosts to models, and ``hosts`` models to hosts. After a failed search, the models that it reached are
    ``closed``: no later search can succeed through them.
    """
    reached: dict[int, int] = {}
    queue = [host]
    for current in queue:
        for model in options[current]:
            if model in closed or model in reached:
                continue
            reached[model] = current
            if model not in hosts:
                _shift(model, reached, found, hosts)
                return
            queue.append(hosts[model])
    closed.update(reached)


def _shift(model: int | None, reached: dict[int, int], found: dict[int, int], hosts: dict[int, int]) -> None:
    """Follow the search back to its start: each host on the path takes the model that it reached."""
    while model is not None:
        host = reached[model]
        before = found.get(host)
        hosts[model], found[host] = host, model
        model = before


def _check(table: Table, done: Flags, present: Sequence[int]) -> None:
    count = len(table)
    require(
        (table.ndim == 2 and done.shape == table.shape, "visits: table and done must be matrices of the same shape"),
        (
            len(set(present)) == len(present) and all(0 <= host < count for host in present),
            f"visits: present must have distinct clients from 0 to {count - 1}",
        ),
    )


# The colouring.


def largest_degree(left: Indices, right: Indices) -> int:
    """Return the largest number of edges at a vertex; edge e joins ``left[e]`` and ``right[e]``.

    >>> largest_degree(np.array([0, 0, 1]), np.array([0, 1, 1]))
    2
    """
    return max((int(np.bincount(ends).max()) for ends in (left, right) if len(ends)), default=0)


def edge_colours(left: Indices, right: Indices, key: Key) -> Colours:
    """Return a random proper colouring: the colour of each edge, from 0 to ``largest_degree`` - 1.

    The order of the colours is random as well. The time is proportional to the number of edges times the length of the
    swapped paths, which are short unless all vertices have the largest degree. From ``MANY`` edges on, complete graphs
    have no such paths.
    """
    count = largest_degree(left, right)
    if not count:
        return np.zeros(0, dtype=np.int32)
    found = latin(left, right, count, key) if len(left) >= MANY else np.full(len(left), -1, dtype=np.int32)
    missing = np.flatnonzero(found < 0)
    if len(missing):
        graph = _Coloured(left, right, found, count)
        for number, index in enumerate(permutation(fold(key, "edges"), len(missing)).tolist()):
            graph.add(int(missing[index]), number % count)
        found = np.frombuffer(graph.colours, dtype=np.int32)
    return permutation(fold(key, "colours"), count).astype(np.int32)[found]


def latin(left: Indices, right: Indices, count: int, key: Key) -> Colours:
    """Return random colours of as many edges as have no conflict, and -1 for the others.

    >>> from gossamer.core.random import key
    >>> sorted(latin(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 2, key(0)).tolist())
    [0, 0, 1, 1]
    """
    rows, columns = _numbers(left, right, fold(key, "left")), _numbers(right, left, fold(key, "right"))
    wanted = rows[left]
    wanted += columns[right]
    wanted %= count
    edges = np.arange(len(left), dtype=np.int32)
    alone = np.ones(len(left), dtype=np.bool_)
    for ends in (left, right):
        last = np.full((int(ends.max()) + 1, count), -1, dtype=np.int32)
        last[ends, wanted] = edges
        alone &= last[ends, wanted] == edges
    return np.where(alone, wanted, np.int32(-1))


def _numbers(ends: Indices, others: Indices, key: Key) -> Colours:
    """Return random numbers of the vertices of one side, consecutive where the smallest neighbour is the same."""
    smallest = np.full(int(ends.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(smallest, ends, others)
    order = np.lexsort((permutation(key, len(smallest)), smallest))
    numbers = np.empty(len(order), dtype=np.int32)
    numbers[order] = np.arange(len(order))
    return numbers


class _Coloured:
    """A bipartite graph with a proper colouring of some edges, to which further edges are added."""

    def __init__(self, left: Indices, right: Indices, colours: Colours, count: int) -> None:
        self.count = count
        self.ends = _array(left), _array(right)  # the two ends of each edge
        self.colours = _array(colours)
        # For both sides: the free colours of each vertex as bits, and its edge of each colour.
        self.edges = _table(left, colours, count), _table(right, colours, count)
        self.free = _free(self.edges[0], count), _free(self.edges[1], count)

    def add(self, edge: int, first: int) -> None:
        """Colour an edge. Colours that are free at both ends are tried from ``first`` on."""
        u, v = self.ends[0][edge], self.ends[1][edge]
        both = self.free[0][u] & self.free[1][v]
        if both:
            colour = first + _lowest(both >> first) if both >> first else _lowest(both)
        else:
            colour = _lowest(self.free[0][u])
            self._swap(v, colour, _lowest(self.free[1][v]))
        self.colours[edge] = colour
        for side, at in enumerate((u, v)):
            self.free[side][at] ^= 1 << colour
            self.edges[side][at * self.count + colour] = edge

    def _swap(self, v: int, a: int, b: int) -> None:
        """Swap colours a and b on the path that starts at vertex v of the right side with colour a."""
        side, at, colour, edge, count = 1, v, a, self.edges[1][v * self.count + a], self.count
        path = []
        self.free[1][v] ^= 1 << a | 1 << b
        while edge >= 0:
            path.append(edge)
            side, colour = 1 - side, a + b - colour
            at = self.ends[side][edge]
            edge = self.edges[side][at * count + colour]
        self.free[side][at] ^= 1 << a | 1 << b
        for edge in path:
            for ends, edges in zip(self.ends, self.edges, strict=True):
                edges[ends[edge] * count + self.colours[edge]] = -1
        for edge in path:
            self.colours[edge] = a + b - self.colours[edge]
            for ends, edges in zip(self.ends, self.edges, strict=True):
                edges[ends[edge] * count + self.colours[edge]] = edge


def _array(values: Indices) -> "array[int]":
    """Return the values as an array of 32-bit integers, which Python reads one by one faster than NumPy's."""
    return array("i", values.astype(np.int32).tobytes())


def _table(ends: Indices, colours: Colours, count: int) -> "array[int]":
    """Return the edge of each vertex and colour, or -1, row by row."""
    table = np.full((int(ends.max()) + 1, count), -1, dtype=np.int32)
    edges = np.flatnonzero(colours >= 0)
    table[ends[edges], colours[edges]] = edges
    return _array(table)


def _free(table: "array[int]", count: int) -> list[int]:
    """Return the colours without an edge of each vertex, as bits."""
    bits = np.packbits(np.frombuffer(table, dtype=np.int32).reshape(-1, count) < 0, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in bits]


def _lowest(bits: int) -> int:
    """Return the number of the lowest set bit."""
    return (bits & -bits).bit_length() - 1
