"""The objective of a plan: the terms of a convergence bound that depend on power, pruning and measurements.

In Theorem 1 of ``gossamer.analysis.theory.wireless``, with S measurements and K samples in total, these are

    pruning      2 L^2 D^2 sum rho_u
    outages      12 C^2 (1 + (delta + 1) G^2 / (S K)) sum q_u
    measuring    12 (delta + 1) C^2 G^2 / (S K)

as printed, or with corrections that keep the sum over devices. The other terms are the same for all plans, except
participation. It depends on which clients are received together, and in general decreases with fewer outages too.

There C is a constant, so the number of measurements has almost no effect. With ``entries``, the number n of entries of
the model, the squared error of the reconstruction is that of the decoder instead, G^2 e(S), with

    e(S) = least_squares_error(n, S)

of ``gossamer.parts.codecs.reconstruction``. It falls from 1 to (pi / 2 - 1) n / S. The terms are then

    pruning      4 L^2 D^2 sum rho_u
    outages      c^2 G^2 (6 + 2 e(S)) sum q_u
    measuring    2 G^2 e(S) U

for U devices and the coefficient c of retained gradients, with the corrections ``PLANNED``. All are sums over devices,
as in the paper. A device that prunes has a smaller error than e(S), so this is on the safe side.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.analysis.theory import WirelessSetting, gradient_bound
from gossamer.core.errors import gather, require, wrong
from gossamer.parts.codecs.reconstruction import least_squares_error

PLANNED = ("mean", "scale", "coefficient", "stale", "triangle")
"""Corrections of the bound that a plan supports."""


MOST = 1e20
"""Maximum of the bound's constants: squares of their products do not overflow."""


class TargetWeights(NamedTuple):
    """Weights of the terms: of a device that prunes everything, of a device that is never received, of measuring."""

    pruning: float
    outage: float
    measuring: float


@dataclass(frozen=True)
class Target:
    """The constants of the bound, with the paper's symbols.

    Args:
        samples: K, the number of samples of all devices
        smoothness: L, the smoothness of the loss
        gradient: G, the maximum norm of one sample's gradient
        weights: D, the maximum norm of the weights
        reconstruction: C, the constant of the reconstruction
        isometry: delta, the restricted isometry constant
        coefficient: factor of retained gradients
        corrected: names of corrections of the bound; none means as printed
        entries: n, the number of entries of the model; 0 takes C as a constant, as the paper does
        devices: U, the number of devices; used with entries
    """

    samples: int
    smoothness: float = 1.0
    gradient: float = 1.0
    weights: float = 1.0
    reconstruction: float = 1.0
    isometry: float = 0.5
    coefficient: float = 1.0
    corrected: tuple[str, ...] = ()
    entries: int = 0
    devices: int = 1

    def __post_init__(self) -> None:
        names = ("smoothness", "gradient", "weights", "reconstruction", "isometry", "coefficient")
        large = {name: getattr(self, name) for name in names if getattr(self, name) > MOST}
        gather([f"{name} must be at most {MOST:g}, got {value}" for name, value in large.items()])
        self.at(1.0)  # checks the constants
        require(
            (self.entries >= 0, wrong(self, "entries", "must not be negative")),
            (self.devices >= 1, wrong(self, "devices", "must be at least 1")),
        )
        others = [name for name in self.corrected if name not in PLANNED]
        require((not others, f"Target.corrected: a plan supports {', '.join(PLANNED)}, not {', '.join(others)}"))

    def at(self, measurements: float) -> TargetWeights:
        """Return the weights for a number of measurements."""
        setting = WirelessSetting(
            smoothness=self.smoothness,
            gradient=self.gradient,
            weights=self.weights,
            sizes=(self.samples,),
            outages=(1.0,),
            ratios=(1.0,),
            measurements=measurements,
            reconstruction=self.reconstruction,
            isometry=self.isometry,
            coefficient=self.coefficient,
        )
        corrected = {*self.corrected, *(("mean", "scale") if self.entries else ())}
        terms = gradient_bound(setting, rounds=1, rate=1.0, gap=0.0, corrected=corrected)
        if self.entries:
            error = 2 * self.gradient**2 * float(least_squares_error(self.entries, measurements))
            again = self.coefficient**2 if "coefficient" in corrected else 1.0
            return TargetWeights(terms["pruning"], terms.get("stale", 0.0) + again * error, self.devices * error)
        lost = sum(terms.get(name, 0.0) for name in ("retained signs", "retained measuring", "stale"))
        return TargetWeights(terms["pruning"], lost, terms["measuring"])
