"""False weights: hostile clients claim a huge number of samples, so that a weighted mean is their update alone.

The update is multiplied by a factor, by default -1. A server that weights clients equally is not affected by the claim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.core.errors import wrong
from gossamer.core.random import Key
from gossamer.core.types import Params
from gossamer.parts.attacks.base import UpdateAttack


@dataclass(frozen=True)
class ClaimSamples(UpdateAttack):
    """Claim a number of samples, and multiply updates by a factor.

    Args:
        samples: the claimed number of samples
        factor: the factor of the update
        share: the share of hostile clients
    """

    samples: float = 2.0**40
    factor: float = -1.0
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the numbers."""
        return [
            (1 <= self.samples < math.inf, wrong(self, "samples", "must be at least 1")),
            (math.isfinite(self.factor), wrong(self, "factor", "must be a finite number")),
        ]

    def update(self, change: Params, key: Key) -> Params:
        """Return the update, multiplied by the factor."""
        return {name: tensor * self.factor for name, tensor in change.items()}

    def claim(self, samples: int) -> int:
        """Return the claimed number."""
        return int(self.samples)
