"""FedMRN's Figure 6: how long a client trains for one round, encodes its message, and how long the server folds it.

A client of Table 1's size on random images: time does not depend on what they show. All methods take turns, so that
whatever else the machine does meets all of them alike; medians are kept, with the device's name, one file a kind of
device. Encoding ends with the message's bytes, folding begins with them. On a GPU training is captured, as in the other
cells; on a CPU it is done on one thread.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import cells
import torch
from fedmrn_studies import COMMON, SETTINGS

from gossamer import METHODS, Method, Task
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.jobs import Job, Trained
from gossamer.core.random import key
from gossamer.core.types import Clock
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientTask
from gossamer.engines.executors import EXECUTORS, Executor, threads
from gossamer.engines.executors.stacked import InChunks
from gossamer.engines.metrics import machine
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective

T = TypeVar("T")

KEY, CLOCK = key(0), Clock(0, 1, 0)
SAMPLES = {"cnn4": (600, (1, 28, 28)), "cnn8": (500, (3, 32, 32))}
"""A hundredth of Fashion-MNIST, and of CIFAR-10."""
PLANS: dict[str, dict[str, Any]] = {
    "cpu": {"executor": "one-by-one", "models": ("cnn4",), "repeats": 5},
    "cuda": {"executor": "captured", "models": ("cnn4", "cnn8"), "repeats": 10},
}
"""What is measured on a kind of device; CNN8 takes a CPU a quarter of an hour."""
WARM_UP = 2
"""Rounds that do not count: a GPU captures odd batches when it meets them for the second time."""
LONGER, SLOWER = "trains slightly longer", "encodes for up to a third of the training time"
PAPER = dict.fromkeys(("fedpm", "fedsparsify", "fedmrn", "fedmrns"), LONGER) | dict.fromkeys(("drive", "eden"), SLOWER)
"""What the paper says of its figure, on an RTX 3090."""
HEADS = ("method", "training", "beside FedAvg's", "encoding", "of its training", "folding", "bytes", "the paper says")


class Entrant(NamedTuple):
    """A method with all it needs for one client's round, again and again."""

    client: Client
    executor: Executor
    client_task: ClientTask
    server: dict[str, Any]

    def train(self, job: Job) -> Trained:
        """All steps of the round."""
        if isinstance(self.executor, InChunks):
            with torch.no_grad():
                return self.executor.group([(self.client_task, job)]).train()[0]
        return self.client.train(self.client_task, job)

    def measure(self) -> dict[str, float]:
        """One round: milliseconds of each part, and bytes sent."""
        with threads(self.executor.threads):
            job = self.client.read_download(self.client_task)
            training, trained = clocked(lambda: self.train(job))
            encoding, answer = clocked(lambda: self.client.make_upload(job, trained))
            sent, server = answer.sent.data, self.client.exchange.server
            total = server.begin(self.server, {CLOCK.client: GLOBAL})
            folding, _ = clocked(lambda: server.fold(total, self.read(sent)))
        return {"train": training, "encode": encoding, "fold": folding, "bytes": len(sent)}

    def read(self, sent: Frame) -> Arrival:
        """What the server finds in the client's message."""
        return self.client.exchange.read_upload(sent, self.server, CLOCK, KEY, GLOBAL, None)[0]


def clocked(work: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds until it is done, on the GPU too, and what came of it."""
    settle()
    begin = time.perf_counter()
    result = work()
    settle()
    return 1e3 * (time.perf_counter() - begin), result


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def entrant(method: Method, task: Task, device: str, executor: str) -> Entrant:
    """A method ready to be measured, compiled where its executor compiles."""
    objective = Objective(task, device, KEY)
    bound = method.bind(objective)
    server, client = bound.init(objective.initial(), KEY), Client(bound, objective)
    runs, common = EXECUTORS[executor](client), client.exchange.make_common(server, CLOCK, KEY)
    told = client.exchange.make_download(server, CLOCK, KEY, GLOBAL, None, common)
    client_task = ClientTask(CLOCK, KEY, told.data, {}, task.split.train(0))
    with threads(runs.threads):
        runs.prepare(client_task, 1)
    return Entrant(client, runs, client_task, server)


def images(model: str) -> Task:
    """One client with random images."""
    samples, shape = SAMPLES[model]
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, *shape, generator=draw), torch.randint(10, (samples,), generator=draw)
    return Task.of(lambda: build(model, shape, 10), (x, y), (x[:10], y[:10]), clients=1)


def race(model: str, device: str, executor: str, repeats: int) -> dict[str, dict[str, float]]:
    """Medians of every method, in turns."""
    task = images(model)
    methods = {name: METHODS[name](**COMMON, **own) for name, own in SETTINGS.items()}
    field = {name: entrant(method, task, device, executor) for name, method in methods.items()}
    turns = [{name: each.measure() for name, each in field.items()} for _ in range(WARM_UP + repeats)]
    return {name: _median([stage[name] for stage in turns[WARM_UP:]]) for name in field}


def _median(found: list[dict[str, float]]) -> dict[str, float]:
    return {part: round(statistics.median(each[part] for each in found), 3) for part in found[0]}


def keep() -> None:
    """Measure on the device at hand, unless that is there already."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path, plan = cells.CELLS / f"fedmrn-times-{device}.json", PLANS[device]
    if not path.exists():
        times = {model: race(model, device, plan["executor"], plan["repeats"]) for model in plan["models"]}
        facts = {name: machine(device)[name] for name in ("device", "torch")}
        path.write_text(json.dumps({**facts, **plan, "times": times}) + "\n")
    print(f"{path.stem}: {json.loads(path.read_text())['device']}")


def tables() -> str:
    """A table for each kind of device and network that was measured."""
    kept = [json.loads(path.read_text()) for path in sorted(cells.CELLS.glob("fedmrn-times-*.json"))]
    return "\n".join(_table(found, model, times) for found in kept for model, times in found["times"].items())


def _table(found: dict[str, Any], model: str, times: dict[str, dict[str, float]]) -> str:
    samples, _ = SAMPLES[model]
    title = f"\n### Figure 6: times of one client's round, {model.upper()}, {found['device']}\n"
    measured = f"torch {found['torch']}, medians of {found['repeats']} rounds"
    told = f"{samples} samples, executor `{found['executor']}`, {measured}.\n"
    lines = [_row(name, mine, times["fedavg"]["train"]) for name, mine in times.items()]
    return "\n".join([title, told, f"| {' | '.join(HEADS)} |", "| --- " * len(HEADS) + "|", *lines])


def _row(name: str, mine: dict[str, float], base: float) -> str:
    train, encode, folding = (mine[part] for part in ("train", "encode", "fold"))
    training = f"{train:.1f} ms | {train / base:.2f}"
    encoding = f"{encode:.2f} ms | {100 * encode / train:.1f} %"
    return f"| `{name}` | {training} | {encoding} | {folding:.2f} ms | {mine['bytes']:,.0f} | {PAPER.get(name, '')} |"
