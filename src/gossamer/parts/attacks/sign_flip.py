"""Sign flipping: hostile clients send the opposite of their update.

L. Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods, https://arxiv.org/abs/1811.03761. With a strength of
s, the update is multiplied by -s.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.core.errors import wrong
from gossamer.core.random import Key
from gossamer.core.types import Params
from gossamer.parts.attacks.base import UpdateAttack


@dataclass(frozen=True)
class SignFlip(UpdateAttack):
    """Multiply updates by ``-strength``.

    Args:
        strength: the factor; 1 keeps the norm
        share: the share of hostile clients
    """

    strength: float = 1.0
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the strength."""
        return [(0 < self.strength < math.inf, wrong(self, "strength", "must be a positive number"))]

    def update(self, change: Params, key: Key) -> Params:
        """Return the opposite update."""
        return {name: tensor * -self.strength for name, tensor in change.items()}
