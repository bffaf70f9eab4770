"""What is proved of FedMRN, as functions: the masking error, what progressive masking saves, and two bounds.

From Li et al., "Masked random noise for communication-efficient federated learning", MM 2024, with signed masks over
Bernoulli noise. Names here, and the paper's symbols:

    smoothness      L       every client's loss is L-smooth (Assumption 1)
    convexity       mu      and mu-strongly convex (Assumption 5; Theorem 1 only)
    deviation       sigma   of a stochastic gradient from the client's full one (Assumption 2)
    gradient        G       largest norm of a stochastic gradient (Assumption 3)
    error           q       masking error in parts of the change: E|S(u) - u|^2 <= q^2 |u|^2 (Assumption 4)
    heterogeneity   Gamma   F* - sum_k p_k F_k*, zero where all clients have the same minimum
    clients         N       all of them, of equal weight
    cohort          K       how many are drawn for a round
    steps           S       local steps a round

Two things to know before the bounds are trusted:

- Assumption 4 cannot hold with one q for all changes. Signed noise of magnitude a has the error d a^2 - |u|^2 on a
  change u of d entries within it, and that grows beyond any multiple of |u|^2 as u shrinks. A q is that of the changes
  it was measured on (``masking_error``), and the noise has to shrink as the changes do.
- Proposition 1 takes the squared error of progressive masking to be p^2 times that of full masking. That is so where
  change and masked noise are mixed in proportion p. Where each entry is masked with probability p, as in the paper's
  algorithm, it is p times: compare ``progressive_factor`` and ``progressive_factor_by_entry``.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from gossamer.core.codec import Codec
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold
from gossamer.core.types import Layout
from gossamer.parts.codecs.masked_noise import clipped


def masking_error(change: Tensor, noise: Tensor, signed: bool = True) -> float:
    """The q of Assumption 4 for one change under given noise, averaged over the masks: sqrt(E|n m - u|^2) / |u|.

    In closed form: an entry's variance is ``n^2 - c^2`` for signed masks and ``|c| (|n| - |c|)`` for binary ones, with
    c the clipped change, and its squared bias is ``(c - u)^2``.
    """
    u, n = change.double(), noise.double()
    require(
        (u.shape == n.shape, f"masking_error: change and noise differ in shape, {tuple(u.shape)} and {tuple(n.shape)}"),
        (bool((n != 0).all()), "masking_error: noise must not be zero"),
        (bool((u != 0).any()), "masking_error: the change is zero, and no multiple of it bounds an error"),
    )
    kept = clipped(u, n, signed)
    variance = n.square() - kept.square() if signed else kept.abs() * (n.abs() - kept.abs())
    return float(((variance + (kept - u).square()).sum() / u.square().sum()).sqrt())


def measured_error(codec: Codec, change: Tensor, key: Key, draws: int = 1) -> float:
    """The same for any codec, from ``draws`` messages: root mean square of |decoded - u| / |u|."""
    require(
        (draws >= 1, f"measured_error: draws must be at least 1, got {draws}"),
        (bool((change != 0).any()), "measured_error: the change is zero, and no multiple of it bounds an error"),
    )
    layout = Layout.of({"change": change})
    total = 0.0
    for number in range(draws):
        at = fold(key, number)
        decoded = codec.decode(codec.encode(change, layout, at), layout, at)
        total += float((decoded.double() - change.double()).square().sum())
    return math.sqrt(total / draws / float(change.double().square().sum()))


def progressive_factor(steps: int) -> float:
    """Proposition 1: what progressive masking multiplies q by on average, sqrt(sum_t t^2 / S^3); falls to 1/sqrt(3).

    >>> round(progressive_factor(10), 4)
    0.6205
    """
    _check_steps(steps)
    return math.sqrt((steps + 1) * (2 * steps + 1) / 6) / steps


def progressive_factor_by_entry(steps: int) -> float:
    """The same where each entry is masked with probability t / S, as the algorithm has it; falls to 1/sqrt(2).

    sqrt(sum_t t / S^2): an entry that is masked with probability p has p times the squared error, not p^2 times.

    >>> round(progressive_factor_by_entry(10), 4)
    0.7416
    """
    _check_steps(steps)
    return math.sqrt((steps + 1) / (2 * steps))


def _check_steps(steps: int) -> None:
    require((steps >= 1, f"steps must be at least 1, got {steps}"))


@dataclass(frozen=True)
class BoundSetting:
    """What the bounds depend on besides time; the module's text has the paper's symbols.

    Args:
        smoothness: L, of every client's loss
        gradient: G, the largest norm of a stochastic gradient
        deviation: sigma, of stochastic gradients
        clients: N, all of them
        cohort: K, drawn for a round
        steps: S, local steps a round
        error: q, the masking error; 0 is federated averaging
        convexity: mu, for Theorem 1
        heterogeneity: Gamma, for Theorem 1
    """

    smoothness: float
    gradient: float
    deviation: float
    clients: int
    cohort: int
    steps: int
    error: float = 0.0
    convexity: float | None = None
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        for name in ("smoothness", "gradient", "deviation", "error", "heterogeneity"):
            value, zero = getattr(self, name), name not in ("smoothness", "gradient")
            fits = math.isfinite(value) and (value > 0 or (zero and value == 0))
            require((fits, f"Setting.{name} must be {'zero or ' * zero}a positive number, got {value}"))
        mu, most = self.convexity, self.smoothness
        require(
            (1 <= self.cohort <= self.clients, wrong(self, "cohort", f"must be from 1 to {self.clients}")),
            (self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (mu is None or 0 < mu <= most, wrong(self, "convexity", f"must be above 0 and at most {most}")),
        )

    @property
    def drift(self) -> float:
        """(1 + q^2) (S - 1)^2 G^2: how far clients come apart within a round (Lemma 2, without 4 eta^2)."""
        return (1 + self.error**2) * (self.steps - 1) ** 2 * self.gradient**2

    @property
    def sampling(self) -> float:
        """What drawing K of N clients and masking what they send adds (Lemma 3, without eta^2)."""
        drawn = (self.clients - self.cohort) / (self.clients - 1) if self.clients > 1 else 0.0
        return 4 * (self.error**2 + drawn) / self.cohort * self.steps**2 * self.gradient**2


def strongly_convex_rate(setting: BoundSetting, step: int) -> float:
    """Theorem 1's learning rate at a step, counted through all rounds: eta_t = 2 / (mu (gamma + t))."""
    return 2 / (_convexity(setting) * (_delay(setting) + step))


def strongly_convex_bound(setting: BoundSetting, step: int, distance: float) -> float:
    """Theorem 1: E F(w_t) - F* is at most this after ``step`` steps, with ``distance`` = |w_1 - w*|^2, squared already.

    kappa / (gamma + t) (2 B / mu + mu (gamma + 1) / 2 distance), kappa = L / mu, gamma = max(8 kappa, S) - 1 and
    B = sigma^2 / N + 6 L Gamma + 8 (1 + q^2) (S - 1)^2 G^2 + 4 (q^2 (N - 1) + N - K) / (K (N - 1)) S^2 G^2.
    """
    mu, delay = _convexity(setting), _delay(setting)
    require(
        (step >= 1, f"strongly_convex_bound: step must be at least 1, got {step}"),
        (distance >= 0, f"strongly_convex_bound: distance must not be negative, got {distance}"),
    )
    noise = setting.deviation**2 / setting.clients + 6 * setting.smoothness * setting.heterogeneity
    spread = noise + 8 * setting.drift + setting.sampling
    return setting.smoothness / mu / (delay + step) * (2 * spread / mu + mu * (delay + 1) / 2 * distance)


def _convexity(setting: BoundSetting) -> float:
    require((setting.convexity is not None, "Theorem 1 needs BoundSetting.convexity, which is not given"))
    assert setting.convexity is not None
    return setting.convexity


def _delay(setting: BoundSetting) -> float:
    return max(8 * setting.smoothness / _convexity(setting), setting.steps) - 1


def nonconvex_rate(setting: BoundSetting, horizon: int) -> float:
    """Theorem 2's learning rate, the same at all of ``horizon`` steps: 1 / (L sqrt(T))."""
    _check_horizon(horizon)
    return 1 / (setting.smoothness * math.sqrt(horizon))


def nonconvex_bound(setting: BoundSetting, horizon: int, gap: float) -> float:
    """Theorem 2: the mean of E|grad F(w_t)|^2 over ``horizon`` steps is at most this, with ``gap`` = F(w_0) - F*.

    (2 L gap + P) / sqrt(T) + Q / T with P = sigma^2 / N + 4 (q^2 (N - 1) + N - K) / (K (N - 1)) S^2 G^2 and
    Q = 4 (1 + q^2) (S - 1)^2 G^2.
    """
    _check_horizon(horizon)
    require((gap >= 0, f"nonconvex_bound: gap must not be negative, got {gap}"))
    slow = 2 * setting.smoothness * gap + setting.deviation**2 / setting.clients + setting.sampling
    return slow / math.sqrt(horizon) + 4 * setting.drift / horizon


def _check_horizon(horizon: int) -> None:
    require((horizon >= 1, f"horizon must be at least 1 step, got {horizon}"))


def noise_magnitude(setting: BoundSetting, rate: float) -> float:
    """The Bernoulli noise of both theorems, 2 eta S G: more than S steps at rates of up to 2 eta can move an entry."""
    require((rate > 0, f"noise_magnitude: rate must be positive, got {rate}"))
    return 2 * rate * setting.steps * setting.gradient
