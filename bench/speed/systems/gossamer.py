"""Gossamer's simulator: a round is everything except evaluation.

That includes creating, checking and decoding a message to and from every client, which the plain loop does not have.
Option ``executor``: its name. Option ``rounds``: the declared number of rounds, which ``auto`` uses. Option
``cluster``: that of the run, if it has one.
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset
from workloads import CLASSES, KINDS, SIDE, Images, Workload

import gossamer
from gossamer import Options, Task, fedavg
from gossamer.core.errors import ConfigError
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.nets import build
from systems.line import Line, Setting
from systems.networks import bert, tensors

MEMORY = "64MB"
"""Bytes of images from files that are read ahead; images above it are not held."""


def samples(images: Images) -> Samples:
    x, y = tensors(images)
    return Samples(x if x.is_floating_point() else {"input_ids": x}, y)


def task(setting: Setting) -> Task:
    work = setting.workload
    if work.files:
        from systems.pictures import TEST, Pictures

        pictures, net = Pictures(work), lambda: build(work.net, torch.Size([1, SIDE, SIDE]), CLASSES)
        return Task.of(net, pictures, Subset(pictures, range(TEST)), split=split(work), memory=MEMORY)
    train, test = map(samples, setting.images())
    data = Data("bench", train, test, KINDS if work.net == "bert" else CLASSES, split="iid", model=work.net)
    shape = None if work.net == "bert" else data.shape  # a function that holds the data would take it to each actor
    net = bert if shape is None else lambda: build(work.net, shape, CLASSES)
    return Task(net, data, split(work))


def split(work: Workload) -> Split:
    """Return the shards, without personal test sets."""
    start = np.arange(work.clients + 1)
    return Split(work.shards().reshape(-1), start * work.shard, np.arange(0), start * 0)


class Simulated:
    def __init__(self, setting: Setting) -> None:
        work, rounds = setting.workload, setting.options["rounds"]
        method = fedavg(lr=work.lr, epochs=work.epochs, batch=work.batch)
        executor, cluster = setting.options["executor"], setting.options.get("cluster")
        options = Options(rounds, work.cohort, executor=executor, eval_every=rounds, cluster=cluster)
        self.simulation = Simulation(method, task(setting), options)
        self.number = 0

    def round(self) -> dict[str, Any]:
        record = self.simulation.round(self.number, None)
        if record["failures"]:
            raise SystemExit(f"clients failed: {record['failures'][:3]}")
        self.number += 1
        return record

    def accuracy(self) -> float:
        return self.simulation.evaluate.whole(self.simulation.deployed())[1]


def main() -> None:
    line = Line()
    try:
        simulated = Simulated(Setting.read())
    except ConfigError as error:
        line.skip(str(error))
        return
    line.ready(f"gossamer {gossamer.__version__}, torch {torch.__version__}")
    while line.go(simulated.accuracy):
        record = simulated.round()
        line.done(record["seconds"].get("prepare", 0.0), simulated.simulation.about["executor"])
    simulated.simulation.close()


if __name__ == "__main__":
    main()
