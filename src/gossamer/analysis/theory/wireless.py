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
                    ``participation``. It has U / K^2 for the empty set, which the paper omits. Without this
                    correction, at most 12 devices are possible.
    absence         (B.10) bounds a sum by the root of a sum of squares. The sum itself is smaller and has a closed
                    form: ``absence`` replaces the participation term.
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

The effect of lost uploads in a round is an expectation over the set of received devices. Device u has K_u samples and
is received with probability 1 - q_u, independently of others. With a_u = 1 for received devices, X = sum K_u a_u is the
number of received samples, of K = sum K_u in total. If no device is received, there is no update, and all quotients by
X are 0.

The expectations need no enumeration of the 2^U sets of devices. X is an integer, so devices are added one by one to the
distribution of X, and to the part of a sum at each value of X. That takes U K / d operations, where d is the greatest
common divisor of the K_u. All terms are non-negative, so the only error is rounding.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gossamer.analysis.theory.submodel_bounds import Terms
from gossamer.core.errors import require, wrong
from gossamer.core.specs import unknown

Floats = npt.NDArray[np.float64]


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
    twice, squared = 2 if "triangle" in corrected else 1, _squared(setting, corrected)
    pruned = sum(setting.ratios)  # Gamma
    if "received" in corrected:
        pruned = received_mean(setting.sizes, setting.outages, setting.ratios)
    step, most = setting.smoothness * rate * squared, 1 / setting.smoothness
    if "step" in corrected:
        wanted = f"gradient_bound: with the correction step, rate must be at most {most:.3g}, got {rate}"
        require((rate <= most, wanted))
        step = 0.0
    return {
        "start": 2 * gap / (rate * rounds),
        "pruning": 2 * twice * (setting.smoothness * setting.weights) ** 2 * pruned,
        "noise": 0.0 if "full" in corrected else 2 * squared,
        **{name: 2 * term for name, term in reconstruction_error(setting, corrected).items()},
        "step": step,
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


def _apart(setting: WirelessSetting, corrected: Collection[str]) -> float:
    """Return the bound on the squared distance between the mean gradients of received and of all devices."""
    sizes, outages, square = setting.sizes, setting.outages, setting.gradient**2
    if "absence" in corrected:
        return square * absence(sizes, outages)
    found = participation(sizes, outages) if "participation" in corrected else participation_printed(sizes, outages)
    return square * found * (sum(size * size for size in sizes) if "mean" in corrected else setting.samples)


MOST = 12
"""Maximum number of devices for an enumeration of all sets: 4,096 sets."""


def participation(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """E sum_u (1/K - a_u / X)^2: the expected squared distance between a round's weights and the full weights.

    This is the line before the paper's Equation B.11, with the probability of each set of devices. It is 0 if all
    devices are received, and U / K^2 if none ever is. In between it may be larger, and may decrease with an outage: by
    this measure, a round with only one small device is worse than no round.
    >>> participation([1, 1], [0.0, 0.0]), participation([1, 1], [0.5, 0.5]), participation([1, 1], [1.0, 1.0])
    (0.0, 0.375, 0.5)
    """
    check(sizes, outages)
    total = sum(sizes)
    values, _, counts = _law(sizes, outages, [1.0] * len(sizes))
    # A device that is not received has 1 / K^2, a received one (1/K - 1/X)^2.
    return sum(outages) / total**2 + float((counts[1:] * (1 / total - 1 / values[1:]) ** 2).sum())


def participation_printed(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """The same as the paper prints it: sum over sets A of (1/K - P(A) / K_A)^2, with K_A the samples in A.

    The probability of a set is inside the square instead of before it, so each of the 2^U - 1 sets counts fully. The
    sum grows as 2^U / K^2, and is (2^U - 2) / K^2 without outages. For up to 12 devices.
    """
    check(sizes, outages)
    devices = range(len(sizes))
    require((len(sizes) <= MOST, f"participation_printed: {len(sizes)} devices have too many sets, at most {MOST} do"))
    total = 0.0
    for count in range(1, len(sizes) + 1):
        for received in itertools.combinations(devices, count):
            chance = math.prod(1 - outages[u] if u in received else outages[u] for u in devices)
            total += (1 / sum(sizes) - chance / sum(sizes[u] for u in received)) ** 2
    return total


def absence(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """4 E(1 - X/K)^2: the expected squared L1 distance between a round's weights and the full weights.

    The weights K_u / K and K_u a_u / X differ by 2 (1 - X/K) in the L1 norm. So mean gradients of norm at most G differ
    by at most that times G. In closed form, with p_u = K_u / K: 4 (sum p_u q_u)^2 + 4 sum p_u^2 q_u (1 - q_u). It
    increases with every outage. If a device is received, it is at most sum K_u^2 times ``participation``, by the
    Cauchy-Schwarz inequality.
    """
    check(sizes, outages)
    shares = [size / sum(sizes) for size in sizes]
    missing = sum(p * q for p, q in zip(shares, outages, strict=True))
    spread = sum(p * p * q * (1 - q) for p, q in zip(shares, outages, strict=True))
    return 4 * (missing**2 + spread)


def received_mean(sizes: Sequence[int], outages: Sequence[float], marks: Sequence[float]) -> float:
    """E sum_u m_u K_u a_u / X: the mean of ``marks`` over received devices, weighted by samples."""
    check(sizes, outages)
    require((len(marks) == len(sizes), f"received_mean: {len(sizes)} devices, but {len(marks)} marks"))
    values, _, sums = _law(sizes, outages, [mark * size for mark, size in zip(marks, sizes, strict=True)])
    return float((sums[1:] / values[1:]).sum())


def check(sizes: Sequence[int], outages: Sequence[float]) -> None:
    """Refuse invalid sizes and outages of devices."""
    require(
        (len(sizes) > 0, "sizes must have one entry for each device"),
        (len(sizes) == len(outages), f"{len(sizes)} devices have sizes, but {len(outages)} outages"),
        *((size == int(size) >= 1, f"sizes must be integers of at least 1, got {size}") for size in sizes),
        *((0 <= q <= 1, f"outages must be in [0, 1], got {q}") for q in outages),
    )


def _law(sizes: Sequence[int], outages: Sequence[float], marks: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Return the values of X, their probabilities, and the expected sum of marks at each, times its probability."""
    unit = math.gcd(*map(int, sizes))
    law = np.zeros(int(sum(sizes)) // unit + 1)
    law[0] = 1.0
    sums = np.zeros_like(law)
    top = 1
    for size, outage, mark in zip(sizes, outages, marks, strict=True):
        step = int(size) // unit
        with_it, more = (1 - outage) * law[:top], (1 - outage) * (sums[:top] + mark * law[:top])
        law[:top] *= outage
        sums[:top] *= outage
        law[step : step + top] += with_it
        sums[step : step + top] += more
        top += step
    return unit * np.arange(len(law), dtype=np.float64), law, sums
