"""Sub-model training on a convex problem, next to the terms of Theorems 1 to 4 (https://arxiv.org/abs/2511.06132).

    make reproduce WHAT=submodel-theory

Random masks (Algorithm 1) and shuffled windows (Algorithm 2) run in Gossamer's simulator, on logistic regression so
small that masked optima are known to ten digits. Runs are stored and not repeated. Tables and plots go to
docs/reproduction/submodel-theory.md.
"""

import argparse
from collections.abc import Callable, Sequence

import torch

from gossamer.analysis.theory import random_rate
from reproduce.common import store, tables
from reproduce.common.store import Facts
from reproduce.submodel import theory_page
from reproduce.submodel.theory_problem import ENTRIES, STEPS, Problem, posed

STUDY = "submodel-theory"
ROUNDS = (64, 128, 256, 512, 1024)
FEWER_ROUNDS = (64, 256, 1024)
SHARE = 0.5
SHARES = (0.25, 0.5, 0.75, 0.875, 1.0)


def course(problem: Problem, rounds: int, seed: int) -> Facts:
    """Run at the rate of Theorem 1: return the squared distance to the masked optimum, and the excess risk.

    ``late`` is the mean distance over the last quarter of the rounds, since a single round varies.
    """
    rate = random_rate(problem.setting, rounds)
    simulation, distances = problem.simulation(rounds, rate, seed), []
    for number in range(rounds):
        simulation.round(number, None)
        distances.append(float((simulation.model()["w"] - problem.optimum).square().sum()))
    w, late = simulation.model()["w"], distances[-(rounds // 4) :]
    output = problem.masked.output(w, problem.setting.smoothness, problem.setting.radius)
    return {
        **_named(problem, rounds, rate, seed),
        "distance": distances[-1],
        "late": sum(late) / len(late),
        "excess": problem.excess(w),
        "output": problem.excess(output),
    }


def stationarity(problem: Problem, rounds: int, seed: int) -> Facts:
    """Run at the rate of Theorems 2 and 4: return the mean squared gradient of the masked objective.

    The mean is over rounds for random masks, and over epochs for windows.
    """
    rate = 1 / (problem.setting.smoothness * (rounds * STEPS) ** 0.5)
    simulation = problem.simulation(rounds, rate, seed)
    every, norms = ENTRIES if problem.rolling else 1, []
    for number in range(rounds):
        simulation.round(number, None)
        if (number + 1) % every == 0:
            norms.append(problem.masked.gradient_norm(simulation.model()["w"]) ** 2)
    return {**_named(problem, rounds, rate, seed), "gradient": sum(norms) / len(norms)}


def _named(problem: Problem, rounds: int, rate: float, seed: int) -> Facts:
    kind = "rolling" if problem.rolling else "random"
    return {
        "masks": kind,
        "noisy": problem.noisy,
        "share": problem.share,
        "rounds": rounds,
        "rate": rate,
        "seed": seed,
    }


def distances() -> list[Facts]:
    """Return the distance to the masked optimum by rounds, with full and with noisy gradients."""
    full = [(posed(SHARE, False), ROUNDS, 5), (posed(SHARE, True), ROUNDS, 3)]
    noisy = [(posed(SHARE, rolling, noisy=True), FEWER_ROUNDS, 4) for rolling in (False, True)]
    return [
        course(problem, rounds, seed)
        for problem, lengths, seeds in full + noisy
        for rounds in lengths
        for seed in range(seeds)
    ]


def residuals() -> list[Facts]:
    """Return the excess risk by share."""
    problems = [posed(share, rolling) for rolling in (False, True) for share in SHARES]
    return [course(problem, 256, seed) for problem in problems for seed in range(3)]


def gradients() -> list[Facts]:
    """Return the squared gradients of the masked objectives by rounds."""
    problems = [posed(SHARE, rolling) for rolling in (False, True)]
    return [stationarity(problem, rounds, seed) for problem in problems for rounds in FEWER_ROUNDS for seed in range(2)]


STUDIES: dict[str, Callable[[], list[Facts]]] = {
    "distances": distances,
    "residuals": residuals,
    "gradients": gradients,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing studies, then render plots and page."""
    argparse.ArgumentParser(description="Run sub-model training on a convex problem.").parse_args(argv)
    torch.set_num_threads(1)
    found = {name: store.kept(STUDY, f"{STUDY}-{name}", study) for name, study in STUDIES.items()}
    theory_page.draw(found)
    tables.write(STUDY, theory_page.page(found))


if __name__ == "__main__":
    main()
