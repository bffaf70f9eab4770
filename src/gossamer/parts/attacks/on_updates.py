"""Attacks on updates: what hostile clients send in place of what they have trained.

    SignFlip          the opposite of the update, times a strength (L. Li et al., RSA, https://arxiv.org/abs/1811.03761)
    Scale             the update, times a large factor, so that it outweighs all others: also the second step of model
                      replacement (E. Bagdasaryan et al., https://arxiv.org/abs/1807.00459)
    Noise             the update with Gaussian noise. P. Blanchard et al., https://arxiv.org/abs/1703.02757, test with
                      updates from a Gaussian distribution. Here its standard deviation is a multiple of the root mean
                      square of the update, so that one strength suits all networks
    ClaimSamples      the update, and a huge number of samples, so that a weighted mean is this update alone. A server
                      that weights clients equally is not affected by the claim
    LittleIsEnough    the mean of the hostile clients' updates, moved within their spread (G. Baruch, M. Baruch and
                      Y. Goldberg, A Little Is Enough, https://arxiv.org/abs/1902.06156, Algorithm 3)
    InnerProduct      a small multiple of the opposite of that mean (C. Xie, O. Koyejo and I. Gupta, Fall of Empires,
                      https://arxiv.org/abs/1903.03936). A small strength passes median and Krum, because the update is
                      near the others; a large one reverses a plain mean

The hostile clients of a round know their own honest updates alone. With A Little Is Enough they send
``mean - z * std``. The paper's largest z that a majority still supports is, for n clients of which m are hostile,

    s = floor(n / 2 + 1) - m,    z = Phi^-1((n - m - s) / (n - m)).

With a small share of hostile clients it is 0 or below, and the attack then sends the mean: give a larger z, such as 1.5
in the paper's experiments. A single hostile client knows one update, whose standard deviation is 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from gossamer.core.errors import wrong
from gossamer.core.random import Key
from gossamer.core.random.noise import draw
from gossamer.core.tree import add, device
from gossamer.core.types import Layout, Params
from gossamer.parts.attacks.base import Collusion, Scene, UpdateAttack

UNBOUNDED = 3.0
"""The number of standard deviations of a hostile majority, for which the formula has no limit."""


def scaled(change: Params, factor: float) -> Params:
    """Return an update, multiplied by a factor."""
    return {name: tensor * factor for name, tensor in change.items()}


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
        return scaled(change, -self.strength)


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
        return scaled(change, self.factor)


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
        noise = draw("gauss", 1.0, key, layout.size, device=device(change)).to(layout.dtype)  # [n]
        return add(change, layout.unflatten(noise * (size * self.strength)))


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
        return scaled(change, self.factor)

    def claim(self, samples: int) -> int:
        """Return the claimed number."""
        return int(self.samples)


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
        return scaled(scene.mean, -self.strength)
