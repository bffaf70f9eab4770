"""Scaling: hostile clients multiply their update by a large factor, so that it outweighs all others.

It is also the second step of model replacement, see E. Bagdasaryan et al., How To Backdoor Federated Learning,
https://arxiv.org/abs/1807.00459.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.core.errors import wrong
from gossamer.core.random import Key
from gossamer.core.types import Params
from gossamer.parts.attacks.base import UpdateAttack


@dataclass(frozen=True)
class Scale(UpdateAttack):
    """Multiply updates by a factor.

    Args:
        factor: the factor; a negative one flips the sign too
        share: the share of hostile clients
    """

    factor: float = 100.0
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the factor."""
        return [(math.isfinite(self.factor), wrong(self, "factor", "must be a finite number"))]

    def update(self, change: Params, key: Key) -> Params:
        """Return the scaled update."""
        return {name: tensor * self.factor for name, tensor in change.items()}
