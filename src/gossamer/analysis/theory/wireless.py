"""What is proved of training over a link that loses messages, with pruning and signs of measurements, as functions.

From Guan, Hou et al., "Energy-efficient federated learning: integrating model pruning, compressive sensing, and outage
compensation", Lemma 2 (Appendix A) and Theorem 1 (Appendix B). ``WirelessSetting`` lists the symbols. A bound is
given by its terms, whose sum it is: as printed, or with corrections by name.

    mean            (A.6) takes the squared norm of a mean of K gradients to be G^2 / K. They may all be the same: it is
                    G^2. (A.8) has K where a device has K_u, and (B.11) has K_u G^2 for the square of a sum of K_u
                    gradients, which is K_u^2 G^2. So G^2 / K becomes G^2, and K G^2 before the participation term
                    becomes sum K_u^2 G^2.
    scale           (A.8) takes signs for measurements, and their difference for noise. That means something where both
                    are of one size. A device that divides its gradient by its norm before it is measured, and sends the
                    norm, has Lemma 2 for a gradient of length 1, times the square of the norm.
    coefficient     (A.4) and (A.5) forget the factor that retained signs are sent with: its square is put before them.
    stale           (A.4) compares what is reconstructed with the new gradients and the retained ones, and takes that
                    for the distance from the new ones. The retained ones are no longer than the coefficient times G: a
                    term of its own. With it 6 is the right constant, as |x + y|^2 <= 3 |x|^2 + 3/2 |y|^2; without, 4
                    would do.
    heard           (A.9) has sum q_u, and (B.12) sum rho_u, where a mean over those that are heard is meant.
    triangle        (B.8) has |a + b|^2 <= |a|^2 + |b|^2, which wants a factor 2: before pruning and participation.
    participation   (B.14) adds up over all sets of devices, each as if it were certain. The expectation over sets is
                    ``gossamer.analysis.theory.participation``, which has U / K^2 where nobody is heard; print
                    leaves that case out. Without this correction there can be 12 devices at most.
    absence         (B.10) goes from a sum to the root of a sum of squares. The sum itself is less, and in closed form:
                    ``gossamer.analysis.theory.absence`` takes the place of the participation term.
    full            (B.14) keeps E|g|^2 - E|E g|^2 as G^2 / K. A device that takes all its samples has no such noise.
    step            (B.4) drops -eta/2 |g|^2 and bounds L eta^2/2 |g|^2 as if g were not reconstructed. For steps of at
                    most 1/L their sum is not positive, and nothing is left to bound.

With ``mean`` alone Theorem 1 says nothing: the gradient of F is never longer than G, and the term for noise is 2 G^2.
With all corrections it is a bound, which holds for what the paper describes, given that a reconstruction is linear and
multiplies errors by no more than C / sqrt(S). Two things are not repaired. The floor 12 C^2 does not go away with time:
signs are as far from measurements in the last round as in the first. And C depends on how many measurements there are
for each entry that is not pruned; the bound takes it for a constant.

Equation 6 has a K_u too many: F is the mean over all samples. Equation 4 means "with the chance". (B.18) averages
outages over one round less, as nothing is retained in the first; here they are the same in all rounds.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from gossamer.analysis.theory.participation import absence, check, heard_mean, participation, participation_printed
from gossamer.analysis.theory.submodel_bounds import Terms
from gossamer.core.errors import require, wrong
from gossamer.core.specs import unknown

CORRECTIONS = (
    "mean",
    "scale",
    "coefficient",
    "stale",
    "heard",
    "triangle",
    "participation",
    "absence",
    "full",
    "step",
)
"""All of them; what each is, the module says."""


@dataclass(frozen=True)
class WirelessSetting:
    """What the bounds depend on besides time, with the paper's symbols.

    Args:
        smoothness: L, of the loss
        gradient: G, the largest norm of one sample's gradient
        weights: D, the largest norm of the weights
        sizes: K_u, samples of each device
        outages: q_u, the chance that a message of each is lost
        ratios: rho_u, the share of entries that each prunes
        measurements: S, of which a device sends the signs
        reconstruction: C, of the reconstruction; 0 where gradients are sent as they are
        isometry: delta, of the restricted isometry
        coefficient: what retained gradients are multiplied by; 0 where nothing is retained
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
        """K, of all devices."""
        return sum(self.sizes)


def reconstruction_error(setting: WirelessSetting, corrected: Collection[str] = ()) -> Terms:
    """Lemma 2: E|reconstructed - gradient of those heard|^2 is at most this, as printed or with corrections."""
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
    """Theorem 1: the mean over rounds of E|grad F|^2 is at most this, with ``gap`` = F(w_0) - F*."""
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
    """The squared norm of a gradient at most."""
    return setting.gradient**2 / (1 if "mean" in corrected else setting.samples)


def _again(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """How much of what is heard was retained, with the square of its coefficient."""
    factor = setting.coefficient**2 if "coefficient" in corrected else 1.0
    if "heard" in corrected:
        return factor * heard_mean(setting.sizes, setting.outages, setting.outages)
    return factor * sum(setting.outages)


def _pruned(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """Gamma."""
    if "heard" in corrected:
        return heard_mean(setting.sizes, setting.outages, setting.ratios)
    return sum(setting.ratios)


def _step(setting: WirelessSetting, rate: float, corrected: Collection[str]) -> float:
    if "step" not in corrected:
        return setting.smoothness * rate * _squared(setting, corrected)
    most = 1 / setting.smoothness
    require((rate <= most, f"gradient_bound: with the correction step, rate must be at most {most:.3g}, got {rate}"))
    return 0.0


def _apart(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """How far the mean gradient of those heard is from that of all, squared."""
    sizes, outages, square = setting.sizes, setting.outages, setting.gradient**2
    if "absence" in corrected:
        return square * absence(sizes, outages)
    found = participation(sizes, outages) if "participation" in corrected else participation_printed(sizes, outages)
    return square * found * (sum(size * size for size in sizes) if "mean" in corrected else setting.samples)
