"""The epsilon of DP-FTRL (Kairouz et al., 2021, https://arxiv.org/abs/2103.00039), without sampling of clients.

The server releases sums of rounds as nodes of a binary tree over rounds. Node i of level l covers the rounds i 2^l + 1
to (i + 1) 2^l. It exists if all of them are over, (i + 1) 2^l <= n after n rounds, and has Gaussian noise of z times
the clipping norm. Two kinds of servers release different nodes:

    honaker       all nodes that exist: the estimates of Honaker use each of them
    otherwise     those with an even index. The n sums of the first t rounds are computed from them, one per binary 1 of
                  t, and they from these sums. A node with an odd index never shows: its parent takes its place

**Sensitivity.** A client that takes part c_v times in the rounds of node v adds a vector of norm at most c_v times the
clipping norm to it, with equality if all its updates are the same vector. So the vector of all released nodes moves by
at most the root of ``sum_v c_v^2``, and no less in the worst case: it is one Gaussian mechanism with z divided by the
largest such root over all patterns of participation. Updates may depend on earlier models (Denisov et al., 2022,
https://arxiv.org/abs/2202.08312); when a client takes part may not. Nodes of other trees, after restarts, are added.

**The largest sum.** A client comes again after b rounds, or later. We go through the tree from its leaves. What the
rest of a pattern sees of a node is: how many rounds of the node were still forbidden (``enter``), how many after it are
(``leave``), the number of visits, and the sum over the nodes inside. A pattern inside of a node that leaves earlier or
as early, with as many visits or more, and a sum that is not smaller, can take the place of another one everywhere, as
sums only grow with visits. So per node size and ``enter`` we keep the patterns that no other one dominates in all
three. These are few (at most 66 for 10^5 rounds and separations up to 3,000), and nodes of the same size share them.
The result is exact; also across restarts, where ``leave`` of one tree is ``enter`` of the next. Visits in every b-th
round are not always the worst pattern: 24 rounds with b = 3 have 88, with a gap of five rounds, and every third round
has 86.

The guarantee is exact for the released nodes. The estimates of Honaker are fewer numbers than nodes, so their own
epsilon may be a little smaller than ours.

Neighbours: the contribution of one client is zero.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gossamer.core.errors import require, wrong_argument
from gossamer.core.privacy import Guarantee, Participation
from gossamer.parts.privacy.accounting import ANYBODY, check_noise, exact_epsilon


@dataclass(frozen=True)
class TreeGaussian(Guarantee):
    """Gaussian noise on the nodes of binary trees.

    Args:
        noise: the noise multiplier of a node
        restart: the number of rounds of a tree; none means one tree for all rounds
        separation: the number of rounds from one participation of a client to the next, at least
        honaker: whether all nodes are released, or those with an even index
    """

    noise: float
    restart: int | None
    separation: int
    honaker: bool = True

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon of all trees as one Gaussian mechanism."""
        if not rounds:
            return 0.0
        return exact_epsilon(self.noise / math.sqrt(self.square(rounds, again)), delta)

    def square(self, rounds: int, again: int = 0) -> int:
        """Return the squared sensitivity, in units of the clipping norm."""
        square: int = squared_sensitivity(rounds, self.separation, self.restart, honaker=self.honaker)
        # A repeated round draws the nodes anew that it completes: at most one of each level.
        levels = range(min(rounds, self.restart or rounds).bit_length())
        return square + again * sum((((1 << level) + self.separation - 1) // self.separation) ** 2 for level in levels)


class Visits(NamedTuple):
    """What a pattern of participation looks like from outside of a node.

    Args:
        leave: the number of rounds after the node in which the client may not take part
        visits: the number of visits
        inside: the sum of squared visits of the released nodes inside, without the node itself
    """

    leave: int
    visits: int
    inside: int


@dataclass
class Patterns:
    """The best patterns of participation, by the level of a node and the number of its first rounds that are forbidden.

    Args:
        separation: the number of rounds from one participation to the next, at least
        honaker: whether all nodes are released, or those with an even index
    """

    separation: int
    honaker: bool
    known: dict[tuple[int, int], tuple[Visits, ...]] = field(default_factory=dict)
    whole: dict[int, list[dict[int, int]]] = field(default_factory=dict)

    def of_node(self, level: int, enter: int) -> tuple[Visits, ...]:
        """Return the patterns in a node that no other pattern dominates."""
        size = 1 << level
        if enter >= size:
            return (Visits(enter - size, 0, 0),)
        if level == 0:
            once = Visits(self.separation - 1, 1, 0)
            return (once,) if self.separation == 1 else (Visits(0, 0, 0), once)
        if (level, enter) in self.known:
            return self.known[level, enter]
        found: dict[tuple[int, int], int] = {}
        for left in self.of_node(level - 1, enter):
            for right in self.of_node(level - 1, left.leave):
                # The left child has an even index, and the right child an odd one.
                odd = right.visits**2 if self.honaker else 0
                inside = left.inside + left.visits**2 + right.inside + odd
                at = right.leave, left.visits + right.visits
                found[at] = max(found.get(at, 0), inside)
        kept: list[Visits] = []
        for (leave, visits), inside in sorted(found.items(), key=lambda each: (each[0][0], -each[0][1])):
            if not any(other.visits >= visits and other.inside >= inside for other in kept):
                kept.append(Visits(leave, visits, inside))
        self.known[level, enter] = tuple(kept)
        return self.known[level, enter]

    def after(self, before: dict[int, int], rounds: int) -> dict[int, int]:
        """Return the largest sums after one more tree over some rounds, by the number of rounds forbidden after it.

        The complete nodes of a tree whose number of rounds is no power of two are those of one complete tree per binary
        1. The roots of these have even indices.
        """
        for level in reversed(range(rounds.bit_length())):
            if not rounds >> level & 1:
                continue
            found: dict[int, int] = {}
            for enter, total in before.items():
                for leave, visits, inside in self.of_node(level, enter):
                    found[leave] = max(found.get(leave, 0), total + inside + visits**2)
            before, most = {}, -1
            for leave, total in sorted(found.items()):
                if total > most:
                    before[leave] = most = total
        return before

    def after_trees(self, trees: int, rounds: int) -> dict[int, int]:
        """Return the largest sums after several trees over the same number of rounds."""
        known = self.whole.setdefault(rounds, [{0: 0}])
        while len(known) <= trees:
            known.append(self.after(known[-1], rounds))
        return known[trees]


_patterns = lru_cache(maxsize=64)(Patterns)


@lru_cache(maxsize=4096)
def squared_sensitivity(rounds: int, separation: int, restart: int | None = None, *, honaker: bool = True) -> int:
    """Return the squared sensitivity of the released nodes, in units of the clipping norm.

    Args:
        rounds: the number of rounds
        separation: the number of rounds from one participation of a client to the next, at least
        restart: the number of rounds of a tree; none means one tree
        honaker: whether all nodes are released, or those with an even index

    >>> squared_sensitivity(8, 8), squared_sensitivity(12, 1), squared_sensitivity(31, 8)
    (4, 148, 19)
    >>> squared_sensitivity(12, 1, honaker=False), squared_sensitivity(20, 8, 8)
    (114, 11)
    """
    found = _patterns(separation, honaker)
    trees, rest = divmod(rounds, restart) if restart else (0, rounds)
    before = found.after_trees(trees, restart) if restart else {0: 0}
    return max(found.after(before, rest).values())


def tree(
    noise_multiplier: float,
    participation: Participation,
    restart: int | None = None,
    *,
    honaker: bool = True,
    protects_from: str = ANYBODY,
) -> Guarantee:
    """Return the guarantee of tree noise (DP-FTRL).

    Args:
        noise_multiplier: standard deviation of the noise of a node divided by the clipping norm
        participation: who takes part, with the number of rounds between two rounds of a client
        restart: rounds after which a new tree begins; none means never
        honaker: whether sums are estimated from all nodes, or computed from those with an even index
        protects_from: who learns no more than epsilon
    """
    check_noise(noise_multiplier)
    require((restart is None or restart >= 1, wrong_argument("restart", restart, "must be at least 1, or none")))
    separation = participation.separation
    trees = f"a new tree every {restart} rounds" if restart else "one tree"
    words = f"tree noise, {noise_multiplier:g} times the clipping norm per node, {trees}"
    about = f"no sampling: a client takes part at most once in {separation} rounds"
    return TreeGaussian(
        "client", "zero-out", words, about, protects_from, noise_multiplier, restart, separation, honaker
    )
