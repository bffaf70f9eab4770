"""Convergence and stability bounds of sub-model training as functions.

From Deng, Qiao and Mahdavi, "On the convergence and stability of distributed sub-model training",
https://arxiv.org/abs/2511.06132. ``SubmodelSetting`` lists the symbols. A bound is a dictionary of terms, and their sum
is the bound. Constants are those of the proofs; the theorems hide them.

**Convergence (Theorems 1 to 4):** the distance to the masked optimum, and the residual of masking.

Interpretation where the printed theorem and the proof differ, or both are wrong:

- **Residual.** Theorems 1 and 3 print 5L / (2 mu) and L / mu. Lemmas 2 and 7 bound a distance by 1 / mu, so its square
  has mu^2, and only then units agree. Lemma 8 loses a quarter and the sum over clients. Derived as in Lemma 3, its
  constants are those of Lemma 3, so one ``residual`` serves both.
- **Strong convexity.** Proposition 2 takes the mean of all windows as the identity; it is s / d times the identity. So
  F_m is mu s / d strongly convex, as F_p is mu p, and ``SubmodelSetting.masked_convexity`` is used for both. Theorem 1
  prints the mean share where its proof has the smallest one.
- **Theorem 1 omits the variance of the masks.** Its proof bounds E|g|^2 of a round's mean gradient g by the distance
  from the optimum. But at the optimum g is not zero: it has the variance of the masks, ``spread``, of order
  sigma_*^2 / N, and K steps under one mask do not average it out. That adds a term of order 1 / R, which dominates the
  theorem without gradient noise. ``random_distance`` includes it as ``masks``. ``random_distance_printed`` has the
  terms of the paper's Equation 7, which random masks violate.
- **Theorem 2** drops the same variance (V in its proof) from its last line, and divides it by K before. It is also
  ``masks``.
- **Theorem 3** prints kappa^2 log(RK / nu) / (mu T^2 R) without G. With the mu that is missing in the bound of T_1, and
  G^2 from Hoeffding's inequality for norms, units agree: kappa^2 G^2 / mu^2. Higher powers of the rate are omitted;
  they are small under the theorem's condition on T.
- **Theorem 4** drops the term of the order from its last line, and factors L^2 and L from others. They are restored.

Theorem 1, repaired. Let x = eta K L <= 1 / (12 sqrt(L / mu_p)). A round is w - eta K (g + D + e), where g is the mean
masked gradient at the start of the round, D the drift of K steps, and e noise. E g is the gradient of F_p, so

    E|w' - w*|^2 <= (1 - eta K mu_p / 2) |w - w*|^2 - 2 eta K (F_p(w) - F_p*) + 2 eta K / mu_p E|D|^2
                    + 3 eta^2 K^2 (E|g|^2 + E|D|^2 + delta^2 / (K N))

with E|g|^2 <= 4 L (F_p(w) - F_p*) + 2 spread, because each masked loss is convex and L-smooth, and by Lemma 5
E|D|^2 <= L^2 eta^2 K^2 (40 L (F_p(w) - F_p*) + 20 sigma_*^2 + 5 delta^2 / K). By the condition on x, the factor of
F_p(w) - F_p* is negative. Summation gives the terms of ``random_distance``, for any optimum within the ball.

**Stability (Theorems 5 and 6):** how far one replaced sample moves the model. N clients have n samples each. The bounds
are on E|w - w'| of the models before the algorithms' last step, which at most doubles the distance.
``gossamer.analysis.stability`` measures the distance. The leading term is the root of ``divergence``, the squared
difference between the masked gradients of two clients (Lemmas 12 and 13). ``Masked.divergence`` and
``Masked.largest_divergence`` compute it; ``random_divergence`` and ``rolling_divergence`` bound it.

Interpretation, as above:

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

from gossamer.core.errors import require, wrong

Terms = dict[str, float]
"""Terms of a bound, by name."""


@dataclass(frozen=True)
class SubmodelSetting:
    """The constants of the bounds, with the paper's symbols.

    Args:
        smoothness: L, the smoothness of every client's loss
        convexity: mu, the strong convexity of every client's loss
        gradient: G, the maximum norm of a client's gradient within the ball
        radius: W, the radius of the ball that contains the weights
        deviation: delta, the standard deviation of stochastic gradients
        shares: p_i or s_i / d, the fraction of the model that each client holds
        entries: d, the number of entries of the model
        steps: K, the number of local steps per round
        heterogeneity: sigma_*^2 at the masked optimum (Definition 1)
        dissimilarity: zeta^2 (Definitions 2 and 3)
        spread: variance of a round's mean gradient at the masked optimum over draws of the masks
        windows: R of Algorithm 2, the number of rounds per epoch
        chance: nu, the probability that a bound for windows fails
    """

    smoothness: float
    convexity: float
    gradient: float
    radius: float
    deviation: float
    shares: tuple[float, ...]
    entries: int
    steps: int
    heterogeneity: float = 0.0
    dissimilarity: float = 0.0
    spread: float = 0.0
    windows: int = 1
    chance: float = 0.05

    def __post_init__(self) -> None:
        for name in ("smoothness", "gradient", "radius", "deviation", "heterogeneity", "dissimilarity", "spread"):
            value, zero = getattr(self, name), name not in ("smoothness", "gradient", "radius")
            fits = math.isfinite(value) and (value > 0 or (zero and value == 0))
            require((fits, f"SubmodelSetting.{name} must be {'zero or ' * zero}a positive number, got {value}"))
        mu, most = self.convexity, self.smoothness
        require(
            (0 < mu <= most, wrong(self, "convexity", f"must be above 0 and at most {most}")),
            (len(self.shares) > 0, "SubmodelSetting.shares must have one share for each client"),
            (all(0 < p <= 1 for p in self.shares), wrong(self, "shares", "must be in (0, 1]")),
            (self.entries >= 1, wrong(self, "entries", "must be at least 1")),
            (self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (self.windows >= 1, wrong(self, "windows", "must be at least 1")),
            (0 < self.chance < 1, wrong(self, "chance", "must be in (0, 1)")),
        )

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.shares)

    @property
    def share(self) -> float:
        """Mean of the shares."""
        return sum(self.shares) / len(self.shares)

    @property
    def masked_convexity(self) -> float:
        """mu_p = mu times the mean share: the strong convexity of the masked objective (Proposition 1)."""
        return self.convexity * self.share

    @property
    def masked_condition(self) -> float:
        """L / mu_p."""
        return self.smoothness / self.masked_convexity

    @property
    def dropped(self) -> float:
        """Mean number of entries that a client does not hold: the mean of d (1 - p_i)."""
        return self.entries * (1 - self.share)


def _moved(setting: SubmodelSetting) -> float:
    """Equation 5: bound on the squared change of the gradient by masks."""
    return (2 * setting.gradient**2 + 2 * setting.radius**2 * setting.smoothness**2) * setting.dropped


def shift(setting: SubmodelSetting) -> float:
    """Lemmas 2 and 7: bound on the distance between the masked optimum and the optimum."""
    return math.sqrt(_moved(setting)) / setting.masked_convexity


def residual(setting: SubmodelSetting) -> float:
    """Lemma 3: the part of F(w) - F* that remains after any training time; zero for full masks."""
    curvature = 5 * setting.smoothness / (2 * setting.masked_convexity**2) + 4 / setting.smoothness
    return curvature * _moved(setting)


def excess_risk(setting: SubmodelSetting, distance: float) -> float:
    """Theorems 1 and 3: bound on E F(output) - F*, with ``distance`` = E|w - w*(p)|^2 or a bound on it."""
    require((distance >= 0, f"excess_risk: distance must not be negative, got {distance}"))
    return 5 * setting.smoothness / 2 * distance + residual(setting)


# Random masks: Algorithm 1, R rounds.


def random_rate(setting: SubmodelSetting, rounds: int) -> float:
    """Theorem 1's learning rate, log((K R)^2) / (mu_p K R); the proof uses the smallest share."""
    _check(rounds, "rounds")
    return _logarithm(setting.steps * rounds) / (setting.masked_convexity * setting.steps * rounds)


def random_distance(setting: SubmodelSetting, rounds: int, start: float, rate: float | None = None) -> Terms:
    """Theorem 1, repaired: bound on E|w_R - w*(p)|^2, with ``start`` = |w_0 - w*(p)|^2.

    It requires eta K L <= 1 / (12 sqrt(L / mu_p)), and refuses larger rates. The default rate is the theorem's.
    """
    _check(rounds, "rounds", start=start)
    eta, mu = rate or random_rate(setting, rounds), setting.masked_convexity
    move, most = eta * setting.steps, 1 / (12 * math.sqrt(setting.masked_condition))
    require((move * setting.smoothness <= most, f"random_distance: rate K L must be at most {most:.3g}: more rounds"))
    drift = 90 * setting.heterogeneity + 22.5 * setting.deviation**2 / setting.steps
    return {
        "start": (1 - mu * move / 2) ** rounds * start,
        "masks": 12 * move * setting.spread / mu,
        "noise": 6 * eta * setting.deviation**2 / (mu * setting.clients),
        "drift": (setting.masked_condition * move) ** 2 * drift if setting.steps > 1 else 0.0,
    }


def random_distance_printed(setting: SubmodelSetting, rounds: int, start: float, rate: float | None = None) -> Terms:
    """Theorem 1 as printed, with the constants of Equation 7: without the variance of the masks."""
    _check(rounds, "rounds", start=start)
    mu = setting.convexity * min(setting.shares)
    eta = rate or _logarithm(setting.steps * rounds) / (mu * setting.steps * rounds)
    move, condition = eta * setting.steps, setting.smoothness * max(setting.shares) / mu
    return {
        "start": max(0.0, 1 - mu * move) ** rounds * start,
        "noise": eta * setting.deviation**2 / (mu * setting.clients),
        "drift": 10 * condition * move**2 * (4 * setting.heterogeneity + setting.deviation**2),
    }


def random_stationarity(setting: SubmodelSetting, rounds: int, start: float, rate: float | None = None) -> Terms:
    """Theorem 2: bound on the mean over rounds of E|grad F_p|^2, with ``start`` = F_p(w_0), for non-negative losses.

    The default rate is 1 / (L sqrt(R K)). ``spread`` has to hold along the whole trajectory.
    """
    _check(rounds, "rounds", start=start)
    eta = rate or 1 / (setting.smoothness * math.sqrt(rounds * setting.steps))
    smooth, move = setting.smoothness * setting.share, eta * setting.steps
    return {
        "start": 4 * start / (move * rounds),
        "masks": 2 * move * smooth * setting.spread,
        "noise": 2 * eta * smooth * setting.deviation**2 / setting.clients,
        "drift": (move * smooth) ** 2 * (80 * setting.dissimilarity + 20 * setting.deviation**2),
    }


# Windows: Algorithm 2, T epochs of R rounds.


def rolling_rate(setting: SubmodelSetting, epochs: int) -> float:
    """Theorem 3's learning rate, 4 log(T^2) / (mu R K T)."""
    _check(epochs, "epochs")
    return 4 * _logarithm(epochs) / (setting.masked_convexity * setting.windows * setting.steps * epochs)


def rolling_distance(setting: SubmodelSetting, epochs: int, start: float, rate: float | None = None) -> Terms:
    """Theorem 3: leading terms of a bound on |w_T - w*(m)|^2, with ``start`` = |w_0 - w*(m)|^2.

    It fails with probability at most nu. The default rate is the theorem's. It requires T >= 512 (L / mu)^2 log T,
    which few runs reach.
    """
    _check(epochs, "epochs", start=start)
    eta, mu, noise = rate or rolling_rate(setting, epochs), setting.masked_convexity, setting.deviation**2
    move, condition = eta * setting.steps, setting.masked_condition
    return {
        "start": max(0.0, 1 - mu * move * setting.windows / 4) ** epochs * start,
        "order": 64 * condition**2 * setting.windows * move**2 * setting.gradient**2 * unlikely(setting),
        "noise": 108 * move * setting.windows * noise / (mu * setting.clients) + 1152 * condition * move**2 * noise,
        "drift": 4 * 48**2 * condition * move**2 * setting.dissimilarity,
    }


def rolling_stationarity(setting: SubmodelSetting, epochs: int, start: float, rate: float | None = None) -> Terms:
    """Theorem 4: orders of the terms of E|grad F_m|^2, mean over epochs, with ``start`` = F_m(w_0).

    It fails with probability at most nu. Like the theorem, this has no constants. The default rate is
    1 / (L sqrt(R K T)).
    """
    _check(epochs, "epochs", start=start)
    total = setting.windows * setting.steps * epochs
    eta = rate or 1 / (setting.smoothness * math.sqrt(total))
    move = (eta * setting.smoothness * setting.steps) ** 2 * setting.windows
    return {
        "start": start / (eta * total),
        "order": move * setting.gradient**2 * unlikely(setting),
        "noise": eta * setting.smoothness * setting.deviation**2 / setting.clients,
        "drift": move * setting.steps * setting.dissimilarity,
    }


def _logarithm(count: int) -> float:
    """Return log(count^2), but not zero for a count of 1."""
    return 2 * math.log(max(count, 2))


def unlikely(setting: SubmodelSetting) -> float:
    """Return log(2 R K / nu), the factor of bounds that fail with probability nu."""
    return math.log(2 * setting.windows * setting.steps / setting.chance)


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
    _check(rounds, "rounds or epochs", samples, divergence, start)
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
    _check(epochs, "rounds or epochs", samples, divergence, start)
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


def _check(count: int, name: str, samples: int = 1, divergence: float = 0.0, start: float = 0.0) -> None:
    require(
        (count >= 1, f"{name} must be at least 1, got {count}"),
        (samples >= 1, f"samples must be at least 1, got {samples}"),
        (divergence >= 0, f"divergence must not be negative, got {divergence}"),
        (start >= 0, f"start must not be negative, got {start}"),
    )
