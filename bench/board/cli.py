"""Measure published workloads, and write the results."""

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

from board import page, table
from board.lane import Lane, System
from board.race import race
from board.workloads import WORKLOADS, Workload, reduced

DESCRIPTION = "Measure published workloads beside a plain PyTorch loop and pfl-research."


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument("--workloads", metavar="NAMES", type=_known, default=list(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--pfl", metavar="PATH", default=os.environ.get("BENCH_PFL", ""), help="folder or interpreter")
    parser.add_argument("--executors", metavar="NAMES", type=_names, help="Gossamer's, instead of each workload's own")
    parser.add_argument("--precision", metavar="NAMES", type=_names, default=[], help="further rows, such as bf16")
    parser.add_argument("--only", metavar="WORDS", type=_names, default=[], help="systems with a word in their name")
    parser.add_argument("--rounds", type=int, default=50, help="timed rounds at most (50)")
    parser.add_argument("--seconds", type=float, default=15, help="timed seconds per system and workload (15)")
    parser.add_argument("--clients-per-round", type=int, help="clients per timed round; times are multiplied")
    parser.add_argument("--small", action="store_true", help="tiny networks and data, for a test")
    folder = os.environ.get("GOSSAMER_DATA", "data")
    parser.add_argument("--data-dir", metavar="DIR", default=folder, help="folder of cifar10.npz, if there is one")
    parser.add_argument("--limit", type=float, default=240, help="seconds to wait for a reply of a system (240)")
    parser.add_argument("--out", type=Path, default=_out(), help="a JSON file for the results ($OUT/board.json)")
    parser.add_argument("--docs", action="store_true", help="update docs/speed.md")
    return parser.parse_args(words)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _known(text: str) -> list[str]:
    if wrong := [name for name in _names(text) if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"no workload is called {', '.join(wrong)}: {', '.join(WORKLOADS)}")
    return _names(text)


def _out() -> Path | None:
    return Path(os.environ["OUT"]) / "board.json" if os.environ.get("OUT") else None


def systems(asked: argparse.Namespace, work: Workload) -> list[System]:
    """Return the systems that are measured on a workload."""
    found = [System("plain loop", table.PLAIN)]
    if asked.pfl:
        found.append(System("pfl-research", "pfl", where=asked.pfl))
    for executor in asked.executors or own_executors(asked.device, work):
        found += [gossamer(executor, precision) for precision in ("", *asked.precision)]
    return [system for system in found if not asked.only or any(word in system.name for word in asked.only)]


def own_executors(device: str, work: Workload) -> list[str]:
    """Return the executors that a workload is measured with by default."""
    if device == "cpu":
        return ["auto"]
    return ["captured-plain", "one-by-one"] if work.eager else ["captured"]


def gossamer(executor: str, precision: str) -> System:
    options = {"executor": executor} | ({"precision": precision} if precision else {})
    return System(", ".join(["Gossamer", *options.values()]), "gossamer", options)


class Lanes:
    """The processes of all systems; each starts when it is first needed."""

    def __init__(self, limit: float) -> None:
        self.limit, self.started = limit, dict[str, Lane]()

    def of(self, found: list[System]) -> list[Lane]:
        """Return the processes of some systems; new ones start at the same time."""
        for system in found:
            if system.name not in self.started:
                self.started[system.name] = Lane(system, self.limit)
        return [self.started[system.name] for system in found]

    def close(self) -> None:
        """End all processes."""
        for lane in self.started.values():
            lane.close()


def about(lanes: list[Lane], work: Workload, data: str, device: str) -> dict[str, Any]:
    """Return a description of the machine."""
    from board.samples import origin  # needs torch, which rendering the page does not

    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "data": origin(work, data),
        "device": lanes[0].about()["device"] if device == "cuda" else "CPU",
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "day": time.strftime("%Y-%m-%d"),
        "timed_clients": work.count,
    }


def measure(name: str, asked: argparse.Namespace, lanes: Lanes) -> dict[str, Any]:
    """Measure one workload; return what is stored."""
    work, data = reduced(WORKLOADS[name], asked.clients_per_round, asked.small), str(Path(asked.data_dir).resolve())
    setting = {
        "workload": name,
        "device": asked.device,
        "data": data,
        "count": asked.clients_per_round,
        "small": asked.small,
    }
    running = lanes.of(systems(asked, work))
    if not running:
        raise SystemExit(f"no system has {' or '.join(asked.only)} in its name")
    outcomes = race(running, setting, asked.rounds, asked.seconds, say)
    facts = about(running, work, data, asked.device)
    print(f"\n{name}: {work.describe()}\n\n{table.text(outcomes, work)}\n", flush=True)
    return {"about": facts, "systems": [outcome.store() for outcome in outcomes]}


def main() -> None:
    """Measure all requested workloads; results are written after each."""
    asked = arguments()
    if asked.small and asked.docs:
        raise SystemExit("--small is for a test: its results do not belong on the page")
    lanes, begin = Lanes(asked.limit), time.perf_counter()
    try:
        for name in asked.workloads:
            found = {name: measure(name, asked, lanes)}
            for path in {asked.out, page.RESULTS if asked.docs else None} - {None}:
                page.merge(path, found)
            say(f"{time.perf_counter() - begin:.0f} s so far")
    finally:
        lanes.close()
    if asked.docs:
        page.write()


def say(line: str) -> None:
    print(f"  {line}", flush=True)
