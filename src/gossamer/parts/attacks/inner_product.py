"""Inner product manipulation: hostile clients send a small multiple of the opposite of the mean update.

C. Xie, O. Koyejo and I. Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation,
https://arxiv.org/abs/1903.03936. The mean is that of the hostile clients' own honest updates. A small strength passes
median and Krum, because the update is near the others; a large one reverses a plain mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.core.errors import wrong
from gossamer.core.types import Params
from gossamer.parts.attacks.base import Collusion, Scene


@dataclass(frozen=True)
class InnerProduct(Collusion):
    """Send ``-strength`` times the mean of the hostile clients' updates.

    Args:
        strength: the factor, the paper's epsilon
        share: the share of hostile clients
    """

    strength: float = 0.5
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the strength."""
        return [(0 < self.strength < math.inf, wrong(self, "strength", "must be a positive number"))]

    def craft(self, scene: Scene) -> Params:
        """Return the opposite of the mean, scaled."""
        return {name: mean * -self.strength for name, mean in scene.mean.items()}
