"""Sub-model training on a convex problem, beside the terms of Theorems 1 to 4.

    make reproduce WHAT=submodel-theory

Random masks (Algorithm 1) and shuffled windows (Algorithm 2) as Gossamer runs them, on logistic regression so small
that masked optima are known to ten digits. Runs are kept in docs/reproduction/cells/submodel-theory-*.json and not
done twice; tables and pictures go to docs/reproduction/submodel-theory.md.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import submodel_theory_curves as curves
import submodel_theory_page as page
import torch
from submodel_theory_problem import ENTRIES, STEPS, Problem, posed

from gossamer.analysis.theory import random_rate

Row = dict[str, Any]

ROUNDS = (64, 128, 256, 512, 1024)
FEWER = (64, 256, 1024)
SHARE = 0.5
SHARES = (0.25, 0.5, 0.75, 0.875, 1.0)


def course(problem: Problem, rounds: int, seed: int) -> Row:
    """A run at Theorem 1's rate: how far it ends from the masked optimum, squared, and how far above F's minimum.

    ``late`` is the mean of that distance over the last quarter of the rounds: one round's alone goes up and down.
    """
    rate = random_rate(problem.setting, rounds)
    simulation, apart = problem.simulation(rounds, rate, seed), []
    for number in range(rounds):
        simulation.round(number, None)
        apart.append(float((simulation.model()["w"] - problem.optimum).square().sum()))
    w, late = simulation.model()["w"], apart[-(rounds // 4) :]
    output = problem.masked.output(w, problem.setting.smoothness, problem.setting.radius)
    return {
        **_named(problem, rounds, rate, seed),
        "distance": apart[-1],
        "late": sum(late) / len(late),
        "excess": problem.excess(w),
        "output": problem.excess(output),
    }


def still(problem: Problem, rounds: int, seed: int) -> Row:
    """A run at the rate of Theorems 2 and 4: the mean of the masked objective's squared gradient, by round or epoch."""
    rate = 1 / (problem.setting.smoothness * (rounds * STEPS) ** 0.5)
    simulation = problem.simulation(rounds, rate, seed)
    every, norms = ENTRIES if problem.rolling else 1, []
    for number in range(rounds):
        simulation.round(number, None)
        if (number + 1) % every == 0:
            norms.append(problem.masked.gradient_norm(simulation.model()["w"]) ** 2)
    return {**_named(problem, rounds, rate, seed), "gradient": sum(norms) / len(norms)}


def _named(problem: Problem, rounds: int, rate: float, seed: int) -> Row:
    kind = "rolling" if problem.rolling else "random"
    return {
        "masks": kind,
        "noisy": problem.noisy,
        "share": problem.share,
        "rounds": rounds,
        "rate": rate,
        "seed": seed,
    }


def distances() -> list[Row]:
    """The distance to the masked optimum against rounds, with full gradients and with noisy ones."""
    full = [(posed(SHARE, False), ROUNDS, 5), (posed(SHARE, True), ROUNDS, 3)]
    noisy = [(posed(SHARE, rolling, noisy=True), FEWER, 4) for rolling in (False, True)]
    return [
        course(problem, rounds, seed)
        for problem, many, seeds in full + noisy
        for rounds in many
        for seed in range(seeds)
    ]


def residuals() -> list[Row]:
    """What is left of the excess risk, against the share that is held."""
    problems = [posed(share, rolling) for rolling in (False, True) for share in SHARES]
    return [course(problem, 256, seed) for problem in problems for seed in range(3)]


def gradients() -> list[Row]:
    """How nearly stationary masked objectives become, against rounds."""
    problems = [posed(SHARE, rolling) for rolling in (False, True)]
    return [still(problem, rounds, seed) for problem in problems for rounds in FEWER for seed in range(2)]


STUDIES: dict[str, Callable[[], list[Row]]] = {
    "distances": distances,
    "residuals": residuals,
    "gradients": gradients,
}


def kept(name: str) -> list[Row]:
    """What a study found; it is done if it was not."""
    path: Path = cells.CELLS / f"submodel-theory-{name}.json"
    if not path.exists():
        found = STUDIES[name]()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
    rows: list[Row] = json.loads(path.read_text())
    return rows


def main() -> None:
    torch.set_num_threads(1)
    found = {name: kept(name) for name in STUDIES}
    curves.draw(found)
    cells.write(cells.PAGES / "submodel-theory.md", page.tables(found))


if __name__ == "__main__":
    main()
