"""What is kept of a PERM run: clients' own accuracy and loss by round, who learned from whom, and what it cost."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import numpy as np
import torch
from cells import Cell
from torch import Tensor

from gossamer import Method, Options, Task
from gossamer.core.types import Params
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.run import Result
from gossamer.engines.simulate import Simulation
from gossamer.parts.servers import mixing
from gossamer.runs.folder import read_server

Record = dict[str, Any]
FEW = 0.05
"""A label that is rarer among a client's samples does not make it another client."""


class WithLoss(Evaluator):
    """Evaluates clients' own models by their loss, too, each on its personal test set."""

    def __call__(self, model: Params, shared: bool, personal: Callable[[int], Params]) -> dict[str, float]:
        """What any run records, and the mean over clients of the loss."""
        own = functools.cache(personal)  # some methods tune a model whenever they are asked for it
        found = super().__call__(model, shared, own)
        tested = [client for client in range(self.split.clients) if len(self.split.test(client))]
        losses = [self._outcome(own(client), self.split.test(client))[0] for client in tested]
        return {**found, "personal_loss": float(np.mean(losses))}


def engine(method: Method, task: Task, *, out: Path, resume: bool, **options: Any) -> Result:
    """A simulation with that evaluator."""
    run = Simulation(method, task, Options(**options))
    run.evaluate = WithLoss(run.objective)
    folder = run.restore(out) if resume else run.create(out)
    try:
        return run.run(folder, lambda record: None)
    finally:
        folder.close()


def facts(cell: Cell, task: Task, result: Result) -> Record:
    """All figures that the page needs; ``best`` and ``last`` are those of clients' own models."""
    told = [record for record in result.metrics if "personal_accuracy" in record]
    return {
        **cells.personal(result),
        **cells.timed(result),
        "loss": [None if record["personal_loss"] is None else round(record["personal_loss"], 4) for record in told],
        "constant": round(100 * constant(task), 2),
        "bytes_a_round": {way: _mean_bytes(result.metrics, way) for way in ("bytes_down", "bytes_up")},
        "visits": _visits(result.metrics),
        "mixing": mixed(cell, task, result) if cell.method.startswith("perm") else None,
    }


def _mean_bytes(metrics: list[Record], way: str) -> int:
    sizes = [sum(record[way].values()) for record in metrics]
    return int(sum(sizes) / len(sizes))


def _visits(metrics: list[Record]) -> dict[str, int] | None:
    """What became of all visits; none where no model goes round."""
    every = [figures["visits"] for record in metrics if "visits" in (figures := record.get("figures", {}))]
    return {kind: sum(visit[kind] for visit in every) for kind in ("trained", "skipped", "capped")} if every else None


def constant(task: Task) -> float:
    """How good it is to give one answer always, the best one for the mean over clients."""
    labels, split = task.data.test.labels, task.split
    tested = [index for client in range(split.clients) if len(index := split.test(client))]
    shares = [np.bincount(labels[index], minlength=task.data.classes) / len(index) for index in tested]
    return float(np.mean(shares, axis=0).max())


# Who learns from whom.


def mixed(cell: Cell, task: Task, result: Result) -> Record:
    """The last weights of a run in figures, each a mean over clients; those of the first seed whole, too."""
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


def groups(cell: Cell, task: Task) -> list[str] | None:
    """Which clients are alike, by name: those of one population, or with the same labels; by writer, nobody knows."""
    if cell.data.startswith("two-populations"):
        return ["first" if client < (task.clients + 1) // 2 else "second" for client in range(task.clients)]
    if cell.split.startswith("natural"):
        return None
    labels, classes = task.data.train.labels, task.data.classes
    counts = [np.bincount(labels[task.split.train(c)], minlength=classes) for c in range(task.clients)]
    return ["+".join(map(str, np.flatnonzero(count > FEW * count.sum()))) for count in counts]


def same(names: list[str]) -> Tensor:
    """Which clients are of one group, [clients, clients]."""
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    at = torch.tensor([number[name] for name in names])
    return at[:, None] == at
