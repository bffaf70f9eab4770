"""Compare a Ray cluster on this machine with ``side-by-side``: throughput, memory, start-up and cost per client task.

    python bench/cluster.py --data-dir DIR

Both have one process per core and give the same bits. They are processes of their own and take turns, round by round.
Processor time is that of all processes of a system, Ray's included; other load of the machine hardly changes it, so it
is the measure to trust on a shared machine. Throughput is the ratio of medians. The first round is not timed: it starts
the actors, and its seconds are the start-up. DIR contains ``fashion_mnist.npz``; without it, images are random.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "speed"))

import meter
from common.lane import SELDOM
from lanes import OFTEN, Lane, System
from workloads import WORKLOADS

ROUNDS = {"w1": 7, "w3-1000": 3, "registered": 1}
LIMIT = 900.0

SYSTEMS = (
    System("side-by-side", "gossamer", {"executor": "side-by-side", "rounds": 1000}),
    System("cluster local", "gossamer", {"executor": "one-by-one", "cluster": "local", "rounds": 1000}),
)


@dataclass
class Measured:
    """A system on one workload: the seconds of each round, by the clock and of all processors, and its peak memory."""

    lane: Lane
    start: float = 0.0
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    memory: int = 0

    def begin(self) -> None:
        """Load everything, and run the first round."""
        self.lane.ready()
        first = self.lane.round(OFTEN)
        self.start, self.memory = first.prepare, first.memory

    def turn(self) -> None:
        """Run one timed round."""
        before = meter.spent(meter.family(self.lane.process.pid))
        took = self.lane.round(SELDOM)
        self.wall.append(took.seconds)
        self.processor.append(meter.spent(meter.family(self.lane.process.pid)) - before)
        self.memory = max(self.memory, took.memory)

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of a round by the clock, and of all processors."""
        return statistics.median(self.wall), statistics.median(self.processor)


def compare(workload: str, data: str, rounds: int) -> str:
    """Return a table of both systems on one workload."""
    found = {
        system.name: Measured(Lane(system, {"workload": workload, "data": data, "rounds": rounds + 1}, LIMIT))
        for system in SYSTEMS
    }
    try:
        for each in found.values():
            each.begin()
        for _ in range(rounds):
            for each in found.values():
                each.turn()
    finally:
        for each in found.values():
            each.lane.close()
    return table(found, WORKLOADS[workload].cohort)


def table(found: dict[str, Measured], tasks: int) -> str:
    """Return seconds, throughput, memory and start-up of the systems, relative to the first."""
    usual = next(iter(found.values()))
    lines = [
        "| system | s per round | throughput | processor s | throughput | ms per task | peak MB | start s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, each in found.items():
        (wall, spent), (first, least) = each.medians, usual.medians
        lines.append(
            f"| {name} | {wall:.2f} | {first / wall:.2f} | {spent:.2f} | {least / spent:.2f} "
            f"| {1e3 * (spent - least) / tasks:.2f} | {each.memory / 1e6:,.0f} | {each.start:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a Ray cluster on this machine with side-by-side.")
    parser.add_argument("--data-dir", metavar="DIR", default="data", help="folder of fashion_mnist.npz")
    parser.add_argument("--workloads", metavar="NAMES", default=",".join(ROUNDS), help=f"some of {', '.join(ROUNDS)}")
    parser.add_argument("--rounds", type=int, help="timed rounds, instead of each workload's default")
    asked = parser.parse_args()
    data = str(Path(asked.data_dir).resolve())
    for workload in asked.workloads.split(","):
        result = compare(workload, data, asked.rounds or ROUNDS.get(workload, 3))
        print(f"{workload}: {WORKLOADS[workload].describe()}\n\n{result}\n", flush=True)


if __name__ == "__main__":
    main()
