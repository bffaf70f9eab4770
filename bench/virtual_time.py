"""Measure the virtual clock: its share of a synchronous run, and its events per minute without training.

    python bench/virtual_time.py [--rounds 20] [--repeats 7] [--seconds 20]

The first rows compare a run under ``sync`` with the same run without a schedule: FedAvg on digits with 10 of 50 clients
per round, which have 29 samples each. Both are done in turns in one process, and the medians of their times are
compared. The last row is FedBuff with 100 of 1,000 clients in training, which come
and go. Nothing is trained. The events are those that the clock takes from its queue: ends of training and of tasks, and
clients that leave and come back. Seconds are those of the processor.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gossamer import Options, Task, fedavg
from gossamer.core.availability import SECOND, Availability
from gossamer.engines.simulation import Simulation
from gossamer.parts.schedules import FedBuff, Schedule, Synchronous

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.stub_run import StubRun
from helpers.toy_devices import Cycle, ToyDevices


@dataclass(frozen=True)
class Toggling(ToyDevices):
    """Devices that come and go, each at times of its own."""

    def availability(self, client: int) -> Availability:
        """Return a cycle of minutes."""
        return Cycle((60 + client % 97) * SECOND, (30 + client % 53) * SECOND, client * 7919 * SECOND // 1000)


def seconds_of(schedule: Schedule | None, rounds: int, epochs: int, task: Task) -> float:
    """Return the processor time of a run without its start."""
    options = Options(rounds=rounds, per_round=10, schedule=schedule, channel=ToyDevices(), eval_every=rounds)
    run = Simulation(fedavg(epochs=epochs), task, options)
    before = time.process_time()
    run.run(None, lambda record: None)
    return time.process_time() - before


def overhead(rounds: int, epochs: int, repeats: int, task: Task) -> tuple[float, float]:
    """Return the median times of a run without a schedule, and of the same under ``sync``."""
    for schedule in (None, Synchronous()):
        seconds_of(schedule, 1, epochs, task)
    alone, timed = list[float](), list[float]()
    for _ in range(repeats):
        alone.append(seconds_of(None, rounds, epochs, task))
        timed.append(seconds_of(Synchronous(), rounds, epochs, task))
    return statistics.median(alone), statistics.median(timed)


def events(seconds: float, clients: int = 1000, concurrency: int = 100) -> tuple[int, int, float]:
    """Return the events and the tasks of FedBuff without training, and the processor time that they took."""
    schedule, devices = FedBuff(concurrency=concurrency, buffer=10), Toggling(lossy=True, speed=50.0, rate=50.0)
    run, tasks = StubRun(clients, concurrency, schedule, devices, 10**6), 0
    begun = time.process_time()
    while (spent := time.process_time() - begun) < seconds:
        tasks += len(run.round()["tasks"]["client"])
        run.groups.clear()
    return run.dispatcher.queue.taken, tasks, spent


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description="Measure the virtual clock.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    task = Task.named("digits", clients=50)
    for epochs in (1, 5):
        alone, timed = overhead(asked.rounds, epochs, asked.repeats, task)
        change = f"{100 * (timed / alone - 1):+.1f} %"
        print(f"sync, {epochs} epochs: {timed:.3f} s, without a schedule {alone:.3f} s: {change}")
    found, tasks, spent = events(asked.seconds)
    print(f"events: {found:,} with {tasks:,} tasks in {spent:.1f} s: {60 * found / spent:,.0f} per minute")


if __name__ == "__main__":
    main()
