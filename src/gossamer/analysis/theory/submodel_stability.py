"""Stability of sub-model training: how far one replaced sample moves the model (Theorems 5 and 6).

From Deng, Qiao and Mahdavi, "On the convergence and stability of distributed sub-model training",
https://arxiv.org/abs/2511.06132. N clients have n samples each. The bounds are on E|w - w'| of the models before the
algorithms' last step, which at most doubles the distance. ``gossamer.analysis.stability`` measures the distance. The
leading term is the root of ``divergence``, the squared difference between the masked gradients of two clients (Lemmas
12 and 13). ``Masked.divergence`` and ``Masked.largest_divergence`` compute it; ``random_divergence`` and
``rolling_divergence`` bound it.

Interpretation where the printed theorem and the proof differ, or both are wrong:

- **Assumption 8** states that gradients change with the weights at rate l; the proofs need that they change with the
  sample at that rate.
- **Theorem 5** prints d Psi instead of the root of Lemma 12. It prints p_i + p_j - p_i p_j, where the proof has twice
  the product: two full masks never differ. Its proof loses the factor L of the drift, and, as that of Theorem 1, the
  variance of the masks: ``spread``. Both are restored in ``random_stability``.
- **Theorem 6** prints d_m where the proof gives its root, and the rate sqrt(N n) / (R K), where the proof has
  sqrt(N n) / (T R K). Lemma 13 loses a factor 2 in its last line.
- **No monotony.** Lemma 12 has a term p (1 - p), which is largest at p = 1/2: the bound is not smaller for p = 1/2 than
  for full masks, and decreases with p below 1/2 only.
- ``deviation`` is that of the gradient of a single sample, also where training uses all samples in each step: the
  replaced sample has the weight 1 / n in either case.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from gossamer.analysis.theory.submodel_bounds import SubmodelSetting, Terms, rolling_stationarity, unlikely
from gossamer.core.errors import require


@dataclass(frozen=True)
class DataSpread:
    """Heterogeneity of the clients' data, and bounds on single entries (Assumptions 8 and 9).

    Args:
        distance: W_1, the maximum Wasserstein distance between two clients' data
        lipschitz: l, the Lipschitz constant of a gradient entry in the sample
        gradient: G_inf, the maximum entry of a gradient
        weight: W_inf, the maximum entry of the weights
    """

    distance: float
    lipschitz: float
    gradient: float
    weight: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require((value >= 0, f"DataSpread.{field.name} must not be negative, got {value}"))


def random_divergence(shares: Sequence[float], entries: int, smoothness: float, data: DataSpread) -> float:
    """Lemma 12: bound on the expected squared difference of two clients' masked gradients, for random masks."""
    steep = data.gradient**2 + (smoothness * data.weight) ** 2
    moved = (data.lipschitz * data.distance) ** 2
    pairs = [(p, p + q - 2 * p * q) for p in shares for q in shares]
    return max(2 * p * entries * moved + 4 * entries * differ * steep for p, differ in pairs)


def rolling_divergence(largest: int, farthest: int, smoothness: float, data: DataSpread) -> float:
    """Lemma 13: the same bound for windows, from d_m and D_max."""
    steep = data.gradient**2 + (smoothness * data.weight) ** 2
    return 2 * largest * (data.lipschitz * data.distance) ** 2 + 4 * farthest * steep


def random_stability(
    setting: SubmodelSetting, rounds: int, samples: int, divergence: float, start: float, rate: float | None = None
) -> Terms:
    """Theorem 5 with the constants of Equations 33 and 34: bound on E|w_R - w'_R| for random masks.

    ``divergence`` is zeta_max^2, ``start`` is |w_0 - w*(p)|^2. The default rate is sqrt(N n) / (R K).
    """
    _check(rounds, samples, divergence, start)
    points, steps, smooth, noise = setting.clients * samples, setting.steps, setting.smoothness, setting.deviation**2
    eta = rate or math.sqrt(points) / (rounds * steps)
    moved, weight = (eta * steps) ** 2, eta * steps * rounds / points
    slope = 16 * smooth * start / (eta * steps * rounds) + 32 * smooth * eta * noise / setting.clients
    slope += 160 * smooth**2 * moved * (4 * setting.heterogeneity + noise) + 96 * smooth * eta * steps * setting.spread
    drift = 5 * moved * (4 * slope + 4 * divergence + noise) if steps > 1 else 0.0
    return {
        "divergence": 2 * weight * math.sqrt(divergence),
        "noise": 2 * weight * setting.deviation,
        "gradient": 2 * weight * math.sqrt(slope),
        "drift": 2 * weight * smooth * math.sqrt(drift),
    }


def rolling_stability(
    setting: SubmodelSetting, epochs: int, samples: int, divergence: float, start: float, rate: float | None = None
) -> Terms:
    """Theorem 6: orders of the terms of E|w_T - w'_T| for windows, without constants, like the theorem.

    ``divergence`` is zeta_max^2, ``start`` is F_m(w_0). The default rate is that of the proof, sqrt(N n) / (T R K).
    """
    _check(epochs, samples, divergence, start)
    points, steps, windows = setting.clients * samples, setting.steps, setting.windows
    eta = rate or math.sqrt(points) / (epochs * windows * steps)
    weight, move = eta * steps * windows * epochs / points, eta * setting.smoothness * steps
    slope = sum(rolling_stationarity(setting, epochs, start, eta).values())
    order = windows * move**2 * (1 + (windows * move) ** 2) * setting.gradient**2 * unlikely(setting)
    drift = windows * steps * move**2 * (setting.dissimilarity + setting.deviation**2)
    return {
        "divergence": weight * math.sqrt(divergence),
        "noise": weight * setting.deviation * (1 + windows * move / math.sqrt(setting.clients)),
        "gradient": weight * math.sqrt(slope),
        "order": weight * math.sqrt(order),
        "drift": weight * (1 + move * math.sqrt(windows / steps)) * math.sqrt(drift),
    }


def random_stability_printed(setting: SubmodelSetting, samples: int, data: DataSpread) -> Terms:
    """Theorem 5 as printed, without constants: d Psi_max / sqrt(N n), and the term without masks."""
    steep = data.gradient**2 + (setting.smoothness * data.weight) ** 2
    moved = (data.lipschitz * data.distance) ** 2
    pairs = [(p, q) for p in setting.shares for q in setting.shares]
    psi = max(p * moved + (p + q - p * q) * steep for p, q in pairs)
    return _printed(setting, samples, setting.entries * psi)


def rolling_stability_printed(
    setting: SubmodelSetting, samples: int, largest: int, farthest: int, data: DataSpread
) -> Terms:
    """Theorem 6 as printed, without constants, from d_m and D_max."""
    steep = data.gradient + setting.smoothness * data.weight
    psi = largest * data.lipschitz * data.distance + math.sqrt(farthest) * steep
    return _printed(setting, samples, psi)


def _printed(setting: SubmodelSetting, samples: int, psi: float) -> Terms:
    root = math.sqrt(setting.clients * samples)
    return {"masks": psi / root, "rest": math.sqrt(setting.heterogeneity + setting.deviation**2) / root}


def _check(count: int, samples: int, divergence: float, start: float) -> None:
    require(
        (count >= 1, f"rounds or epochs must be at least 1, got {count}"),
        (samples >= 1, f"samples must be at least 1, got {samples}"),
        (divergence >= 0, f"divergence must not be negative, got {divergence}"),
        (start >= 0, f"start must not be negative, got {start}"),
    )
