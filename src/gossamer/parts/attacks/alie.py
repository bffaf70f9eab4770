"""A Little Is Enough: hostile clients stay within the spread of the updates, and push all entries in one direction.

G. Baruch, M. Baruch and Y. Goldberg, https://arxiv.org/abs/1902.06156, Algorithm 3. The hostile clients of a round send
``mean - z * std`` of their own honest updates. The paper's largest z that a majority still supports is, for n clients
of which m are hostile,

    s = floor(n / 2 + 1) - m,    z = Phi^-1((n - m - s) / (n - m)).

With a small share of hostile clients it is 0 or below, and the attack then sends the mean: give a larger z, such as 1.5
in the paper's experiments. A single hostile client knows one update, whose standard deviation is 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from gossamer.core.errors import wrong
from gossamer.core.types import Params
from gossamer.parts.attacks.base import Collusion, Scene

UNBOUNDED = 3.0
"""The number of standard deviations of a hostile majority, for which the formula has no limit."""


@dataclass(frozen=True)
class LittleIsEnough(Collusion):
    """Send the mean of the hostile clients' updates, moved by ``z`` standard deviations.

    Args:
        z: the number of standard deviations; none is the paper's formula
        share: the share of hostile clients
    """

    z: float | None = None
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the number of standard deviations."""
        return [(self.z is None or math.isfinite(self.z), wrong(self, "z", "must be a finite number or none"))]

    def warning(self, hostile: int, cohort: int) -> str | None:
        """Return why the clients send their honest mean: there is one of them, or z is 0."""
        z = supported(cohort, hostile) if self.z is None else self.z
        if hostile > 1 and z != 0:
            return None
        few, larger = f"{hostile} hostile of {cohort} clients per round", f"a share above {self.share}"
        if hostile == 1:
            return f"it does nothing with {few}: the standard deviation of one update is 0; use {larger}"
        why = "the paper's formula gives z = 0" if self.z is None else "z is 0"
        return f"it does nothing with {few}: {why}; give z, as in alie:1.5, or use {larger}"

    def craft(self, scene: Scene) -> Params:
        """Return the mean minus z standard deviations."""
        z = supported(scene.cohort, scene.hostile) if self.z is None else self.z
        return {name: mean - z * scene.std[name] for name, mean in scene.mean.items()}


def supported(cohort: int, hostile: int) -> float:
    """Return the largest z that enough honest clients support, at least 0, and 3 if the attack needs no support.

    >>> supported(20, 2), round(supported(50, 24), 3)
    (0.0, 1.426)
    """
    honest, supporters = cohort - hostile, cohort // 2 + 1 - hostile
    if honest < 1 or supporters < 1:
        return UNBOUNDED
    return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest)) if honest > supporters else 0.0
