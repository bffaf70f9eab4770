"""What a plan makes small: the terms of a convergence bound that power, pruning and measurements change.

Of Theorem 1 in ``gossamer.analysis.theory.wireless`` these are, with S measurements of each of K samples' devices,

    pruning      2 L^2 D^2 sum rho_u
    outages      12 C^2 (1 + (delta + 1) G^2 / (S K)) sum q_u
    measuring    12 (delta + 1) C^2 G^2 / (S K)

as printed, or with those corrections after which devices still add up one by one. The other terms are the same for all
plans, but for participation: there it matters who is heard together, and fewer outages make it smaller too, as a rule.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.analysis.theory import WirelessSetting, gradient_bound
from gossamer.core.errors import gather, require

PLANNED = ("mean", "scale", "coefficient", "stale", "triangle")
"""Corrections that a plan can do with."""


MOST = 1e20
"""Constants of the bound are at most so large: squares of their products do not overflow."""


class TargetWeights(NamedTuple):
    """What pruning everything costs a device, what never being heard does, and what measuring costs all."""

    pruning: float
    outage: float
    measuring: float


@dataclass(frozen=True)
class Target:
    """The constants of the bound, with the paper's symbols.

    Args:
        samples: K, of all devices
        smoothness: L, of the loss
        gradient: G, the largest norm of one sample's gradient
        weights: D, the largest norm of the weights
        reconstruction: C, of the reconstruction
        isometry: delta, of the restricted isometry
        coefficient: what retained gradients are multiplied by
        corrected: corrections of the bound by name; none is as printed
    """

    samples: int
    smoothness: float = 1.0
    gradient: float = 1.0
    weights: float = 1.0
    reconstruction: float = 1.0
    isometry: float = 0.5
    coefficient: float = 1.0
    corrected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = ("smoothness", "gradient", "weights", "reconstruction", "isometry", "coefficient")
        large = {name: getattr(self, name) for name in names if getattr(self, name) > MOST}
        gather([f"{name} must be at most {MOST:g}, got {value}" for name, value in large.items()])
        self.at(1.0)  # which refuses what makes no sense
        others = [name for name in self.corrected if name not in PLANNED]
        require(
            (not others, f"Target.corrected: a plan can do with {', '.join(PLANNED)}, not with {', '.join(others)}")
        )

    def at(self, measurements: float) -> TargetWeights:
        """The weights with so many measurements: those of one device that prunes everything and is never heard."""
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
        terms = gradient_bound(setting, rounds=1, rate=1.0, gap=0.0, corrected=self.corrected)
        lost = sum(terms.get(name, 0.0) for name in ("retained signs", "retained measuring", "stale"))
        return TargetWeights(terms["pruning"], lost, terms["measuring"])
