"""What runs in each actor: a client of its own, and an inner executor per exchange, on one thread."""

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch

from gossamer import __version__
from gossamer.core.types import State
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure, TaskOutcome
from gossamer.engines.executors import Captured, CapturedPlain
from gossamer.engines.executors.auto import choose_on_actor
from gossamer.engines.executors.base import Executor, OneByOne
from gossamer.engines.executors.compiled import compiled_on_actor
from gossamer.engines.executors.parcels import pack_state, portable, unpack_state
from gossamer.engines.executors.stacked import Stacked
from gossamer.engines.ray.nodes import import_from
from gossamer.tasks.precision import FLOAT32, products

INNER: dict[str, Callable[[Client], Executor]] = {
    "one-by-one": OneByOne,
    "side-by-side": OneByOne,  # which has one process per core, as a cluster has, and gives the same bits
    "stacked": Stacked,
    "compiled": compiled_on_actor,
    "captured": Captured,
    "captured-plain": CapturedPlain,
}
"""The executor inside of an actor, by the executor of the run."""

SHORT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


class TaskParcel(NamedTuple):
    """A client task as it is sent: the common piece of its download may be replaced by its number."""

    client_task: ClientTask
    common: int | None
    state: State | bytes


class ResultParcel(NamedTuple):
    """The result of a client task as it is sent: the upload is an array, which Ray need not pickle."""

    result: ClientResult | Failure
    head: bytes = b""
    upload: np.ndarray = np.empty(0, np.uint8)
    checksum: int | None = None
    state: State | bytes = b""
    seconds: float = 0.0


class Chosen(NamedTuple):
    """The inner executor that an actor chose by measuring, as ``gossamer.engines.executors.auto.Choice``."""

    name: str
    rates: dict[str, float]
    left_out: dict[str, str]


class Machine(NamedTuple):
    """The machine of an actor, as far as results may depend on it."""

    processor: str
    torch: str
    gossamer: str


class Ready(NamedTuple):
    """What a prepared actor says: its machine, and how many clients it trains together, by exchange."""

    machine: Machine
    sizes: dict[int, int]


class ShortOfMemoryError(Exception):
    """An actor could not allocate memory for a task."""


class ClientActor:
    """Trains client tasks in a Ray actor.

    Args:
        path: the driver's ``sys.path``, for modules that user files import
        sent: the reference of the client's ``Parcel``, in a list, so that it is read after the path is set
    """

    def __init__(self, path: Sequence[str], sent: Sequence[Any]) -> None:
        import_from(path)
        torch.set_num_threads(1)
        self._client: Client = ray.get(sent[0]).client()
        self._inner: dict[int, Executor] = {}
        self._common: dict[int, bytes] = {}

    def machine(self) -> Machine:
        """Describe the machine."""
        gpu = self._client.objective.device.type == "cuda"
        device = torch.cuda.get_device_name() if gpu else f"{_processor()} ({torch.backends.cpu.get_cpu_capability()})"
        return Machine(device, torch.__version__, __version__)

    def choose(self, parcel: TaskParcel, client_tasks: int, rounds: int) -> Chosen:
        """Measure executors on a task like this one, and prepare the fastest."""
        choice = choose_on_actor(self._client, self._unpacked(parcel), client_tasks, rounds)
        self._inner[self._client.exchange.number] = choice.executor
        return Chosen(choice.name, choice.rates, choice.left_out)

    def prepare(self, name: str, parcel: TaskParcel, client_tasks: int) -> Ready:
        """Make and prepare the inner executors, for rounds of ``client_tasks`` tasks like this one."""
        method, last = self._client.method, self._client.exchange
        if last.number not in self._inner:
            self._inner[last.number] = INNER[name](self._client)
            with products(FLOAT32, self._client.objective.device):
                self._inner[last.number].prepare(self._unpacked(parcel), client_tasks)
        early = Stacked if name == "stacked" or name.startswith("captured") else OneByOne
        for exchange in (*method.exchanges, *([method.probe] if method.probe else [])):
            if exchange.number not in self._inner:
                self._inner[exchange.number] = early(Client(method, self._client.objective, exchange))
        return Ready(self.machine(), {number: inner.size for number, inner in self._inner.items()})

    def receive(self, number: int, common: bytes, kept: Sequence[int]) -> None:
        """Keep the common piece of downloads by its number, and drop all but those in ``kept``."""
        self._common = {old: piece for old, piece in self._common.items() if old in kept} | {number: common}

    def run(self, exchange: int, parcels: Sequence[TaskParcel]) -> list[ResultParcel]:
        """Train a group of tasks, and return their results in the same order."""
        executor = self._inner[exchange]
        with products(FLOAT32, self._client.objective.device):
            timed = list(_timed(executor.run(map(self._unpacked, parcels)), executor.size > 1))
        for (_, result), _ in timed:
            if isinstance(result, Failure) and isinstance(result.cause, SHORT_OF_MEMORY):
                raise ShortOfMemoryError(result.reason)
        order = {parcel.client_task.clock: number for number, parcel in enumerate(parcels)}
        timed.sort(key=lambda each: order[each[0].client_task.clock])
        return [_packed(outcome.result, seconds) for outcome, seconds in timed]

    def _unpacked(self, parcel: TaskParcel) -> ClientTask:
        task, data = parcel.client_task, parcel.client_task.data
        common = data.common if parcel.common is None else self._common[parcel.common]
        return task._replace(state=unpack_state(parcel.state), data=Frame(data.head, common, data.single))


def _timed(outcomes: Iterator[TaskOutcome], together: bool) -> Iterator[tuple[TaskOutcome, float]]:
    """Yield each outcome with its seconds; clients that train together share them equally."""
    found, times = list[TaskOutcome](), [time.perf_counter()]
    for outcome in outcomes:
        found.append(outcome)
        times.append(time.perf_counter())
    equal = (times[-1] - times[0]) / max(1, len(found))
    for outcome, (begin, end) in zip(found, pairwise(times), strict=True):
        yield outcome, equal if together else end - begin


def _packed(result: ClientResult | Failure, seconds: float) -> ResultParcel:
    if isinstance(result, Failure):
        return ResultParcel(portable(result), seconds=seconds)
    data = result.sent.data
    bare = result._replace(sent=result.sent._replace(data=Frame(b"")), state={})
    upload = np.frombuffer(data.single, np.uint8)
    return ResultParcel(bare, data.head, upload, data.checksum, pack_state(result.state), seconds)


def unpacked_result(parcel: ResultParcel) -> ClientResult | Failure:
    """Return the result that an actor sent."""
    result = parcel.result
    if isinstance(result, Failure):
        return result
    data = Frame(parcel.head, single=parcel.upload.tobytes()).with_checksum(parcel.checksum)
    return result._replace(sent=result.sent._replace(data=data), state=unpack_state(parcel.state))


def _processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
