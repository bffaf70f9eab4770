"""Gossamer's simulator: a round is everything except evaluation, with a message to and from every client.

Option ``executor``: its name. Option ``precision``: passed on if given; without support for it the row is left out.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

import gossamer
from board.networks import network
from board.samples import CLASSES, Held
from board.systems.line import Line, Setting, serve
from board.workloads import cohort
from gossamer import Options, Task, fedavg
from gossamer.core.errors import ConfigError
from gossamer.core.random import Key
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import Data, Samples, Split

TEST = 2
"""Number of test samples; nothing is evaluated."""


@dataclass(frozen=True)
class SameCohorts(Sampler):
    """The cohorts that the other systems train."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        return cohort(pool.clients, pool.count, clock.round)


def task(setting: Setting, held: Held) -> Task:
    work = setting.work
    train, test = Samples(held.x, held.y), Samples(held.x[:TEST], held.y[:TEST])
    data = Data("board", train, test, CLASSES[work.data], split="natural", model="custom")
    split = Split(np.arange(len(held.y)), held.starts, np.arange(0), held.starts * 0)
    return Task(lambda: network(work), data, split)


def options(setting: Setting) -> Options:
    asked = dict(setting.options)
    known = {option.name for option in fields(Options)}
    if strange := sorted(asked.keys() - known):
        raise ConfigError(f"this version of Gossamer has no option {', '.join(strange)}")
    chosen: Any = {"rounds": setting.work.rounds, "per_round": setting.work.count, "device": setting.device}
    return Options(**chosen, **asked)


def run(setting: Setting, line: Line) -> None:
    work, held = setting.work, setting.samples()
    line.building()
    method = fedavg(lr=work.lr, epochs=work.epochs, batch=work.batch).with_parts(sampler=SameCohorts())
    simulation = Simulation(method, task(setting, held), options(setting))
    try:
        line.ready()
        number = 0
        while line.go():
            simulation.train(number, Ledger())
            check(simulation)
            line.done(simulation.choice["executor"])
            number += 1
    finally:
        simulation.close()


def check(simulation: Simulation) -> None:
    """Refuse a round in which a client failed: it would be too fast."""
    for outcome in simulation.outcomes:
        if outcome.reason:
            raise RuntimeError(f"client {outcome.client}: {outcome.reason}")


if __name__ == "__main__":
    serve(f"gossamer {gossamer.__version__}, ", run)
