"""FedSpa's convergence bound: Theorem 1 of Huang et al., 2022, https://arxiv.org/abs/2201.11380.

The objective is f(w) = (1/K) sum_k F_k(m_k* w), where m_k* is the best mask of client k, entry by entry. Clients train
with other masks m_k,t. The drift p_t compares both. Names and the paper's symbols:

    smoothness      L       every client's loss is L-smooth (Assumption 3)
    dissimilarity   G       maximum distance of a client's masked gradient from the mean (Assumption 1)
    deviation       sigma   standard deviation of a masked stochastic gradient (Assumption 2)
    gradient        B       maximum norm of the gradient of f (Assumption 4)
    cohort          S       number of clients per round
    steps           N       local steps per round
    rounds          T       number of rounds
    gap             f(w_0) - f(w*)
    drift           p_t     see ``mask_drift``

Limitations of the theorem:

- p_t has no upper limit. It is infinite if a step leaves the gradient unchanged while the masks differ, for example at
  w = 0. The bound also grows as p_t approaches 0.
- Lemma 7 starts from w_k,t,0 = m_k* w_t. The algorithm starts from m_k,t w_t. The squared norm of the difference is
  missing in the bound, unless the masks agree.
- The last sum replaces sum_t sqrt(p_t) (f(w_t) - f(w_t+1)) by max_t sqrt(p_t) times the gap. That holds if f never
  increases, or if p_t is constant. Equation 40 lacks a factor T in its first term; equation 41, used here, has it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong


def mask_drift(mask: Tensor, best: Tensor, gradients: Tensor, start: Tensor) -> float:
    """Return one client's p_t, the maximum over steps of |m g - m* g*|^2 / |g - g*|^2.

    A step with g = g* is left out if m g = m* g*, and gives infinity otherwise. Without any step left, the result is 0.
    For m = m*, the result is at most 1. The paper's p_t is the maximum over the clients.

    >>> ones = torch.ones(2)
    >>> mask_drift(ones, ones, torch.tensor([[1.0, 3.0]]), torch.tensor([2.0, 1.0]))
    1.0

    Args:
        mask: m, the client's mask in this round
        best: m*, its best mask
        gradients: g, the gradients of the client's loss before each local step, [steps, entries]
        start: g*, the gradient at m* w_t
    """
    shapes = {mask.shape, best.shape, start.shape, gradients.shape[1:]}
    require((len(shapes) == 1, f"mask_drift: masks and gradients differ in their numbers of entries: {shapes}"))
    masked = (mask * gradients - best * start).double().square().sum(1)
    plain = (gradients - start).double().square().sum(1)
    counted = (masked > 0) | (plain > 0)
    return float((masked / plain)[counted].max()) if bool(counted.any()) else 0.0


@dataclass(frozen=True)
class PersonalSetting:
    """The constants of the bound; the module docstring lists the paper's symbols.

    Args:
        smoothness: L, the smoothness of every client's loss
        dissimilarity: G, the maximum distance of a client's masked gradient from the mean
        deviation: sigma, the standard deviation of masked stochastic gradients
        gradient: B, the maximum norm of the objective's gradient
        cohort: S, the number of clients per round
        steps: N, the number of local steps per round
        rounds: T, the number of rounds
        gap: f(w_0) - f(w*)
    """

    smoothness: float
    dissimilarity: float
    deviation: float
    gradient: float
    cohort: int
    steps: int
    rounds: int
    gap: float

    def __post_init__(self) -> None:
        for name in ("smoothness", "dissimilarity", "deviation", "gradient", "gap"):
            value, positive = getattr(self, name), name == "smoothness"
            fits = math.isfinite(value) and (value > 0 if positive else value >= 0)
            require((fits, wrong(self, name, f"must be a number {'above 0' if positive else 'of at least 0'}")))
        for name in ("cohort", "steps", "rounds"):
            require((getattr(self, name) >= 1, wrong(self, name, "must be at least 1")))

    @property
    def local(self) -> float:
        """sigma^2 + 6 N G^2: the variance and dissimilarity within a round."""
        return self.deviation**2 + 6 * self.steps * self.dissimilarity**2

    @property
    def c1(self) -> float:
        """C_1, the factor of the mean of 1 / sqrt(p_t)."""
        n, t, b = self.steps, self.rounds, self.gradient**2
        shrinking = 25 / (32 * n * t) * self.local + 75 / (16 * t) * b
        return shrinking + 1.5 * self.dissimilarity**2 + self.deviation**2 / (2 * n * self.cohort) + 2.5 * b

    @property
    def c2(self) -> float:
        """C_2, the term without drift."""
        root = math.sqrt(self.rounds)
        return 5 / (16 * self.steps * root) * self.local + 15 / (8 * root) * self.gradient**2


def personal_rate(setting: PersonalSetting, drift: float) -> float:
    """Return the largest learning rate of a round: eta_t = 1 / (4 L N sqrt(p_t T)); infinite without drift."""
    _check_drift(drift)
    root = 4 * setting.smoothness * setting.steps * math.sqrt(drift * setting.rounds)
    return 1 / root if root else math.inf


def personal_bound(setting: PersonalSetting, drifts: Sequence[float]) -> float:
    """Return the bound on the mean over rounds of E|grad f(w_t)|^2: (p^ V + p~ C_1 + C_2) / sqrt(T).

    ``drifts`` has p_t of each round. p^ is the maximum of sqrt(p_t), p~ the mean of 1 / sqrt(p_t), V = 8 L gap.
    """
    number = len(drifts)
    require((number == setting.rounds, f"drifts must have one value per round, {setting.rounds}, got {number}"))
    for drift in drifts:
        _check_drift(drift)
    roots = torch.tensor(list(drifts), dtype=torch.float64).sqrt()
    most, inverse = float(roots.max()), float((1 / roots).mean())
    return (most * 8 * setting.smoothness * setting.gap + inverse * setting.c1 + setting.c2) / math.sqrt(number)


def _check_drift(drift: float) -> None:
    require((drift >= 0, f"the drift must be at least 0, got {drift}"))
