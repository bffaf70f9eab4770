"""Measure when a run is ready to train: first run, which compiles, and second run, with the program kept on disk.

    python bench/speed/ready.py                               W1: plain loop, compiled, and auto for 20 rounds
    python bench/speed/ready.py --workload w2 --executors compiled

Each run is a process of its own. Processor time is that of the process and its children: until everything is loaded
(import, data, simulation), for preparation (choosing, recording, compiling), and per round afterwards. Memory is the
peak of the process tree from the start of the first round, with the compiler's processes; see ``meter.py``. The first
run of each executor has an empty folder of kept programs. Images are random.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import meter
from systems.line import Setting
from workloads import WORKLOADS

from gossamer.runs.report import text

ROUNDS = 3
PLAIN = "plain loop"
OFTEN = 0.05
"""Seconds between two measurements of memory."""


def alone(workload: str, executor: str, declared: int, rounds: int) -> None:
    """Run some rounds, and print what they took."""
    import torch

    torch.set_num_threads(1)
    setting = Setting(WORKLOADS[workload], "", rounds, {"executor": executor, "rounds": declared, "threads": 1})
    plain = executor == PLAIN
    if plain:
        from systems.plain import Plain

        system: Any = Plain(setting)
    else:
        from systems.gossamer import Simulated

        system = Simulated(setting)
    loaded = _spent()
    print("loaded", flush=True)
    first = system.round()
    ready, wall = _spent(), 0.0 if plain else first["seconds"]["prepare"]
    times = []
    for _ in range(rounds):
        begin = _spent()
        system.round()
        times.append(_spent() - begin)
    found = {"loaded": loaded, "prepare": ready - loaded - statistics.median(times), "wall": wall, "rounds": times}
    chosen = PLAIN if plain else system.simulation.about["executor"]
    print(json.dumps({**found, "chosen": chosen, "compiler": "torch._dynamo" in sys.modules}), flush=True)
    if not plain:
        system.simulation.close()


def _spent() -> float:
    return meter.spent(meter.family(os.getpid()))


def measured(asked: argparse.Namespace, executor: str, folder: str) -> dict[str, Any]:
    """Run a process, and return what it reports with its peak of memory in bytes."""
    words = ["--alone", executor, "--workload", asked.workload, "--declared", str(asked.declared)]
    command = [sys.executable, __file__, *words, "--rounds", str(asked.rounds)]
    environment = {**os.environ, "GOSSAMER_CACHE": folder}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    peak = 0
    while child.poll() is None:
        pids = meter.family(child.pid)
        peak = max(peak, meter.own(pids) + meter.mapped(pids))
        time.sleep(OFTEN)
    found: dict[str, Any] = json.loads(child.stdout.read().splitlines()[-1])
    return {**found, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="w1", choices=WORKLOADS)
    parser.add_argument("--executors", default=f"{PLAIN},compiled,auto", help="names, separated by commas")
    parser.add_argument("--declared", type=int, default=20, help="number of rounds that auto decides for")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measured rounds after the first")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        alone(asked.workload, asked.alone, asked.declared, asked.rounds)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for executor in asked.executors.split(","):
            own = Path(folder) / ("compiled" if executor == "auto" else executor)  # auto finds what compiled has kept
            for number in (1,) if executor == PLAIN else (1, 2):
                found = measured(asked, executor, str(own))
                name = f"{executor}: {found['chosen']}" if executor == "auto" else executor
                rows.append((f"{name}, run {number}", *_cells(found)))
    head = ("", "loaded, cpu s", "preparation, cpu s", "wall s", "round, cpu s", "peak MB")
    print(f"{asked.workload}: {WORKLOADS[asked.workload].describe()}\n{text.table(head, rows)}")


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    seconds = (found["loaded"], max(0.0, found["prepare"]), found["wall"], statistics.median(found["rounds"]))
    return (*(f"{value:.2f}" for value in seconds), f"{found['peak'] / 1e6:,.0f}")


if __name__ == "__main__":
    main()
