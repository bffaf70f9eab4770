"""Rounds on a GPU by network, method and precision: seconds, share of the roofline, memory, seconds until ready.

    python bench/gpu_rows.py [--networks cnn4 resnet18-gn transformer] [--warm] [--profile FOLDER] [--docs]

Each row is a process of its own with an empty folder for compiled programs: a cold start. With ``--warm`` it is started
again with the same folder. Samples are random, of the shapes of Fashion-MNIST (``cnn4``), CIFAR-10 (``resnet18-gn``)
and of texts of 64 tokens (``transformer``: 4 layers, 256 wide): the figures are about speed alone. A round has 10
clients and messages both ways, without evaluation. Operations are those of torch's counter, forward and backward. The
roofline is the rate of a product of two square matrices in the same precision and process. Memory is what torch
reserves on the GPU. A start is from the start of Python to the first round.
``--docs`` stores the rows, and writes the table of docs/speed.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import gpu_profile
import torch
from torch import Tensor, nn

from gossamer import Method, Options, Task, fedavg, fedmrn
from gossamer.engines.metrics import Ledger, peak_memory
from gossamer.engines.simulation import Simulation
from gossamer.tasks.nets import build
from gossamer.tasks.precision import BF16, PRECISIONS, products

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "bench/speed/results/gpu.json", ROOT / "docs/speed.md"
BEGIN, END = "<!-- written by bench/gpu_rows.py: begin -->", "<!-- written by bench/gpu_rows.py: end -->"
METHODS = ("fedavg", "fedmrn")
VOCABULARY, CLASSES = 1000, 10
NAMES = ("network", "method", "precision")
HEADS = (*NAMES, "s per round", "TFLOP", "TFLOP/s", "of the roofline", "GPU memory", "ready", "ready, warm")

Row = dict[str, Any]


class Workload(NamedTuple):
    """A network, and the training of one client in a round.

    Args:
        shape: shape of one sample
        samples: samples per client
        epochs: local epochs
        batch: batch size
        width: width of the transformer; 0 for other networks
        clients: clients per round
        side: side of the matrices of the roofline
    """

    shape: tuple[int, ...]
    samples: int
    epochs: int
    batch: int
    width: int = 0
    clients: int = 10
    side: int = 8192

    def tiny(self) -> "Workload":
        """Return a size at which a CPU can test the script."""
        shape = (self.shape[0], 16, 16) if len(self.shape) == 3 else (8,)
        return Workload(shape, 8, 1, 4, 16 if self.width else 0, clients=2, side=64)


NETWORKS = {
    "cnn4": Workload((1, 28, 28), 600, 10, 64),
    "resnet18-gn": Workload((3, 32, 32), 500, 2, 50),
    "transformer": Workload((64,), 320, 2, 32, width=256),
}


class Transformer(nn.Module):
    """Four encoder layers on tokens, and the class of a text from the mean over its tokens."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, width), nn.Parameter(0.02 * torch.randn(tokens, width))
        layers = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(4)
        ]
        self.layers, self.norm, self.last = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        scores: Tensor = self.last(self.norm(self.layers(self.embedding(x) + self.position)).mean(1))
        return scores


def task(network: str, work: Workload) -> Task:
    """Return random samples for a network."""
    torch.manual_seed(0)
    count = work.samples * work.clients
    x = torch.randint(VOCABULARY, (count, *work.shape)) if work.width else torch.randn(count, *work.shape)
    y = torch.randint(CLASSES, (count,))

    def model() -> nn.Module:
        return Transformer(work.shape[0], work.width) if work.width else build(network, work.shape, CLASSES)

    return Task.of(model, (x, y), (x[:10], y[:10]), clients=work.clients)


def method(name: str, work: Workload) -> Method:
    """Return a method with the training of a workload."""
    given = {"epochs": work.epochs, "batch": work.batch}
    return fedavg(lr=0.03, **given) if name == "fedavg" else fedmrn(lr=0.03, **given)  # type: ignore[arg-type]


def wait(device: str) -> None:
    """Wait until the device has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def round_of(simulation: Simulation, number: int, device: str) -> tuple[float, Ledger]:
    """Return the seconds of a round, without its evaluation."""
    ledger, begin = Ledger(), time.perf_counter()
    simulation.train(number, ledger)
    wait(device)
    return time.perf_counter() - begin, ledger


def roofline(precision: str, device: str, side: int) -> float:
    """Return the operations per second of a large product of matrices."""
    dtype = torch.bfloat16 if precision == BF16 else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    times = []
    with products(precision, torch.device(device)):
        for _ in range(12):
            wait(device)
            begin = time.perf_counter()
            a @ b
            wait(device)
            times.append(time.perf_counter() - begin)
    return 2 * side**3 / statistics.median(times[2:])


class Case(NamedTuple):
    """What a row measures."""

    network: str
    method: str
    precision: str
    executor: str

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Case":
        """Return the only case of the arguments."""
        (network,), (method,), (precision,) = given.networks, given.methods, given.precisions
        return cls(
            network, method, precision, given.executor or ("captured" if given.device == "cuda" else "one-by-one")
        )


def alone(given: argparse.Namespace) -> Row:
    """Measure one row in this process."""
    case, device = Case.of(given), given.device
    work = NETWORKS[case.network].tiny() if given.tiny else NETWORKS[case.network]
    options = Options(rounds=given.rounds + 2, device=device, executor=case.executor, precision=case.precision)
    simulation = Simulation(method(case.method, work), task(case.network, work), options)
    begin = time.perf_counter()
    simulation.prepare(0, simulation.cohort(0, Ledger()), Ledger())
    wait(device)
    start = {"prepared": time.perf_counter() - begin, "ready": time.time() - given.since}
    rounds = [round_of(simulation, number, device) for number in range(given.rounds + 1)][1:]
    memory = torch.cuda.max_memory_reserved() if device == "cuda" else peak_memory()
    row = {**case._asdict(), **start, **middle(rounds), "memory": memory}
    if given.profile:
        given.profile.mkdir(parents=True, exist_ok=True)
        found = gpu_profile.spans(lambda: simulation.train(given.rounds + 1, Ledger()), device)
        text = gpu_profile.report(", ".join(case), row["seconds"], row["phases"], *found)
        (given.profile / f"{'-'.join(case[:3])}.md").write_text(text + "\n")
    simulation.close()
    return {**row, "roofline": roofline(case.precision, device, work.side)}


def middle(rounds: Sequence[tuple[float, Ledger]]) -> Row:
    """Return the figures of the round with the median time."""
    ordered = sorted(rounds, key=lambda one: one[0])
    seconds, ledger = ordered[len(ordered) // 2]
    times = {"seconds": seconds, "fastest": ordered[0][0], "slowest": ordered[-1][0], "phases": dict(ledger.seconds)}
    return {**times, "flops": ledger.flops, "failures": [each for _, one in rounds for each in one.failures]}


def started(words: Sequence[str], folder: Path) -> Row:
    """Measure one row in a process of its own; programs are compiled into ``folder``."""
    paths = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "XDG_CACHE_HOME": "cache"}
    places = {name: str(folder / place) for name, place in paths.items()}
    command = [sys.executable, __file__, "--alone", *words, "--since", str(time.time())]
    done = subprocess.run(command, env={**os.environ, **places}, stdout=subprocess.PIPE, text=True, check=True)
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(given: argparse.Namespace) -> list[Row]:
    """Measure all rows, one after the other, and print each."""
    rows = []
    same = ["--device", given.device, "--rounds", str(given.rounds), *(["--tiny"] if given.tiny else [])]
    same += ["--executor", given.executor] if given.executor else []
    for network, name, precision in product(given.networks, given.methods, given.precisions):
        words = ["--networks", network, "--methods", name, "--precisions", precision, *same]
        more = ["--profile", str(given.profile)] if given.profile else []
        with tempfile.TemporaryDirectory() as folder:
            row = started([*words, *more], Path(folder))
            row["warm"] = started([*words, "--rounds", "1"], Path(folder))["ready"] if given.warm else None
        rows.append(row)
        print(line(row), file=sys.stderr, flush=True)
    return rows


def line(row: Row) -> str:
    """Return a row of the table."""
    rate, warm = row["flops"] / row["seconds"], row.get("warm")
    cells = [f"`{row['network']}`", f"`{row['method']}`", f"`{row['precision']}`"]
    cells += [f"{row['seconds']:.3f} ({row['fastest']:.3f} to {row['slowest']:.3f})", f"{1e-12 * row['flops']:.2f}"]
    cells += [f"{1e-12 * rate:.1f}", f"{100 * rate / row['roofline']:.1f} % of {1e-12 * row['roofline']:.0f}"]
    cells += [f"{row['memory'] / 2**30:.2f} GiB", f"{row['ready']:.1f} s", f"{warm:.1f} s" if warm else ""]
    return "| " + " | ".join(cells) + " |" + (f" failures: {row['failures'][0]['reason']}" if row["failures"] else "")


def markdown(rows: Sequence[Row]) -> str:
    """Return the table, and the time of FedMRN relative to FedAvg."""
    sides = ["---"] * 3 + ["---:"] * (len(HEADS) - 3)
    lines = ["| " + " | ".join(cells) + " |" for cells in (HEADS, sides)] + [line(row) for row in rows]
    by = {(row["network"], row["precision"], row["method"]): row["seconds"] for row in rows}
    ratios = [
        f"{network} in {precision} {seconds / by[network, precision, 'fedavg']:.2f}"
        for (network, precision, name), seconds in by.items()
        if name == "fedmrn" and (network, precision, "fedavg") in by
    ]
    return "\n".join(lines) + (f"\n\nFedMRN relative to FedAvg: {', '.join(ratios)}." if ratios else "")


def page(stored: dict[str, Any]) -> str:
    """Return the part of the page: the stored rows, and which were not run."""
    rows = stored.get("rows", [])
    done = {tuple(row[name] for name in NAMES) for row in rows}
    absent = [" ".join(each) for each in product(NETWORKS, METHODS, PRECISIONS) if each not in done]
    parts = [f"{stored['about']}\n\n{markdown(rows)}"] if rows else []
    parts += [f"**Not run yet:** {', '.join(absent)}."] if absent else []
    return "\n\n".join(parts)


def write(rows: Sequence[Row], given: argparse.Namespace) -> None:
    """Store rows, in place of earlier ones of the same names, and update the page."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    by = {tuple(row[name] for name in NAMES): row for row in (*stored["rows"], *rows)}
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    stored = {"about": f"{where}, torch {torch.__version__}, {date.today()}.", "rows": list(by.values())}
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    render()


def render() -> None:
    """Write the stored rows to the page."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(stored)}\n\n{END}{rest.partition(END)[2]}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description="Measure rounds on a GPU by network, method and precision.")
    made.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=["cnn4"])
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    made.add_argument("--rounds", type=int, default=5, help="measured rounds, after one that is not (5)")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--executor", help="captured, or one-by-one on a CPU")
    made.add_argument("--warm", action="store_true", help="start each row again, with compiled programs on disk")
    made.add_argument("--profile", type=Path, help="folder for a profile of one round of each row")
    made.add_argument("--docs", action="store_true", help="store the rows, and write them to docs/speed.md")
    made.add_argument(
        "--render", action="store_true", help="write the stored rows to docs/speed.md, and measure nothing"
    )
    made.add_argument("--tiny", action="store_true", help="smallest sizes, to test the script")
    made.add_argument("--alone", action="store_true", help="measure one row in this process")
    made.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)
    return made


def main() -> None:
    """Measure the rows that were asked for."""
    given = parser().parse_args()
    if given.device == "cuda" and not given.render and not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU: give --device cpu --tiny to test the script")
    if given.render:
        render()
    elif given.alone:
        print(json.dumps(alone(given)))
    else:
        rows = measure(given)
        print(markdown(rows))
        if given.docs:
            write(rows, given)


if __name__ == "__main__":
    main()
