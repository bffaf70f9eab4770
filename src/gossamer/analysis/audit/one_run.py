"""A lower confidence bound on epsilon from one run with many canaries.

Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023, https://arxiv.org/abs/2305.08846.

Each of m canaries is included with probability 1/2, independently. From the output of the run an auditor guesses for r
of them whether they were included, and abstains from the others. Of these, v guesses are correct. If the run is
(epsilon, delta)-DP, then by Corollary 5.4, with B ~ Binomial(r, e^epsilon / (1 + e^epsilon)):

    P[at least v correct]  <=  P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i         i = 1 ... v

The bound is the largest epsilon for which the right-hand side is at most 1 - confidence. The number of guesses must
not depend on which of them are correct.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import require, wrong_argument

HALVINGS = 40


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of as many correct guesses or more, if a run is (epsilon, delta)-DP."""
    _check(canaries, guesses, correct, delta)
    require((epsilon >= 0, wrong_argument("epsilon", epsilon, "must not be negative")))
    chances = _binomial(guesses, epsilon)
    fewer = np.cumsum(chances[:correct][::-1])  # P[v > B >= v - i] for i = 1 ... v
    most = float((fewer / np.arange(1, correct + 1)).max()) if correct else 0.0
    return min(1.0, float(chances[correct:].sum()) + 2 * canaries * delta * most)


def epsilon_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """Return the epsilon that a run exceeds with some confidence, given the number of correct guesses.

    >>> round(epsilon_bound(canaries=1000, guesses=100, correct=75, delta=1e-4), 3)  # Appendix D of the paper
    0.673
    """
    require((0 < confidence < 1, wrong_argument("confidence", confidence, "must be above 0 and below 1")))

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence

    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def correct_guesses(scores: Sequence[float] | npt.NDArray[np.float64], included: Sequence[bool], guesses: int) -> int:
    """Return how many guesses are correct: half of them "included" for the highest scores, the others "not included"
    for the lowest."""
    order, answer = np.argsort(np.asarray(scores), kind="stable"), np.asarray(included, dtype=bool)
    require((0 < guesses <= len(order), wrong_argument("guesses", guesses, f"must be from 1 to {len(order)}")))
    lowest = guesses // 2
    return int((~answer[order[:lowest]]).sum() + answer[order[len(order) - (guesses - lowest) :]].sum())


def _binomial(trials: int, epsilon: float) -> npt.NDArray[np.float64]:
    """Return the probabilities of 0 to ``trials`` correct guesses with the accuracy of randomized response."""
    right, wrong = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    ways = np.cumsum([0.0, *(math.log(trials - k) - math.log(k + 1) for k in range(trials))])
    counts = np.arange(trials + 1)
    found: npt.NDArray[np.float64] = np.exp(ways + counts * right + (trials - counts) * wrong)
    return found


def _check(canaries: int, guesses: int, correct: int, delta: float) -> None:
    require(
        (0 <= correct <= guesses, wrong_argument("correct", correct, f"must be from 0 to the {guesses} guesses")),
        (guesses <= canaries, wrong_argument("guesses", guesses, f"must be at most the {canaries} canaries")),
        (0 <= delta < 1, wrong_argument("delta", delta, "must be from 0 to below 1")),
    )
