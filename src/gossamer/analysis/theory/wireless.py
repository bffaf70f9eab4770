"""Bounds for training over lossy links with pruning and one-bit measurements, as functions.

From Guan, Hou et al., "Energy-efficient federated learning: integrating model pruning, compressive sensing, and outage
compensation", Lemma 2 (Appendix A) and Theorem 1 (Appendix B). ``WirelessSetting`` lists the symbols. A bound is a
dictionary of terms, and their sum is the bound: as printed, or with corrections by name.

    mean            (A.6) uses G^2 / K for the squared norm of a mean of K gradients. They may all be equal, so it is
                    G^2. (A.8) has K where a device has K_u. (B.11) has K_u G^2 for the square of a sum of K_u
                    gradients, which is K_u^2 G^2. So G^2 / K becomes G^2, and K G^2 before the participation term
                    becomes sum K_u^2 G^2.
    scale           (A.8) treats signs as measurements with noise. That is meaningful only if both have the same scale.
                    A device that normalizes its gradient before measuring, and sends the norm, has Lemma 2 for a
                    gradient of norm 1, times the squared norm.
    coefficient     (A.4) and (A.5) omit the factor of retained signs. Its square is put before their terms.
    stale           (A.4) compares the reconstruction with new plus retained gradients, and uses that as the distance
                    from the new ones. The retained ones have norm at most coefficient times G: an additional term.
                    With it the constant 6 is correct, as |x + y|^2 <= 3 |x|^2 + 3/2 |y|^2. Without it 4 suffices.
    received        (A.9) has sum q_u, and (B.12) sum rho_u, instead of the mean over received devices.
    triangle        (B.8) has |a + b|^2 <= |a|^2 + |b|^2, which needs a factor 2: before pruning and participation.
    participation   (B.14) sums over all sets of devices without their probabilities. The expectation over sets is
                    ``gossamer.analysis.theory.participation``. It has U / K^2 for the empty set, which the paper
                    omits. Without this correction, at most 12 devices are possible.
    absence         (B.10) bounds a sum by the root of a sum of squares. The sum itself is smaller and has a closed
                    form: ``gossamer.analysis.theory.absence`` replaces the participation term.
    full            (B.14) keeps E|g|^2 - E|E g|^2 as G^2 / K. With full-batch gradients this noise is zero.
    step            (B.4) drops -eta/2 |g|^2 and bounds L eta^2/2 |g|^2 as if g were exact. For steps of at most 1/L
                    their sum is not positive, so the term is zero.

With ``mean`` alone Theorem 1 is vacuous: the gradient norm of F never exceeds G, and the noise term is 2 G^2. With all
corrections it is a valid bound for the paper's method, if the reconstruction is linear and multiplies errors by at most
C / sqrt(S). Two problems remain. The floor 12 C^2 does not decrease over time, because signs differ from measurements
in the last round as in the first. And C depends on the number of measurements per unpruned entry, but the bound treats
it as constant.

Equation 6 has a factor K_u too many: F is the mean over all samples. Equation 4 states a probability. (B.18) averages
outages over one round less, as nothing is retained in the first; here they are the same in all rounds.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from gossamer.analysis.theory.participation import absence, check, participation, participation_printed, received_mean
from gossamer.analysis.theory.submodel_bounds import Terms
from gossamer.core.errors import require, wrong
from gossamer.core.specs import unknown

CORRECTIONS = (
    "mean",
    "scale",
    "coefficient",
    "stale",
    "received",
    "triangle",
    "participation",
    "absence",
    "full",
    "step",
)
"""Names of all corrections; the module docstring describes them."""


@dataclass(frozen=True)
class WirelessSetting:
    """The constants of the bounds, with the paper's symbols.

    Args:
        smoothness: L, the smoothness of the loss
        gradient: G, the maximum norm of one sample's gradient
        weights: D, the maximum norm of the weights
        sizes: K_u, the number of samples of each device
        outages: q_u, the probability that an upload of each device is lost
        ratios: rho_u, the pruning ratio of each device
        measurements: S, the number of measurements; a device sends their signs
        reconstruction: C, the constant of the reconstruction; 0 if gradients are sent uncompressed
        isometry: delta, the restricted isometry constant
        coefficient: factor of retained gradients; 0 if nothing is retained
    """

    smoothness: float
    gradient: float
    weights: float
    sizes: tuple[int, ...]
    outages: tuple[float, ...]
    ratios: tuple[float, ...]
    measurements: float
    reconstruction: float = 1.0
    isometry: float = 0.5
    coefficient: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in ("smoothness", "gradient", "weights", "measurements", "reconstruction", "coefficient"):
            value, zero = getattr(self, field), field in ("reconstruction", "coefficient")
            fits = math.isfinite(value) and (value > 0 or (zero and value == 0))
            require((fits, f"{name}.{field} must be {'zero or ' * zero}a positive number, got {value}"))
        check(self.sizes, self.outages)
        require(
            (
                len(self.ratios) == len(self.sizes),
                f"{len(self.sizes)} devices have sizes, but {len(self.ratios)} ratios",
            ),
            (all(0 <= ratio <= 1 for ratio in self.ratios), wrong(self, "ratios", "must be in [0, 1]")),
            (0 <= self.isometry < 1, wrong(self, "isometry", "must be in [0, 1)")),
        )

    @property
    def samples(self) -> int:
        """K, the number of samples of all devices."""
        return sum(self.sizes)


def reconstruction_error(setting: WirelessSetting, corrected: Collection[str] = ()) -> Terms:
    """Lemma 2: bound on E|reconstruction - gradient of received devices|^2, as printed or with corrections."""
    _known(corrected)
    c, length = 6 * setting.reconstruction**2, _squared(setting, corrected)
    signs = c * length if "scale" in corrected else c
    measuring = c * (1 + setting.isometry) * length / setting.measurements
    again = _again(setting, corrected)
    stale = {"stale": 3 * length * again} if "stale" in corrected else {}
    return {
        "signs": signs,
        "measuring": measuring,
        "retained signs": again * signs,
        "retained measuring": again * measuring,
        **stale,
    }


def gradient_bound(
    setting: WirelessSetting, rounds: int, rate: float, gap: float, corrected: Collection[str] = ()
) -> Terms:
    """Theorem 1: bound on the mean over rounds of E|grad F|^2, with ``gap`` = F(w_0) - F*."""
    _known(corrected)
    require(
        (rounds >= 1, f"gradient_bound: rounds must be at least 1, got {rounds}"),
        (rate > 0, f"gradient_bound: rate must be positive, got {rate}"),
        (gap >= 0, f"gradient_bound: gap must not be negative, got {gap}"),
    )
    twice = 2 if "triangle" in corrected else 1
    return {
        "start": 2 * gap / (rate * rounds),
        "pruning": 2 * twice * (setting.smoothness * setting.weights) ** 2 * _pruned(setting, corrected),
        "noise": 0.0 if "full" in corrected else 2 * _squared(setting, corrected),
        **{name: 2 * term for name, term in reconstruction_error(setting, corrected).items()},
        "step": _step(setting, rate, corrected),
        "participation": 2 * twice * _apart(setting, corrected),
    }


def _known(corrected: Collection[str]) -> None:
    require(*((name in CORRECTIONS, unknown("correction", name, CORRECTIONS)) for name in corrected))


def _squared(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """Return the bound on the squared norm of a gradient."""
    return setting.gradient**2 / (1 if "mean" in corrected else setting.samples)


def _again(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """Return the retained fraction of received gradients, times the squared coefficient."""
    factor = setting.coefficient**2 if "coefficient" in corrected else 1.0
    if "received" in corrected:
        return factor * received_mean(setting.sizes, setting.outages, setting.outages)
    return factor * sum(setting.outages)


def _pruned(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """Return Gamma, the pruning term."""
    if "received" in corrected:
        return received_mean(setting.sizes, setting.outages, setting.ratios)
    return sum(setting.ratios)


def _step(setting: WirelessSetting, rate: float, corrected: Collection[str]) -> float:
    if "step" not in corrected:
        return setting.smoothness * rate * _squared(setting, corrected)
    most = 1 / setting.smoothness
    require((rate <= most, f"gradient_bound: with the correction step, rate must be at most {most:.3g}, got {rate}"))
    return 0.0


def _apart(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """Return the bound on the squared distance between the mean gradients of received and of all devices."""
    sizes, outages, square = setting.sizes, setting.outages, setting.gradient**2
    if "absence" in corrected:
        return square * absence(sizes, outages)
    found = participation(sizes, outages) if "participation" in corrected else participation_printed(sizes, outages)
    return square * found * (sum(size * size for size in sizes) if "mean" in corrected else setting.samples)
