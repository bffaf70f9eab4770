"""Gaussian noise: hostile clients add noise to their update.

P. Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
https://arxiv.org/abs/1703.02757, test with updates from a Gaussian distribution. Here the noise is added to the update,
and its standard deviation is a multiple of the root mean square of the update, so that one strength suits all networks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.core.errors import wrong
from gossamer.core.random import Key
from gossamer.core.random.noise import draw
from gossamer.core.tree import add, device
from gossamer.core.types import Layout, Params
from gossamer.parts.attacks.base import UpdateAttack


@dataclass(frozen=True)
class Noise(UpdateAttack):
    """Add Gaussian noise to updates.

    Args:
        strength: the standard deviation, as a multiple of the root mean square of the update
        share: the share of hostile clients
    """

    strength: float = 10.0
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the strength."""
        return [(0 < self.strength < math.inf, wrong(self, "strength", "must be a positive number"))]

    def update(self, change: Params, key: Key) -> Params:
        """Return the update with noise, drawn for all entries in name order."""
        layout = Layout.of(change)
        size = layout.flatten(change).square().mean().sqrt()
        noise = draw("gauss", 1.0, key, layout.size, device=device(change)).to(layout.dtype)
        return add(change, layout.unflatten(noise * (size * self.strength)))
