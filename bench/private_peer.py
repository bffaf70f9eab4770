"""Train FedAvg with central differential privacy in pfl-research and in Gossamer, one after the other.

    python bench/board/pack_pfl.py build/pfl
    PYTHONPATH=. python bench/private_peer.py --pfl build/pfl --data-dir DIR --device cuda

Both train the same network from the same weights, on the same clients, with the same Poisson cohorts, local training,
clipping norm and noise multiplier: those of the row ``dense`` of ``reproduce/privacy``. Each run is stored with the
cells of that study, unless it is stored already: accuracy on the test set in percent, and seconds of all rounds.

Three things differ. pfl divides the noisy sum by the number of clients that took part, Gossamer by the expected number.
pfl does not reshuffle between epochs; its clients are shuffled once per round. The noise is of different generators.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gossamer import Task
from gossamer.core.random import key
from gossamer.core.sampler import Pool
from gossamer.core.types import Clock
from gossamer.engines.metrics import machine
from gossamer.engines.options import Options
from gossamer.tasks.objective import Objective
from reproduce.common import cells, store
from reproduce.common.cells import Cell
from reproduce.common.protection import simulate_private
from reproduce.privacy import studies
from reproduce.privacy.page import SYSTEMS, peer_name
from reproduce.privacy.settings import EPSILONS, SETTINGS


def cohorts(cell: Cell) -> list[list[int]]:
    """Return the clients of each round, as Gossamer draws them."""
    sampler, everybody = cells.method(cell).sampler, dict.fromkeys(range(cell.clients), 1)
    pool = Pool(cell.clients, everybody, cell.per_round)
    return [sampler.propose(pool, Clock(number, cell.rounds, -1), key(cell.seed)) for number in range(cell.rounds)]


def gossamer(cell: Cell, task: Task, device: str, executor: str) -> dict[str, float]:
    """Train with Gossamer."""
    options = {"rounds": cell.rounds, "per_round": cell.per_round, "seed": cell.seed, "eval_every": cell.rounds}
    begin = time.perf_counter()
    result = simulate_private(cells.method(cell), task, device=device, executor=executor, progress=False, **options)
    wall = time.perf_counter() - begin
    took = [record["clients"] for record in result.metrics]
    assert took == cohorts(cell), "the cohorts of the two systems differ"
    rounds = sum(map(cells.seconds, result.metrics))
    return {"accuracy": 100 * result.metrics[-1]["accuracy"], "seconds": rounds, "wall": wall}


class Net(nn.Module):
    """A model with loss and metrics as methods, as pfl requires."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        return {}


def started(cell: Cell, task: Task) -> nn.Module:
    """Return the network with the first weights of Gossamer's run."""
    objective = Objective(task, "cpu", key(cell.seed))
    net = task.model()
    net.load_state_dict(objective.initial())
    return net


def pfl(cell: Cell, task: Task, device: str) -> dict[str, float]:
    """Train with pfl-research."""
    os.environ["PFL_PYTORCH_DEVICE"] = device
    from common.pfl_training import train
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import HyperParam
    from pfl.metrics import Metrics
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    torch.manual_seed(cell.seed)
    begin = time.perf_counter()
    held = task.data.train
    x, y = (part.to(device) for part in held.read(torch.arange(len(held))))
    rounds = cohorts(cell)
    order = (client for cohort in rounds for client in cohort)

    class CohortSize(HyperParam, TrainingProcessCallback):
        number = 0

        def value(self) -> int:
            return len(rounds[min(self.number, cell.rounds - 1)])

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            self.number += 1
            return False, Metrics()

    def user(client: int) -> Any:
        rows = torch.from_numpy(task.split.train(client)).to(device)
        rows = rows[torch.randperm(len(rows), device=device)]
        return Dataset((x[rows], y[rows]), user_id=str(client))

    net = Net(started(cell, task)).to(device)
    mechanism = GaussianMechanism(cell.protect["clip"], cell.protect["noise"])
    private = CentrallyAppliedPrivacyMechanism(mechanism)
    data, work = FederatedDataset(user, lambda: next(order)), argparse.Namespace(**cell.given)
    ready = time.perf_counter()
    size = CohortSize()
    train(net, data, work, size, cell.rounds, [size], postprocessors=[private], send_metrics_to_platform=False)
    assert next(order, None) is None, "pfl did not train all cohorts"
    end = time.perf_counter()
    return {"accuracy": 100 * tested(net.net, task, device), "seconds": end - ready, "wall": end - begin}


@torch.no_grad()
def tested(net: nn.Module, task: Task, device: str) -> float:
    """Return the accuracy on the test set."""
    x, y = task.data.test.read(torch.arange(len(task.data.test)))
    return float((net.eval()(x.to(device)).argmax(1) == y.to(device)).double().mean())


def runs(asked: argparse.Namespace) -> Iterator[tuple[str, Cell]]:
    """Yield the cells that both systems train, and the names of their settings."""
    for setting in asked.data:
        for seed in asked.seeds:
            for epsilon in asked.epsilons:
                cell = studies.cell(setting, "dense", epsilon, seed)
                yield setting, cell._replace(rounds=asked.rounds or cell.rounds)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Central differential privacy in pfl-research and in Gossamer.")
    parser.add_argument("--pfl", metavar="PATH", help="folder of pack_pfl.py")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--data", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(studies.SEEDS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", default="one-by-one")
    parser.add_argument("--rounds", type=int, default=0, help="fewer rounds, for a test")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    asked = arguments(words)
    if asked.pfl:
        sys.path.append(asked.pfl)
    Options(device=asked.device, executor=asked.executor)  # refuses what this machine does not have
    end = time.time() + asked.seconds
    trained: list[Callable[..., dict[str, float]]] = [partial(gossamer, executor=asked.executor), pfl]
    systems = dict(zip(SYSTEMS, trained, strict=True))
    for setting, cell in runs(asked):
        task = cells.task(cell, asked.data_dir)
        for system, train in systems.items():
            name = peer_name(setting, cell.protect["epsilon"], cell.seed, system)
            if time.time() > end or (name in store.read(studies.STUDY) and not asked.dry):
                continue
            found = {figure: round(value, 2) for figure, value in train(cell, task, device=asked.device).items()}
            given = {"protect": cell.protect, "given": cell.given, "rounds": cell.rounds}
            facts = {"system": system, **found, **given, "device": machine(asked.device)["device"]}
            print(f"{name}: {facts}", flush=True)
            if not asked.dry:
                store.write(studies.STUDY, name, facts)


if __name__ == "__main__":
    main()
