"""Measure the memory of PERM's server: its state, and the growth of the process while weights and schedule are made.

    python bench/perm_memory.py [--clients 1000 4000 10000] [--form pairs keep clusters]

Every client sends a random gradient of 1,024 numbers, with the mean of one of ten groups, and all are compared in one
round (``perm-two-stage``: ``once``). Then the schedule of an epoch is drawn. ``pairs`` keeps the weights of all pairs,
``keep`` 50 weights per client, and ``clusters`` those of 50 clusters. Lambda is so large for ``pairs`` that all weights
are positive, which is the most expensive case. Each line is a process of its own. ``grown`` is the largest resident
memory minus that before the weights are computed: the gradients themselves are there already.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gossamer.core import tree
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.random import generator, key
from gossamer.core.types import Clock, Part
from gossamer.engines.executors import threads
from gossamer.parts.servers import GradientSimilarity, ModelRotation

SIZE, GROUPS, KEPT = 1024, 10, 50
LAMBDA = {"pairs": 1e9, "keep": 1e4, "clusters": 1e4}
FORMS: dict[str, dict[str, Any]] = {"pairs": {}, "keep": {"keep": KEPT}, "clusters": {"clusters": KEPT}}


def resident() -> int:
    """Return the bytes of the process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def largest() -> int:
    """Return the most bytes of the process in memory so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def alone(clients: int, form: str) -> dict[str, float]:
    """Compare clients and draw a schedule in this process."""
    similarity = GradientSimilarity(lr=0.0, lam=LAMBDA[form], once=0, **FORMS[form])
    similarity = similarity.filled(clients=clients, trained=("w",))
    rotation = ModelRotation(largest=10.0).filled(clients=clients, key=key(1))
    state, cohort, clock = similarity.init({"w": torch.zeros(SIZE)}), range(clients), Clock(0, 1, -1)
    acc = similarity.begin(state, dict.fromkeys(cohort, GLOBAL))
    draws = generator(key(0))
    means = 0.2 * draws.standard_normal((GROUPS, SIZE), dtype="float32")
    for client in cohort:
        gradient = means[client % GROUPS] + 0.1 * draws.standard_normal(SIZE, dtype="float32")
        similarity.fold(acc, Arrival.of(client, Part(), {"w": torch.from_numpy(gradient)}, 100.0))
    before, start = resident(), time.process_time()
    state = similarity.finish(state, acc, clock)
    weighed, middle = largest(), time.process_time()
    epoch = rotation._epoch(state)
    drawn, end = largest(), time.process_time()
    kept = {name: state[name] for name in ("compared", "mixing")} | {"rotation": epoch.tensors(torch.device("cpu"))}
    return {
        "state": sum(tensor.nbytes for tensor in tree.flatten(kept).values()),
        "weights": weighed - before,
        "all": drawn - before,
        "weights_s": middle - start,
        "schedule_s": end - middle,
        "rounds": epoch.table.shape[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the memory of PERM's server.")
    parser.add_argument("--clients", type=int, nargs="*", default=[1000, 4000, 10000])
    parser.add_argument("--form", nargs="*", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--alone", action="store_true", help="measure the first one, in this process")
    given = parser.parse_args()
    if given.alone:
        with threads(1):
            print(json.dumps(alone(given.clients[0], given.form[0])))
        return
    heads = ["clients", "form", "rounds", "state, bytes per client", "per pair", "grown by weights, bytes per client"]
    heads += ["per pair", "with schedule, bytes per client", "per pair", "seconds: weights", "schedule"]
    print(f"| {' | '.join(heads)} |\n|" + " ---: |" * len(heads))
    for form in given.form:
        for clients in given.clients:
            print(line(clients, form), flush=True)


def line(clients: int, form: str) -> str:
    """Return a line of the table, measured in another process."""
    command = [sys.executable, __file__, "--alone", "--clients", str(clients), "--form", form]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    sizes = [f"{found[of] / clients:,.0f} | {found[of] / clients**2:.1f}" for of in ("state", "weights", "all")]
    times = [f"{found[of]:.1f}" for of in ("weights_s", "schedule_s")]
    return f"| {clients:,} | {form} | {found['rounds']:.0f} | {' | '.join(sizes + times)} |"


if __name__ == "__main__":
    main()
