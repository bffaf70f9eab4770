"""Compare Gossamer's executors with a plain PyTorch loop and with other simulators.

    python bench/speed/run.py                              some minutes: W1, a small W2, W3 with 100 clients per round
    python bench/speed/run.py --full --docs --data-dir DIR \\
        --flower PYTHON --pfl PYTHON --fedjax PYTHON       the whole comparison, and docs/speed.md

A round includes cohort sampling, local training and averaging, and for Gossamer and Flower the messages. Evaluation and
the first round are not timed. DIR contains ``fashion_mnist.npz``. PYTHON is the interpreter of an environment with the
simulator; a simulator without one is not measured. ``docs/speed.md`` describes the environments and the results.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import page
import table
import torch
import workloads
from lanes import System
from race import Outcome, race

from gossamer.engines import EXECUTORS

FULL = {"w1": 10, "w2": 3, "w3-10": 10, "w3-100": 5, "w3-1000": 3, "bert": 9, "files": 9, "held": 3}
QUICK = {"w1": 3, "w2-2": 1, "w3-100": 2}
SHORT, LONG = 20, 1000
PEERS = ("flower", "pfl", "fedjax")


def systems(pythons: dict[str, str | None]) -> list[System]:
    """Return all systems that can be measured."""
    plain = [System(f"plain loop, {n} thread{'s'[: n - 1]}", "plain", {"threads": n}) for n in (1, 2)]
    ours = [gossamer(name, name, LONG) for name in EXECUTORS]
    ours += [gossamer(f"auto for {rounds} rounds", "auto", rounds) for rounds in (SHORT, LONG)]
    return plain + ours + [peer for name in PEERS if (python := pythons[name]) for peer in peers(name, python)]


def gossamer(name: str, executor: str, rounds: int) -> System:
    """Return Gossamer with one executor; only ``auto`` depends on the number of rounds."""
    return System(f"Gossamer, {name}", "gossamer", {"executor": executor, "rounds": rounds})


def peers(name: str, python: str) -> list[System]:
    """Return a simulator in its environment, with every option that it has for two cores."""
    if name != "pfl":
        return [System({"flower": "Flower", "fedjax": "FedJAX"}[name], name, python=python)]
    return [
        System("pfl-research, 1 thread", name, {"threads": 1}, python),
        System("pfl-research, 2 threads", name, {"threads": 2}, python),
        System("pfl-research, 2 processes", name, {"threads": 1}, python, processes=2),
    ]


def about(data: str) -> dict[str, Any]:
    """Return a description of the machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "data": workloads.origin(data),
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }


def store(path: Path, workload: str, facts: dict[str, Any], outcomes: list[Outcome]) -> None:
    """Store the results of one workload; those of others stay."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[workload] = {"about": facts, "systems": [outcome.store() for outcome in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Gossamer with a plain PyTorch loop and other simulators.")
    parser.add_argument("--full", action="store_true", help="all workloads at full length (more than an hour)")
    parser.add_argument("--workloads", metavar="NAMES", type=_known, help=f"some of {', '.join(workloads.WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="timed rounds, instead of each workload's default")
    parser.add_argument(
        "--only", metavar="WORDS", help="systems with one of these words in their name, and the plain loop"
    )
    folder = os.environ.get("GOSSAMER_DATA", "data")
    parser.add_argument("--data-dir", metavar="DIR", default=folder, help="folder of fashion_mnist.npz")
    for name in PEERS:
        default = os.environ.get(f"BENCH_{name.upper()}")
        parser.add_argument(f"--{name}", metavar="PYTHON", default=default, help=f"or BENCH_{name.upper()}")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for a quiet machine before a round")
    parser.add_argument("--limit", type=float, default=900, help="seconds to wait for a reply of a system")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--docs", action="store_true", help="update docs/speed.md")
    return parser.parse_args()


def _known(names: str) -> list[str]:
    found = names.split(",")
    if wrong := [name for name in found if name not in workloads.WORKLOADS]:
        raise argparse.ArgumentTypeError(f"no workload is called {', '.join(wrong)}")
    return found


def planned(asked: argparse.Namespace) -> dict[str, int]:
    """Return the workloads, and the number of timed rounds of each."""
    plan = FULL if asked.full else QUICK
    if asked.workloads:
        plan = {name: (QUICK | FULL)[name] for name in asked.workloads}
    return {name: asked.rounds or rounds for name, rounds in plan.items()}


def chosen(asked: argparse.Namespace) -> list[System]:
    """Return the requested systems, and always the plain loop."""
    words = asked.only.split(",") if asked.only else [""]
    found = systems({name: getattr(asked, name) for name in PEERS})
    if strange := [word for word in words if not any(word in system.name for system in found)]:
        known = "; ".join(system.name for system in found)
        raise SystemExit(f"--only: no system that can be measured here has {' or '.join(strange)} in its name: {known}")
    return [s for s in found if s.family == table.PLAIN or any(word in s.name for word in words)]


def main() -> None:
    asked = arguments()
    data = str(Path(asked.data_dir).resolve())
    facts, running = about(data), chosen(asked)
    print(", ".join(f"{what}: {value}" for what, value in facts.items()))
    for peer in (name for name in PEERS if not getattr(asked, name)):
        print(f"{peer}: not measured: give the interpreter of its environment with --{peer}")
    for workload, rounds in planned(asked).items():
        outcomes = race(running, workload, data, rounds, asked.patience, asked.limit, say)
        print(f"\n{workload}: {workloads.WORKLOADS[workload].describe()}\n\n{table.text(outcomes)}\n", flush=True)
        for path in {page.RESULTS if asked.docs else None, asked.out} - {None}:
            store(path, workload, facts, outcomes)
    if asked.docs:
        page.write()


def say(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
