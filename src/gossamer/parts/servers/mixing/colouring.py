"""Edge colouring of a bipartite multigraph: rounds for pairs, so that nobody has two pairs in one round.

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
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core.random import Key, fold, permutation

Indices = npt.NDArray[np.integer[Any]]
"""Numbers of vertices, edges or colours."""

Colours = npt.NDArray[np.int32]
"""The colour of each edge, or -1. Of many edges, 32-bit numbers take half of the memory."""

MANY = 10_000
"""From this number of edges on, ``latin`` comes first."""


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
