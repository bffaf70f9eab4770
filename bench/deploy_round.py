"""Seconds of a deployed round over loopback nodes, and where they go.

    python bench/deploy_round.py [--nodes 3] [--rounds 5] [--repeats 2] [--only NAME ...] [--json FILE]

FedAvg on the digits. The ways of running a node take turns: on a shared machine each meets the same load. The first
round of a network is shown apart, because processes start in it; other figures are medians over the other rounds of
all repeats. A round has two messages per node, train and evaluate. Their parts are measured on the node that finishes
last:

    pickup    from the server's message to the process that handles it: pauses of the SuperNode and of the launcher
    start     start of that process, and its imports; 0 if it was already there
    work      reading the data, training or evaluating, making the reply
    return    from the reply to the end of the server's phase: pauses of the SuperNode and of the server

Processor time is that of the nodes' processes per round, and memory is their proportional share (PSS) at its peak and
between messages, per node. ``idle CPU`` is the processor time of all nodes and the SuperLink per second after the run.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.cli import flower_app
from gossamer.engines.flower import supernode
from gossamer.engines.flower.network import LocalNetwork
from gossamer.runs.records import read_metrics
from gossamer.runs.report import text

IDLE = 10.0
"""Seconds over which the processor time without a run is measured."""

PARTS = ("pickup", "start", "work", "return")

APP = """
import json
import os
import time
from pathlib import Path

from gossamer import Task, fedavg
from gossamer.engines.flower import client_app, server_app

method = fedavg()


def task(client, settings):
    return Task.named("digits", clients=CLIENTS)


def traced(handle):
    def handled(message, context):
        begin = time.time()
        reply = handle(message, context)
        line = {"kind": message.metadata.message_type, "created": message.metadata.created_at, "born": BORN}
        line |= {"begin": begin, "end": time.time(), "pid": os.getpid()}
        line["round"] = message.content.config_records["gossamer"]["round"]
        with open(context.node_config["trace"], "a") as file:
            file.write(json.dumps(line) + chr(10))
        return reply

    return handled


ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
BORN = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks)
client = client_app(method, task)
for name, handle in list(client._registered_funcs.items()):
    client._registered_funcs[name] = traced(handle)
server = server_app(method, task, name="fedavg")
"""

CONFIG = 'rounds = 1\nout = ""\neval-every = 1'

Command = Callable[[list[str], float], list[str]]


class Way(NamedTuple):
    """A way of running nodes: the command of a SuperNode, its pauses, and the rounds between evaluations."""

    words: str
    command: Command
    poll: float = supernode.POLL
    eval_every: int = 1


def flower(arguments: list[str], poll: float) -> list[str]:
    """Flower's own SuperNode, which starts a process for every message."""
    return [str(Path(sys.executable).with_name("flower-supernode")), *arguments]


WAYS = {
    "flower": Way("a process per message, polls of 3 s", flower),
    "resident": Way("one process per run, polls of 3 s", supernode.command, 3.0),
    "half": Way("one process per run, polls of 0.5 s", supernode.command, 0.5),
    "fifth": Way("one process per run, polls of 0.2 s", supernode.command, 0.2),
    "rare": Way("one process per run, polls of 0.2 s, no evaluation", supernode.command, 0.2, 1000),
}


class Measured(NamedTuple):
    """One network with one run."""

    first: float
    rounds: list[dict[str, float]]
    cpu: float
    idle: float
    peak: float
    between: float


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="rounds per network, with the first and the last")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--json", type=Path, help="also write all measurements to a file")
    asked = parser.parse_args()
    found: dict[str, list[Measured]] = {name: [] for name in asked.only}
    for _ in range(asked.repeats):
        for name, kept in found.items():
            kept.append(measure(WAYS[name], asked.nodes, asked.rounds))
            print(f"{WAYS[name].words}: {median(kept[-1:], 'round'):.2f} s per round", file=sys.stderr, flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({name: [one._asdict() for one in kept] for name, kept in found.items()}))
    print(table(found))


def table(found: dict[str, list[Measured]]) -> str:
    """Return the table of all ways."""
    heads = ("nodes", "s per round", *PARTS, "first round s", "CPU s", "idle CPU", "peak MB", "between MB")
    return text.table(heads, [row(WAYS[name], kept) for name, kept in found.items()])


def row(way: Way, kept: list[Measured]) -> tuple[str, ...]:
    """Return the row of a way."""
    times = [f"{median(kept, name):.2f}" for name in ("round", *PARTS)]
    rest = [statistics.median(getattr(one, name) for one in kept) for name in ("first", "cpu", "idle")]
    memory = [statistics.median(getattr(one, name) for one in kept) / 1e6 for name in ("peak", "between")]
    return way.words, *times, *(f"{value:.2f}" for value in rest), *(f"{value:.0f}" for value in memory)


def median(kept: list[Measured], name: str) -> float:
    """Return the median of a part over the rounds of some networks."""
    return statistics.median(each[name] for one in kept for each in one.rounds)


def measure(way: Way, nodes: int, rounds: int) -> Measured:
    """Start a network and run on it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app").mkdir()
        (folder / "app/app.py").write_text(APP.replace("CLIENTS", str(nodes)))
        project = flower_app.project("timed", "FedAvg whose nodes write down when they work", CONFIG)
        (folder / "app/pyproject.toml").write_text(project)
        with started(way, folder, nodes) as running:
            return watched(running, way, folder, rounds)


@contextmanager
def started(way: Way, folder: Path, nodes: int) -> Iterator[LocalNetwork]:
    """A network whose nodes run in some way."""

    def config(node: int) -> dict[str, str | int | float | bool]:
        return {"partition-id": node, "state-dir": str(folder / f"{node}"), "trace": str(folder / f"{node}.jsonl")}

    before = supernode.command
    supernode.command = lambda arguments: way.command(arguments, way.poll)  # type: ignore[assignment,misc]
    try:
        with LocalNetwork(folder / "network", nodes, config) as running:
            yield running
    finally:
        supernode.command = before


def watched(running: LocalNetwork, way: Way, folder: Path, rounds: int) -> Measured:
    """Run some rounds, and measure them from the end of the first to the end of the last but one.

    The last round is left out because all nodes evaluate in it.
    """
    groups = {process.pid for name, process in running._processes.items() if name.startswith("node")}
    link = running._processes["superlink"].pid
    sizes: list[int] = []
    out = folder / "run"
    run = running.run(folder / "app", {"rounds": rounds, "out": str(out), "eval-every": way.eval_every})
    marks: dict[int, float] = {}
    while running.state(run).status == "running":
        done = len(read_metrics(out)) if (out / "metrics.jsonl").exists() else 0
        marks.setdefault(done, processor(groups))
        if done:
            sizes.append(memory(groups))
        time.sleep(0.1)
    before, now = processor(groups | {link}), time.monotonic()
    time.sleep(IDLE)
    idle = (processor(groups | {link}) - before) / (time.monotonic() - now)
    records = read_metrics(out)
    counted = [split(record, traces(folder)) for record in records]
    cpu = (marks[rounds - 1] - marks[1]) / (rounds - 2)
    return Measured(counted[0]["round"], counted[1:-1], cpu, idle, max(sizes), min(sizes))


def traces(folder: Path) -> list[dict[str, Any]]:
    """Return what the nodes wrote down."""
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def split(record: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of a round and of its parts, on the node that finishes last in each of the two phases."""
    parts = dict.fromkeys(PARTS, 0.0)
    for kind in ("train", "evaluate"):
        own = [line for line in lines if line["kind"] == kind and line["round"] == record["round"] - 1]
        if own:
            last = max(own, key=lambda line: line["end"])
            first = min(line["created"] for line in own)
            known = last["born"] if last["born"] > last["created"] else last["begin"]
            parts["pickup"] += known - first
            parts["start"] += last["begin"] - known
            parts["work"] += last["end"] - last["begin"]
            parts["return"] += record["seconds"][kind] - (last["end"] - first)
    return {"round": sum(record["seconds"].values()), **parts}


def members(groups: set[int]) -> Iterator[Path]:
    """Yield the folders in ``/proc`` of the processes of some groups."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[2]) in groups:
                yield path


def processor(groups: set[int]) -> float:
    """Return the processor time of some process groups in seconds, with that of children that have ended."""
    ticks = 0
    for path in members(groups):
        with suppress(OSError):
            ticks += sum(map(int, (path / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(groups: set[int]) -> int:
    """Return the mean memory of some process groups."""
    total = 0
    for path in members(groups):
        with suppress(OSError, StopIteration):
            lines = (path / "smaps_rollup").read_text().splitlines()
            total += 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total // len(groups)


if __name__ == "__main__":
    main()
