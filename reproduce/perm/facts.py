"""Values stored of a PERM run: personal accuracy and loss by round, mixing weights, and costs."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer import Method, Options, Task
from gossamer.core.types import Params
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.run import Result
from gossamer.engines.simulation import Simulation
from gossamer.parts.servers import mixing
from gossamer.runs.checkpoint import read_server
from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.common.store import Facts as Record

KINDS = ("trained", "skipped", "capped", "idle")

RARE = 0.05
"""Labels with a smaller share of a client's samples are ignored when clients are grouped."""


class WithLoss(Evaluator):
    """Evaluate personalized models by their loss as well, each on its personal test set."""

    def __call__(self, model: Params, shared: bool, personal: Callable[[int], Params]) -> dict[str, float]:
        """Return the usual metrics, and the mean personal loss over clients."""
        own = functools.cache(personal)  # some methods fine-tune a model at every call
        found = super().__call__(model, shared, own)
        tested = [client for client in range(self.split.clients) if len(self.split.test(client))]
        losses = [self._outcome(own(client), self.split.test(client))[0] for client in tested]
        return {**found, "personal_loss": float(np.mean(losses))}


def engine(method: Method, task: Task, *, out: Path, resume: bool, **options: Any) -> Result:
    """Run a simulation with the evaluator ``WithLoss``."""
    run = Simulation(method, task, Options(**options))
    run.evaluate = WithLoss(run.objective)
    folder = run.restore(out) if resume else run.create(out)
    try:
        return run.run(folder, lambda record: None)
    finally:
        folder.close()


def facts(cell: Cell, task: Task, result: Result) -> Record:
    """Return all values of the page. ``best`` and ``last`` are personal accuracies."""
    evaluated = [record for record in result.metrics if "personal_accuracy" in record]
    return {
        **cells.personal(result),
        **cells.timed(result),
        "loss": [
            None if record["personal_loss"] is None else round(record["personal_loss"], 4) for record in evaluated
        ],
        "constant": round(100 * constant(task), 2),
        "bytes_a_round": {way: _mean_bytes(result.metrics, way) for way in ("bytes_down", "bytes_up")},
        "visits": _visits(result.metrics),
        "mixing": mixed(cell, task, result) if cell.method.startswith("perm") else None,
        **({"weights_error": weights_error(cell, task, result)} if cell.name.startswith("perm-weights-") else {}),
    }


def _mean_bytes(metrics: list[Record], way: str) -> int:
    sizes = [sum(record[way].values()) for record in metrics]
    return int(sum(sizes) / len(sizes))


def _visits(metrics: list[Record]) -> dict[str, int] | None:
    """Return the number of visits of each kind; None for methods without model rotation."""
    every = [figures["visits"] for record in metrics if "visits" in (figures := record.get("figures", {}))]
    return {kind: sum(visit.get(kind, 0) for visit in every) for kind in KINDS} if every else None


def constant(task: Task) -> float:
    """Return the best accuracy of a constant answer, as the mean over clients."""
    labels, split = task.data.test.labels, task.split
    tested = [index for client in range(split.clients) if len(index := split.test(client))]
    shares = [np.bincount(labels[index], minlength=task.data.classes) / len(index) for index in tested]
    return float(np.mean(shares, axis=0).max())


# Mixing weights.


def mixed(cell: Cell, task: Task, result: Result) -> Record:
    """Summarize the last mixing weights of a run by means over clients; for seed 0 with the whole matrix."""
    assert result.path is not None
    server = read_server(result.path)
    weights = mixing.square(server["mixing"], task.clients)
    alike = groups(cell, task)
    return {
        "lam": float(server["lam"]),
        "own": round(float(weights.diagonal().mean()), 4),
        "peers": round(float((1 / weights.square().sum(1)).mean()), 2),
        "group": None if alike is None else round(float(weights[same(alike)].sum() / len(weights)), 4),
        "group_peers": None if alike is None else round(float(same(alike).sum(1).double().mean()), 2),
        "groups": alike,
        "weights": [[round(value, 4) for value in row] for row in weights.tolist()] if cell.seed == 0 else None,
    }


def weights_error(cell: Cell, task: Task, result: Result) -> float:
    """Return the squared error of the mixing weights against those at the global optimum, the mean over clients."""
    assert result.path is not None
    found = mixing.square(read_server(result.path)["mixing"], task.clients).cpu()
    return float((found - optimal_weights(task, cell.given["lambda_"])).square().sum(1).mean())


def optimal_weights(task: Task, lam: float) -> Tensor:
    """Return the mixing weights at the optimum of the mean loss: logistic regression, by Newton's method.

    The network has two outputs. Its gradient has the entries of that of one output, twice.
    """
    x, y = torch.as_tensor(task.data.train.x).double(), torch.as_tensor(task.data.train.y).double()
    x = torch.cat((x.flatten(1), torch.ones(len(x), 1, dtype=torch.float64)), 1)
    mine = [torch.from_numpy(task.split.train(client)) for client in range(task.clients)]

    def gradients(v: Tensor) -> Tensor:
        return torch.stack([x[at].T @ (torch.sigmoid(x[at] @ v) - y[at]) / len(at) for at in mine])

    v = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(30):
        share = torch.sigmoid(x @ v)
        curves = [x[at].T @ (x[at] * (share[at] * (1 - share[at]))[:, None]) / len(at) for at in mine]
        v = v - torch.linalg.solve(torch.stack(curves).mean(0), gradients(v).mean(0))
    apart = 2 * (gradients(v)[:, None] - gradients(v)).square().sum(-1)
    return mixing.waterfill(apart, torch.tensor([len(at) for at in mine]), lam)


def groups(cell: Cell, task: Task) -> list[str] | None:
    """Return the group of each client: its population or its labels. None for partitions without known groups."""
    if cell.data.startswith("two-populations"):
        return ["first" if client < (task.clients + 1) // 2 else "second" for client in range(task.clients)]
    if cell.split.startswith("natural"):
        return None
    labels, classes = task.data.train.labels, task.data.classes
    counts = [np.bincount(labels[task.split.train(c)], minlength=classes) for c in range(task.clients)]
    return ["+".join(map(str, np.flatnonzero(count > RARE * count.sum()))) for count in counts]


def same(names: list[str]) -> Tensor:
    """Return which pairs of clients have the same group, as a matrix [clients, clients]."""
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    at = torch.tensor([number[name] for name in names])
    return at[:, None] == at
