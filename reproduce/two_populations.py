"""PERM's two populations without PERM: what the generator makes of the baselines, and why its labels need balancing.

    make reproduce WHAT=two-populations

Both generators, three seeds, logistic regression with a bias, 50 clients, all of them in every round. The table goes to
docs/reproduction/two-populations.md and to the screen.
"""

import statistics
from pathlib import Path

import numpy as np

from gossamer import Task, centralised, fedavg, local, simulate
from gossamer.core.random import key
from gossamer.runs.report.text import percent
from gossamer.tasks.data import load
from gossamer.tasks.nets import build
from gossamer.tasks.task import deal

PAGE = Path(__file__).parent.parent / "docs/reproduction/two-populations.md"
SEEDS, CLIENTS, ROUNDS = (0, 1, 2), 50, 30
METHODS = {"fedavg": fedavg(epochs=1), "local": local(epochs=1), "centralised": centralised(epochs=1)}


def task(name: str, seed: int) -> Task:
    data = load(name, clients=CLIENTS, key=key(seed))
    return Task(lambda: build("logistic", data.shape, 2), data, deal(data, "natural", CLIENTS, seed))


def majority(problem: Task) -> float:
    """What always answering the commoner label is worth."""
    share = float(np.mean(problem.data.test.labels))
    return max(share, 1 - share)


def cells(name: str) -> list[str]:
    """Mean and spread over seeds: the commoner label, then each method's personal accuracy after the last round."""
    found: dict[str, list[float]] = {"majority": [], **{method: [] for method in METHODS}}
    for seed in SEEDS:
        problem = task(name, seed)
        found["majority"].append(majority(problem))
        for method, value in METHODS.items():
            result = simulate(value, problem, rounds=ROUNDS, seed=seed, eval_every=ROUNDS)
            found[method].append(result.summary()["personal_accuracy"])
    return [f"{percent(statistics.mean(v))} ({percent(min(v))} to {percent(max(v))})" for v in found.values()]


def main() -> None:
    head = ["generator", "always the commoner label", *METHODS]
    rows = [[f"`{name}`", *cells(name)] for name in ("two-populations", "two-populations-literal")]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    table = "\n".join(lines)
    before, _, _ = PAGE.read_text().partition("<!-- table -->")
    PAGE.write_text(f"{before}<!-- table -->\n{table}\n")
    print(table)


if __name__ == "__main__":
    main()
