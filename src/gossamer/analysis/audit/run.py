"""Run a method with canaries among its clients, and measure how well they are found in the final model.

The score of a canary is the inner product of its direction with the change of the model from the first round to the
last. The statement of a run covers the models of all rounds, and an auditor who sees only the last one can find no more
than one who sees all. So the bound holds, and may be lower than what the run reveals.

>>> from gossamer import fedavg
>>> from gossamer.testing import tiny_task
>>> found = audit(fedavg(), tiny_task(clients=40), Options(rounds=1), canaries=30, guesses=20, delta=1e-5)
>>> found.correct, round(found.bound, 2)  # without noise every canary is found, and few guesses prove little
(20, 1.82)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gossamer.analysis.audit.canaries import Canaries
from gossamer.analysis.audit.one_run import correct_guesses, epsilon_bound
from gossamer.analysis.audit.one_shot import epsilon_estimate, epsilon_interval
from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong_argument
from gossamer.core.method import Method
from gossamer.core.random import fold, key
from gossamer.core.types import Layout, Params
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.tasks.task import Task

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
    scores = _scores(tree.subtract(simulation.deployed(), start), inserted, clients)
    included = [inserted.included(client) for client in clients]
    correct = correct_guesses(scores.values, included, guesses)
    bound = epsilon_bound(canaries, guesses, correct, delta, confidence)
    cosines, size = scores.cosines[included], Layout.of(start).size
    estimate = epsilon_estimate(cosines, size, delta)
    interval = epsilon_interval(cosines, size, delta, confidence, fold(key(options.seed), "bootstrap"))
    epsilon = stated["epsilon"] if stated.get("delta") == delta else None
    return Audit(canaries, guesses, correct, bound, confidence, estimate, interval, delta, epsilon)


class Scores(NamedTuple):
    """How much of each canary is in the change of a model.

    Args:
        values: the inner products of the directions with the change
        cosines: the same, divided by the norm of the change
    """

    values: npt.NDArray[np.float64]
    cosines: npt.NDArray[np.float64]


def _scores(change: Params, inserted: Canaries, clients: Sequence[int]) -> Scores:
    vector = Layout.of(change).flatten(change).double().cpu()
    values = np.array([float(inserted.direction(client, change) @ vector) for client in clients])
    return Scores(values, values / float(torch.linalg.vector_norm(vector)))
