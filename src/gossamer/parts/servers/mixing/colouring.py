"""Edge colouring of a bipartite multigraph: rounds for pairs, so that nobody has two pairs in one round.

By Kőnig's theorem as many colours suffice as the largest number of edges at a vertex. No colouring has fewer. The proof
is the algorithm: an edge takes a colour that is free at both of its ends. If there is none, let colour a be free at the
left end and b at the right end. The path from the right end with edges of colours a, b, a, ... cannot reach the left
end. Swapping the two colours on it makes a free at both ends (Kempe's alternating paths).

Edges are coloured in a random order, so that the colouring is random too. Colours are tried from a rotating start, so
that they have similar numbers of edges.
"""

from array import array

import numpy as np
import numpy.typing as npt

from gossamer.core.random import Key, fold, permutation

Indices = npt.NDArray[np.int64]
"""Numbers of vertices, edges or colours."""


def largest_degree(left: Indices, right: Indices) -> int:
    """Return the largest number of edges at a vertex; edge e joins ``left[e]`` and ``right[e]``.

    >>> largest_degree(np.array([0, 0, 1]), np.array([0, 1, 1]))
    2
    """
    return max((int(np.bincount(ends).max()) for ends in (left, right) if len(ends)), default=0)


def edge_colours(left: Indices, right: Indices, key: Key) -> Indices:
    """Return a random proper colouring: the colour of each edge, from 0 to ``largest_degree`` - 1.

    The order of the colours is random as well. The time is proportional to the number of edges times the length of the
    swapped paths, which are short unless all vertices have the largest degree.
    """
    count = largest_degree(left, right)
    if not count:
        return np.zeros(0, dtype=np.int64)
    order = permutation(fold(key, "edges"), len(left))
    graph = _Coloured(int(left.max()) + 1, int(right.max()) + 1, count)
    for number, (u, v) in enumerate(zip(left[order].tolist(), right[order].tolist(), strict=True)):
        graph.add(u, v, number % count)
    found = np.empty(len(left), dtype=np.int64)
    found[order] = graph.colours
    return permutation(fold(key, "colours"), count)[found]


class _Coloured:
    """A bipartite graph with a proper colouring, to which edges are added."""

    def __init__(self, left: int, right: int, count: int) -> None:
        self.count = count
        self.ends: tuple[list[int], list[int]] = [], []  # the two ends of each edge
        self.colours: list[int] = []
        # For both sides: the free colours of each vertex as bits, and its edge of each colour.
        self.free = [(1 << count) - 1] * left, [(1 << count) - 1] * right
        self.edges = array("i", [-1]) * (left * count), array("i", [-1]) * (right * count)

    def add(self, u: int, v: int, first: int) -> None:
        """Add an edge. Colours that are free at both ends are tried from ``first`` on."""
        both = self.free[0][u] & self.free[1][v]
        if both:
            colour = first + _lowest(both >> first) if both >> first else _lowest(both)
        else:
            colour = _lowest(self.free[0][u])
            self._swap(v, colour, _lowest(self.free[1][v]))
        edge = len(self.colours)
        self.colours.append(colour)
        for side, at in enumerate((u, v)):
            self.ends[side].append(at)
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


def _lowest(bits: int) -> int:
    """Return the number of the lowest set bit."""
    return (bits & -bits).bit_length() - 1
