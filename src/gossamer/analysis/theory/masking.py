"""FedMRN's results as functions: the masking error, the gain of progressive masking, and two convergence bounds.

From Li et al., "Masked random noise for communication-efficient federated learning", MM 2024,
https://arxiv.org/abs/2408.03220, with signed masks over Bernoulli noise. Names and the paper's symbols:

    smoothness      L       every client's loss is L-smooth (Assumption 1)
    convexity       mu      and mu-strongly convex (Assumption 5; Theorem 1 only)
    deviation       sigma   standard deviation of a stochastic gradient (Assumption 2)
    gradient        G       maximum norm of a stochastic gradient (Assumption 3)
    error           q       relative masking error: E|S(u) - u|^2 <= q^2 |u|^2 (Assumption 4)
    heterogeneity   Gamma   F* - sum_k p_k F_k*, zero if all clients have the same minimum
    clients         N       number of clients, of equal weight
    cohort          K       number of clients per round
    steps           S       local steps per round

Two limitations of the bounds:

- Assumption 4 cannot hold with one q for all updates. Signed noise of magnitude a has the error d a^2 - |u|^2 for an
  update u of d entries within it. As u shrinks, this exceeds any multiple of |u|^2. So a value of q is valid for the
  updates it was measured on (``masking_error``), and the noise has to shrink with the updates.
- Proposition 1 states that the squared error of progressive masking is p^2 times that of full masking. That holds if
  update and masked noise are mixed in proportion p. The paper's algorithm masks each entry with probability p, which
  gives p times: compare ``progressive_factor`` and ``progressive_factor_by_entry``.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold
from gossamer.core.types import Layout
from gossamer.parts.codecs.masked_noise import clipped


def masking_error(change: Tensor, noise: Tensor, signed: bool = True) -> float:
    """Return the q of Assumption 4 for one update and given noise, in expectation over masks: sqrt(E|n m - u|^2) / |u|.

    In closed form: the variance of an entry is ``n^2 - c^2`` for signed masks and ``|c| (|n| - |c|)`` for binary ones,
    where c is the clipped update. Its squared bias is ``(c - u)^2``.
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
    """Return the same for any codec, from ``draws`` messages: root mean square of |decoded - u| / |u|."""
    require(
        (draws >= 1, f"measured_error: draws must be at least 1, got {draws}"),
        (bool((change != 0).any()), "measured_error: the change is zero, and no multiple of it bounds an error"),
    )
    layout = Layout.of({"change": change})
    total = 0.0
    for number in range(draws):
        ctx = Coding(layout, fold(key, number))
        decoded = codec.decode(codec.encode(change, ctx), ctx)
        total += float((decoded.double() - change.double()).square().sum())
    return math.sqrt(total / draws / float(change.double().square().sum()))


def progressive_factor(steps: int) -> float:
    """Proposition 1: the factor of q by progressive masking, sqrt(sum_t t^2 / S^3); decreases to 1/sqrt(3).

    >>> round(progressive_factor(10), 4)
    0.6205
    """
    _check_steps(steps)
    return math.sqrt((steps + 1) * (2 * steps + 1) / 6) / steps


def progressive_factor_by_entry(steps: int) -> float:
    """Return the factor if each entry is masked with probability t / S, as in the algorithm; decreases to 1/sqrt(2).

    It is sqrt(sum_t t / S^2): an entry that is masked with probability p has p times the squared error, not p^2 times.

    >>> round(progressive_factor_by_entry(10), 4)
    0.7416
    """
    _check_steps(steps)
    return math.sqrt((steps + 1) / (2 * steps))


def _check_steps(steps: int) -> None:
    require((steps >= 1, f"steps must be at least 1, got {steps}"))


@dataclass(frozen=True)
class BoundSetting:
    """The constants of the bounds; the module docstring lists the paper's symbols.

    Args:
        smoothness: L, the smoothness of every client's loss
        gradient: G, the maximum norm of a stochastic gradient
        deviation: sigma, the standard deviation of stochastic gradients
        clients: N, the number of clients
        cohort: K, the number of clients per round
        steps: S, the number of local steps per round
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
            require((fits, f"BoundSetting.{name} must be {'zero or ' * zero}a positive number, got {value}"))
        mu, most = self.convexity, self.smoothness
        require(
            (1 <= self.cohort <= self.clients, wrong(self, "cohort", f"must be from 1 to {self.clients}")),
            (self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (mu is None or 0 < mu <= most, wrong(self, "convexity", f"must be above 0 and at most {most}")),
        )

    @property
    def drift(self) -> float:
        """(1 + q^2) (S - 1)^2 G^2: the client drift within a round (Lemma 2, without 4 eta^2)."""
        return (1 + self.error**2) * (self.steps - 1) ** 2 * self.gradient**2

    @property
    def sampling(self) -> float:
        """The error of sampling K of N clients and of masking their uploads (Lemma 3, without eta^2)."""
        drawn = (self.clients - self.cohort) / (self.clients - 1) if self.clients > 1 else 0.0
        return 4 * (self.error**2 + drawn) / self.cohort * self.steps**2 * self.gradient**2


def strongly_convex_rate(setting: BoundSetting, step: int) -> float:
    """Return Theorem 1's learning rate at a step, counted over all rounds: eta_t = 2 / (mu (gamma + t))."""
    return 2 / (_convexity(setting) * (_delay(setting) + step))


def strongly_convex_bound(setting: BoundSetting, step: int, distance: float) -> float:
    """Theorem 1: bound on E F(w_t) - F* after ``step`` steps, with ``distance`` = |w_1 - w*|^2 (already squared).

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
    """Return Theorem 2's learning rate, constant over ``horizon`` steps: 1 / (L sqrt(T))."""
    _check_horizon(horizon)
    return 1 / (setting.smoothness * math.sqrt(horizon))


def nonconvex_bound(setting: BoundSetting, horizon: int, gap: float) -> float:
    """Theorem 2: bound on the mean of E|grad F(w_t)|^2 over ``horizon`` steps, with ``gap`` = F(w_0) - F*.

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
    """Return the Bernoulli noise of both theorems, 2 eta S G: an upper bound on an entry's change in a round."""
    require((rate > 0, f"noise_magnitude: rate must be positive, got {rate}"))
    return 2 * rate * setting.steps * setting.gradient
