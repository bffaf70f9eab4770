"""Measure one client's round: training, encoding its message, and the server's aggregation of it.

A client trains on random images, which cost the same as real ones. Methods take turns, so that other load on the
machine affects all of them alike. Encoding ends with the bytes of the message; aggregation starts with them.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from gossamer import Method, Task
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
from reproduce.common import store
from reproduce.common.store import Facts

T = TypeVar("T")
Times = dict[str, float]
"""Milliseconds of ``train``, ``encode`` and ``fold``, and ``bytes`` sent."""

KEY, CLOCK = key(0), Clock(0, 1, 0)


class Entrant(NamedTuple):
    """A method with everything that one client's round needs, ready to be measured repeatedly."""

    client: Client
    executor: Executor
    client_task: ClientTask
    server: dict[str, Any]

    def train(self, job: Job) -> Trained:
        """Run all local steps of the round."""
        if isinstance(self.executor, InChunks):
            with torch.no_grad():
                return self.executor.group([(self.client_task, job)]).train()[0]
        return self.client.train(self.client_task, job)

    def measure(self, clock: Callable[[], float] = time.perf_counter) -> Times:
        """Run one round; return the milliseconds of each part by a clock in seconds, and the bytes sent."""
        with threads(self.executor.threads):
            job = self.client.read_download(self.client_task)
            training, trained = clocked(lambda: self.train(job), clock)
            encoding, result = clocked(lambda: self.client.make_upload(job, trained), clock)
            sent, server = result.sent.data, self.client.exchange.server
            total = server.begin(self.server, {CLOCK.client: GLOBAL})
            folding, _ = clocked(lambda: server.fold(total, self.read(sent)), clock)
        return {"train": training, "encode": encoding, "fold": folding, "bytes": len(sent)}

    def read(self, sent: Frame) -> Arrival:
        """Decode the client's message at the server."""
        return self.client.exchange.read_upload(sent, self.server, CLOCK, KEY, GLOBAL, None)[0]


def clocked(work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[float, T]:
    """Return the milliseconds of a piece of work, including its GPU kernels, and its result."""
    synchronize()
    begin = clock()
    result = work()
    synchronize()
    return 1e3 * (clock() - begin), result


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def entrant(method: Method, task: Task, device: str, executor: str) -> Entrant:
    """Return a method ready to be measured, compiled where its executor compiles."""
    objective = Objective(task, device, KEY)
    bound = method.bind(objective)
    server, client = bound.init(objective.initial(), KEY), Client(bound, objective)
    runs, common = EXECUTORS[executor](client), client.exchange.make_common(server, CLOCK, KEY)
    download = client.exchange.make_download(server, CLOCK, KEY, GLOBAL, None, common)
    client_task = ClientTask(CLOCK, KEY, download.data, {}, task.split.train(0))
    with threads(runs.threads):
        runs.prepare(client_task, 1)
    return Entrant(client, runs, client_task, server)


def images(model: str, samples: int, shape: tuple[int, ...]) -> Task:
    """Return a task of one client with random images."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, *shape, generator=draw), torch.randint(10, (samples,), generator=draw)
    return Task.of(lambda: build(model, torch.Size(shape), 10), (x, y), (x[:10], y[:10]), clients=1)


def race(
    methods: Mapping[str, Method],
    task: Task,
    device: str,
    executor: str,
    repeats: int,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[Times]]:
    """Measure all methods in turns; return the measurements after the warm-up by method."""
    field = {name: entrant(method, task, device, executor) for name, method in methods.items()}
    turns = [{name: each.measure(clock) for name, each in field.items()} for _ in range(warm_up + repeats)]
    return {name: [turn[name] for turn in turns[warm_up:]] for name in field}


def median(values: list[float], digits: int) -> float:
    """Return a rounded median."""
    return round(statistics.median(values), digits)


def keep(study: str, plans: Mapping[str, Facts], measure: Callable[[str, Facts], Facts]) -> None:
    """Measure on this machine's device by its plan, and store the times, unless they are stored already."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name, plan = f"{study}-times-{device}", plans[device]
    if name not in store.read(study):
        times = measure(device, plan)
        facts = {field: machine(device)[field] for field in ("device", "torch")}
        store.write(study, name, {**facts, **plan, "times": times})
    print(f"{name}: {store.read(study)[name]['device']}")


def stored(study: str) -> list[Facts]:
    """Return the stored times of a study, one entry per kind of device."""
    return [facts for name, facts in sorted(store.read(study).items()) if name.startswith(f"{study}-times-")]
