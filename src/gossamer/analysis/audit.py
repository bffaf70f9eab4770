"""Audits of differential privacy: a lower bound on the epsilon of a run, measured with canaries.

A statement of privacy is an upper bound that follows from the design of a run. A mistake in its code may break it. An
audit inserts canaries, clients that send a known direction instead of their update, or nothing, and measures how well
they are found in the model. The directions are uniform on the sphere, so in a large model they are almost orthogonal to
each other and to all updates. A coin decides for each canary whether it is included. One that is not sends an update of
0, which is what a private server adds for a client that does not take part.

The score of a canary is the inner product of its direction with the change of the model from the first round to the
last. The statement of a run covers the models of all rounds, and an auditor who sees only the last one can find no more
than one who sees all. So the bound holds, and may be lower than what the run reveals.

>>> from gossamer import fedavg
>>> from gossamer.testing import tiny_task
>>> found = audit(fedavg(), tiny_task(clients=40), Options(rounds=1), canaries=30, guesses=20, delta=1e-5)
>>> found.correct, round(found.bound, 2)  # without noise every canary is found, and few guesses prove little
(20, 1.82)

**A lower confidence bound from one run with many canaries.** Steinke, Nasr and Jagielski, Privacy Auditing with One (1)
Training Run, NeurIPS 2023, https://arxiv.org/abs/2305.08846.

Each of m canaries is included with probability 1/2, independently. From the output of the run an auditor guesses for r
of them whether they were included, and abstains from the others. Of these, v guesses are correct. If the run is
(epsilon, delta)-DP, then by Corollary 5.4, with B ~ Binomial(r, e^epsilon / (1 + e^epsilon)):

    P[at least v correct]  <=  P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i         i = 1 ... v

The bound is the largest epsilon for which the right-hand side is at most 1 - confidence. The number of guesses must
not depend on which of them are correct.

**An estimate from the cosines between canaries and a model.** Andrew et al., One-shot Empirical Privacy Estimation for
Federated Learning, ICLR 2024, https://arxiv.org/abs/2302.03098, Algorithm 2.

The cosine between the direction of a canary and the change of the model in the whole run is close to N(0, 1/d) for a
canary that did not take part, with d the number of entries: all directions are equally likely. For the canaries that
did take part, a normal distribution is fitted to the cosines. The estimate is the epsilon at which the two
distributions are indistinguishable up to delta:

    delta(epsilon) = max over both orders of  P[L(X) > epsilon] - e^epsilon P[L(Y) > epsilon]

with X and Y from the two distributions, and L the logarithm of the ratio of their densities. It is an estimate of what
these canaries reveal in the final model, not a bound. The tails decide, and they follow from the fitted deviation: of
500 canaries it is known to 3 %, and epsilon to about 20 %. ``epsilon_interval`` says how well, by the parametric
bootstrap.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong, wrong_argument
from gossamer.core.method import Method
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as key_of
from gossamer.core.random.noise import draw
from gossamer.core.types import Layout, Params
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.attacks.base import UpdateAttack
from gossamer.tasks.task import Task

__all__ = [
    "Audit",
    "Canaries",
    "audit",
    "correct_guesses",
    "epsilon_bound",
    "epsilon_estimate",
    "epsilon_interval",
    "epsilon_of_gaussians",
    "p_value",
]


@dataclass(frozen=True)
class Canaries(UpdateAttack):
    """Clients that send a random direction in all rounds.

    Args:
        norm: the norm of their updates, at least the clipping norm of the method
        seed: the seed of their directions and coins
        share: the share of clients that are canaries
    """

    norm: float = 1e3
    seed: int = 0
    share: float = 0.5

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the norm."""
        return [(0 < self.norm < math.inf, wrong(self, "norm", "must be a positive number"))]

    def included(self, client: int) -> bool:
        """Return the coin of a canary."""
        return bool(uniform(fold(self._key, client, "coin"), 1) < 0.5)

    def direction(self, client: int, like: Params) -> Tensor:
        """Return the direction of a canary, a vector of norm 1 with the entries of the tensors in name order."""
        return _direction(fold(self._key, client), Layout.of(like))

    @property
    def _key(self) -> Key:
        return fold(key_of(self.seed), "canaries")

    def update(self, change: Params, key: Key) -> Params:
        """Return the direction of a key as an update."""
        layout = Layout.of(change)
        return layout.unflatten(_direction(key, layout).to(tree.device(change), layout.dtype) * self.norm)

    def update_of(self, client: int, change: Params, key: Key) -> Params:
        """Return the direction of a canary, or 0 if it is not included."""
        if not self.included(client):
            return {name: torch.zeros_like(tensor) for name, tensor in change.items()}
        return self.update(change, fold(self._key, client))


def _direction(key: Key, layout: Layout) -> Tensor:
    drawn = draw("gauss", 1.0, fold(key, "direction"), layout.size).double()
    found: Tensor = drawn / torch.linalg.vector_norm(drawn)
    return found


HALVINGS = 40
RESAMPLES = 200

FEWEST = 20
"""Canaries of which at least two are included, almost surely."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Args:
        canaries: the number of canaries
        guesses: the number of guesses
        correct: the number of correct ones
        bound: the epsilon that the run exceeds with the confidence (Steinke et al.)
        confidence: the confidence
        estimate: the estimate of epsilon by cosines (Andrew et al.)
        interval: the interval of the estimate, with the same confidence
        delta: the delta of all these
        stated: the epsilon that the run states for this delta; none if it states none
    """

    canaries: int
    guesses: int
    correct: int
    bound: float
    confidence: float
    estimate: float
    interval: tuple[float, float]
    delta: float
    stated: float | None

    @property
    def passed(self) -> bool:
        """Whether the bound does not exceed the stated epsilon."""
        return self.stated is None or self.bound <= self.stated


def audit(
    method: Method,
    task: Task,
    options: Options,
    *,
    canaries: int,
    guesses: int | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    norm: float = 1e3,
) -> Audit:
    """Run a method with canaries, and return a lower bound on its epsilon.

    Args:
        method: the method, whose server clips updates and adds noise
        task: the task; some of its clients become canaries
        options: the options of the run
        canaries: the number of canaries: more of them give a larger bound
        guesses: the number of guesses, a quarter of the canaries by default; the best number is smaller with more noise
        delta: the delta; by default that of the run's statement
        confidence: the probability that the bound is right
        norm: the norm of the canaries' updates, at least the clipping norm
    """
    guesses = max(1, canaries // 4) if guesses is None else guesses
    enough = f"must be at least {FEWEST}, and below the {task.clients} clients of the task"
    require(
        (FEWEST <= canaries < task.clients, wrong_argument("canaries", canaries, enough)),
        (0 < guesses <= canaries, wrong_argument("guesses", guesses, f"must be from 1 to the {canaries} canaries")),
        (options.attack is None, "an audit has no other attack: its canaries take the place of one"),
    )
    inserted = Canaries(norm, options.seed, canaries / task.clients)
    simulation = Simulation(method, task, replace(options, attack=inserted))
    start = simulation.deployed()
    record = simulation.run(None, lambda record: None).metrics[-1]
    stated: dict[str, float] = record.get("figures", {}).get("privacy", {})
    if delta is None and not stated:
        raise ConfigError("the run has no statement of privacy: give the delta of the audit")
    delta = stated["delta"] if delta is None else delta
    assert simulation.adversary is not None
    clients = simulation.adversary.hostile
    change = tree.subtract(simulation.deployed(), start)
    vector = Layout.of(change).flatten(change).double().cpu()  # [n]
    scores = np.array([float(inserted.direction(client, change) @ vector) for client in clients])
    included = [inserted.included(client) for client in clients]
    correct = correct_guesses(scores, included, guesses)
    bound = epsilon_bound(canaries, guesses, correct, delta, confidence)
    cosines, size = (scores / float(torch.linalg.vector_norm(vector)))[included], Layout.of(start).size
    estimate = epsilon_estimate(cosines, size, delta)
    interval = epsilon_interval(cosines, size, delta, confidence, fold(key_of(options.seed), "bootstrap"))
    epsilon = stated["epsilon"] if stated.get("delta") == delta else None
    return Audit(canaries, guesses, correct, bound, confidence, estimate, interval, delta, epsilon)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of as many correct guesses or more, if a run is (epsilon, delta)-DP."""
    require(
        (0 <= correct <= guesses, wrong_argument("correct", correct, f"must be from 0 to the {guesses} guesses")),
        (guesses <= canaries, wrong_argument("guesses", guesses, f"must be at most the {canaries} canaries")),
        (0 <= delta < 1, wrong_argument("delta", delta, "must be from 0 to below 1")),
    )
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

    return _until(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) < 1 - confidence)[0]


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


def epsilon_estimate(cosines: Sequence[float] | npt.NDArray[np.float64], dimension: int, delta: float) -> float:
    """Return the epsilon that the cosines of canaries with the change of a model suggest."""
    values = np.asarray(cosines, dtype=np.float64)
    require((len(values) >= 2, wrong_argument("cosines", len(values), "must be at least two")))
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    return epsilon_of_gaussians((0.0, dimension**-0.5), (mean, deviation), delta)


def epsilon_interval(
    cosines: Sequence[float] | npt.NDArray[np.float64], dimension: int, delta: float, confidence: float, key: Key
) -> tuple[float, float]:
    """Return an interval of estimates with equal tails: those of new cosines from the fitted distribution."""
    values, count = np.asarray(cosines, dtype=np.float64), len(cosines)
    drawn = draw("gauss", 1.0, key, RESAMPLES * count).double().view(RESAMPLES, count).numpy()
    new = values.mean() + values.std(ddof=1) * drawn
    found = [epsilon_estimate(each, dimension, delta) for each in new]
    low, high = np.quantile(found, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def epsilon_of_gaussians(a: tuple[float, float], b: tuple[float, float], delta: float) -> float:
    """Return the epsilon of two normal distributions, each a mean and a standard deviation.

    >>> round(epsilon_of_gaussians((0, 1), (1, 1), delta=1e-5), 3)  # the Gaussian mechanism with noise 1
    4.377
    """
    require(
        (a[1] > 0 and b[1] > 0, "both standard deviations must be positive"),
        (0 < delta < 1, wrong_argument("delta", delta, "must be above 0 and below 1")),
    )

    def exceeded(epsilon: float) -> bool:
        return max(_log_delta(a, b, epsilon), _log_delta(b, a, epsilon)) > math.log(delta)

    return _until(exceeded)[1] if exceeded(0.0) else 0.0


def _until(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return two close epsilons: a condition holds up to the first (0 at the least), and not from the second on."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _log_delta(a: tuple[float, float], b: tuple[float, float], epsilon: float) -> float:
    """Return the logarithm of P[L(X) > epsilon] - e^epsilon P[L(Y) > epsilon], for X from a and Y from b."""
    at = _log_mass(a, b, epsilon, a)
    less = epsilon + _log_mass(a, b, epsilon, b) - at
    return at + math.log(-math.expm1(less)) if at > -math.inf and less < 0 else -math.inf


def _log_mass(a: tuple[float, float], b: tuple[float, float], epsilon: float, of: tuple[float, float]) -> float:
    """Return the logarithm of the probability under ``of`` that the density of a is above e^epsilon times that of b.

    The logarithm of the ratio is a quadratic function. Of equal deviations it is linear.
    """
    (m, s), (n, t) = a, b
    square, linear = (t**-2 - s**-2) / 2, m / s**2 - n / t**2
    constant = (n**2 / t**2 - m**2 / s**2) / 2 + math.log(t / s) - epsilon
    if square == 0:
        return _log_above(-constant / linear, of, math.copysign(1, linear)) if linear else -math.inf
    inside = linear**2 - 4 * square * constant
    if inside <= 0:
        return 0.0 if square > 0 else -math.inf
    # The stable roots of a quadratic equation, also if its leading coefficient is almost 0.
    half = -(linear + math.copysign(math.sqrt(inside), linear)) / 2
    left, right = sorted((half / square, constant / half))
    if square > 0:
        return float(np.logaddexp(_log_above(left, of, -1), _log_above(right, of, 1)))
    return _log_between(left, right, of)


def _log_above(x: float, of: tuple[float, float], side: float) -> float:
    """Return the logarithm of the probability above x, or below it for side -1."""
    return _log_ndtr(side * (of[0] - x) / of[1])


def _log_between(left: float, right: float, of: tuple[float, float]) -> float:
    """Return the logarithm of the probability of an interval, from the tail in which it is smaller."""
    low, high = ((x - of[0]) / of[1] for x in (left, right))
    if low + high > 0:
        low, high = -high, -low
    more, less = _log_ndtr(high), _log_ndtr(low)
    return more + math.log(-math.expm1(less - more)) if less < more else -math.inf


def _log_ndtr(x: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))
