"""Count the rounds of a PERM epoch and the clients that train in them, and time the schedule.

    python bench/perm_schedule.py [--calls 20]

A model visits the clients for which its owner has a positive weight. ``random`` draws the hosts of each model at
random. In ``groups`` clients learn from each other in groups. The Latin square of the paper has N rounds per epoch. The
edge colouring has as many as the largest number of visits of a model or to a host. ``train`` is the share of the
clients of a round that train: with all clients in every round, and with 1 % of them in the first rounds of an epoch.
``seconds`` is the processor time of the edge colouring.
"""

import argparse
import time

import numpy as np

from gossamer.core.random import choice, fold, generator, key
from gossamer.parts.servers.mixing import Pairs, draw, slot, visits

SIZES = ((50, 10), (2_000, 20), (10_000, 20), (1_000, 500), (1_000, 1_000))
"""Numbers of clients, and of weights per client."""


def random(clients: int, keep: int) -> Pairs:
    """Return pairs with hosts drawn uniformly, without repetition within a model."""
    draws = generator(fold(key(0), "hosts", clients))
    hosts = np.concatenate([draws.choice(clients, keep, replace=False) for _ in range(clients)])
    return Pairs(np.repeat(np.arange(clients), keep), hosts)


def groups(clients: int, keep: int) -> Pairs:
    """Return pairs within groups of ``keep`` clients."""
    models = np.repeat(np.arange(clients), keep)
    return Pairs(models, models // keep * keep + np.tile(np.arange(keep), clients))


def sampled(table: np.ndarray, rounds: int) -> tuple[int, int]:
    """Return visits and calls in some rounds with 1 % of the clients, at least two."""
    clients, done, trained = len(table), np.zeros(table.shape, dtype=np.bool_), 0
    cohort = max(2, clients // 100)
    for turn in range(rounds):
        present = choice(fold(key(1), "present", turn), clients, cohort).tolist()
        found = visits(table, done, turn, present)
        for host, model in found.items():
            done[host, slot(table, done, turn, host, model)] = True
        trained += len(found)
    return trained, rounds * cohort


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the schedule of PERM.")
    parser.add_argument("--calls", type=int, default=20, help="rounds with 1 %% of the clients to simulate")
    given = parser.parse_args()
    heads = ["clients", "weights", "pairs", "Latin square: rounds", "train"]
    heads += ["colouring: rounds", "train", "seconds", "1 % train"]
    print(f"| {' | '.join(heads)} |")
    print("|" + " ---: |" * 9)
    for clients, keep in SIZES:
        for make in (random, groups):
            pairs = make(clients, keep)
            start = time.process_time()
            table = draw(pairs, clients, key(2))
            taken, rounds = time.process_time() - start, table.shape[1]
            trained, calls = sampled(table, given.calls)
            shares = [100 * keep / clients, 100 * keep / rounds, 100 * trained / calls]
            print(
                f"| {clients:,} | {keep} | {make.__name__} | {clients:,} | {shares[0]:.1f} % | {rounds} "
                f"| {shares[1]:.0f} % | {taken:.2f} | {shares[2]:.0f} % |"
            )


if __name__ == "__main__":
    main()
