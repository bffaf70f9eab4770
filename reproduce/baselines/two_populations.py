"""PERM's synthetic data (https://arxiv.org/abs/2310.17761) with three baselines, and the balance of its labels.

    make reproduce WHAT=two-populations

Both generators, three seeds, logistic regression with a bias, 50 clients, all of them in every round. The table goes to
docs/reproduction/two-populations.md.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from gossamer import Task, centralised, fedavg, local, simulate
from gossamer.core.random import key
from gossamer.tasks.data import load
from gossamer.tasks.nets import build
from gossamer.tasks.task import deal
from reproduce.common import tables
from reproduce.common.seeds import spread

PAGE = "two-populations"
GENERATORS = ("two-populations", "two-populations-literal")
SEEDS, CLIENTS, ROUNDS = (0, 1, 2), 50, 30
METHODS = {"fedavg": fedavg(epochs=1), "local": local(epochs=1), "centralised": centralised(epochs=1)}


def task(name: str, seed: int) -> Task:
    data = load(name, clients=CLIENTS, key=key(seed))
    return Task(lambda: build("logistic", data.shape, 2), data, deal(data, "natural", CLIENTS, seed))


def majority(problem: Task) -> float:
    """Return the accuracy of always answering the more frequent label."""
    share = float(np.mean(problem.data.test.labels))
    return max(share, 1 - share)


def row(name: str) -> list[str]:
    """Return the accuracy of the more frequent label, and the personal accuracy of each method after the last round."""
    found: dict[str, list[float]] = {"majority": [], **{method: [] for method in METHODS}}
    for seed in SEEDS:
        problem = task(name, seed)
        found["majority"].append(majority(problem))
        for method, value in METHODS.items():
            result = simulate(value, problem, rounds=ROUNDS, seed=seed, eval_every=ROUNDS)
            found[method].append(result.summary()["personal_accuracy"])
    return [spread([100 * value for value in values], unit=" %") for values in found.values()]


def main(argv: Sequence[str] | None = None) -> None:
    """Run all methods, and render the page."""
    argparse.ArgumentParser(description="Run three baselines on PERM's synthetic data.").parse_args(argv)
    rows = [[f"`{name}`", *row(name)] for name in GENERATORS]
    tables.write(PAGE, tables.markdown(["generator", "always the more frequent label", *METHODS], rows))


if __name__ == "__main__":
    main()
