"""The epsilon of DP-FTRL (Kairouz et al., 2021, https://arxiv.org/abs/2103.00039), without sampling of clients.

The server releases the running sum of all rounds as nodes of a binary tree over rounds. Each node has Gaussian noise of
z times the clipping norm. An update is in one node of each level, so a client that takes part once in a tree over n
rounds changes the vector of all nodes by at most sqrt(h) times the clipping norm, with h = floor(log2 n) + 1 levels
(Theorem 4.1). A tree is one Gaussian mechanism with z / sqrt(h), and trees between restarts are composed.

If a client may come again after b rounds, it takes part up to k = ceil(n / b) times in a tree, and up to
m_l = min(k, ceil(2^l / b)) times in a node of level l. Counts c per node of a level with sum k and maximum m_l have
sum c^2 <= k m_l, so the squared sensitivity is at most the sum of k m_l over the levels. It is h for k = 1.

Neighbours: the contribution of one client is zero.
"""

import math
from dataclasses import dataclass

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
    """

    noise: float
    restart: int | None
    separation: int

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon of all trees as one Gaussian mechanism."""
        if not rounds:
            return 0.0
        whole, rest = divmod(rounds, self.restart) if self.restart else (0, rounds)
        each = squared_sensitivity(self.restart, self.separation) if self.restart else 0
        # A repeated round draws the nodes anew that it completes: at most one of each level.
        longest = min(rounds, self.restart or rounds)
        redrawn = sum(
            min(math.ceil(longest / self.separation), math.ceil(2**level / self.separation)) ** 2
            for level in range(longest.bit_length())
        )
        square = whole * each + squared_sensitivity(rest, self.separation) + again * redrawn
        return exact_epsilon(self.noise / math.sqrt(square), delta)


def squared_sensitivity(rounds: int, separation: int) -> int:
    """Return the squared sensitivity of a tree over rounds, in units of the clipping norm.

    >>> squared_sensitivity(8, 8), squared_sensitivity(8, 4), squared_sensitivity(0, 1)
    (4, 10, 0)
    """
    visits = math.ceil(rounds / separation)
    return sum(visits * min(visits, math.ceil(2**level / separation)) for level in range(rounds.bit_length()))


def tree(
    noise_multiplier: float,
    participation: Participation,
    restart: int | None = None,
    *,
    protects_from: str = ANYBODY,
) -> Guarantee:
    """Return the guarantee of tree noise (DP-FTRL).

    Args:
        noise_multiplier: standard deviation of the noise of a node divided by the clipping norm
        participation: who takes part, with the number of rounds between two rounds of a client
        restart: rounds after which a new tree begins; none means never
        protects_from: who learns no more than epsilon
    """
    check_noise(noise_multiplier)
    require((restart is None or restart >= 1, wrong_argument("restart", restart, "must be at least 1, or none")))
    separation = participation.separation
    trees = f"a new tree every {restart} rounds" if restart else "one tree"
    words = f"tree noise, {noise_multiplier:g} times the clipping norm per node, {trees}"
    about = f"no sampling: a client takes part at most once in {separation} rounds"
    return TreeGaussian("client", "zero-out", words, about, protects_from, noise_multiplier, restart, separation)
