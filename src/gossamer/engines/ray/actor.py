"""What runs in each actor: a client of its own, and an inner executor per exchange, on one thread.

A ``Blueprint`` has what an actor needs to build its client: method, task, key and samples, as one object of the object
store. Samples in memory travel as NumPy arrays. Ray lays these out in the object store of each node, so that all actors
of a node read one copy. Samples that are read when needed travel as their data set, which must be readable on every
node.

Functions and classes of a script, and of files that were given as ``file.py:name``, are pickled by value: they need not
exist on other machines. Modules that these import must be installed there.
"""

import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray import cloudpickle
from torch import Tensor

from gossamer import __version__
from gossamer.core.method import Method
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.core.wire import Frame
from gossamer.engines.adversary import Adversary
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure, TaskOutcome
from gossamer.engines.executors import Captured, CapturedPlain
from gossamer.engines.executors.auto import choose_on_actor
from gossamer.engines.executors.base import Executor, OneByOne
from gossamer.engines.executors.compiled import compiled_on_actor
from gossamer.engines.executors.parcels import pack_state, portable, unpack_state
from gossamer.engines.executors.stacked import Stacked
from gossamer.engines.ray.nodes import ShortOfMemoryError, import_from
from gossamer.tasks.data import nests
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import AnySamples, Samples
from gossamer.tasks.objective import Objective
from gossamer.tasks.precision import FLOAT32, products
from gossamer.tasks.task import Task


class Arrays(NamedTuple):
    """Samples in memory as NumPy arrays: the inputs by path, their form, and the targets."""

    x: dict[str, np.ndarray]
    form: Any
    y: np.ndarray

    @classmethod
    def of(cls, samples: AnySamples) -> "Arrays":
        """Return the arrays of samples; those on a CPU are not copied."""
        leaves = {path: tensor.cpu().numpy() for path, tensor in nests.leaves(samples.x).items()}
        form = nests.apply(lambda tensor: torch.empty(0), samples.x)  # a view would be pickled with all samples
        return cls(leaves, form, samples.y.cpu().numpy())

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(array.nbytes for array in (*self.x.values(), self.y))

    def samples(self) -> Samples:
        """Return the samples, in the memory of the arrays."""
        found = {path: _tensor(array) for path, array in self.x.items()}
        return Samples(nests.rebuild(self.form, found), _tensor(self.y))


class Blueprint(NamedTuple):
    """The parts of a client.

    Args:
        method: the method, before it is bound
        task: the task, without samples in memory
        device: the device of training
        precision: the precision of training
        checkpointing: whether training uses gradient checkpointing
        key: the run's key
        secure_noise: whether the noise of differential privacy comes from the operating system
        adversary: the hostile clients of the run, if there are any
    """

    method: Method
    task: Task
    device: str
    precision: str
    checkpointing: bool
    key: Key
    secure_noise: bool
    adversary: Adversary | None

    @classmethod
    def of(cls, client: Client) -> "Blueprint":
        """Return the parts of a client of this process."""
        objective, task = client.objective, client.objective.task
        samples, data, none = objective.samples, task.data, np.arange(0)
        # Clients use no test samples, and training samples in memory travel as arrays.
        train = samples.to("cpu") if samples.lazy else data.train.take(none)
        nobody = Split.alone(None, task.clients, 0, 0)  # a task has the indices of its client's samples
        bare = replace(task, data=replace(data, train=train, test=data.test.take(none)), split=nobody)
        how = objective.device.type, objective.precision.name, objective.checkpointing
        return cls(client.method.method, bare, *how, objective.key, objective.secure_noise, client.adversary)

    def client(self, held: Arrays | None) -> Client:
        """Build the client, with samples in memory if there are any; the method is bound here."""
        data = self.task.data if held is None else replace(self.task.data, train=held.samples())
        task = replace(self.task, data=data)
        given = self.device, self.key, self.precision, self.checkpointing
        objective = Objective(task, *given, secure_noise=self.secure_noise)
        return Client(self.method.bind(objective), objective, adversary=self.adversary)


class Parcel(NamedTuple):
    """A client as it is sent to actors.

    Args:
        blueprint: the pickled blueprint
        held: the training samples, if they are in memory
    """

    blueprint: bytes
    held: Arrays | None

    @classmethod
    def of(cls, client: Client) -> "Parcel":
        """Return a client of this process as it is sent."""
        samples = client.objective.samples
        # What user files define is pickled by value: other processes cannot import these files by name. They were made
        # without Python's import system (``gossamer.cli.user_files``).
        files = [
            module
            for module in list(sys.modules.values())
            if isinstance(module, ModuleType)
            and (module.__spec__ is None and module.__name__ != "__main__")
            and getattr(module, "__file__", None) is not None
        ]
        for module in files:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cls(cloudpickle.dumps(Blueprint.of(client)), None if samples.lazy else Arrays.of(samples))
        finally:
            for module in files:
                cloudpickle.unregister_pickle_by_value(module)

    @property
    def nbytes(self) -> int:
        """Its size in the object store."""
        return len(self.blueprint) + (self.held.nbytes if self.held else 0)

    def client(self) -> Client:
        """Build the client."""
        blueprint: Blueprint = cloudpickle.loads(self.blueprint)
        return blueprint.client(self.held)


def _tensor(array: np.ndarray) -> Tensor:
    """Return a tensor in the memory of an array, which nobody writes to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


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
        if self._client.objective.device.type == "cuda":
            return Machine(torch.cuda.get_device_name(), torch.__version__, __version__)
        info = Path("/proc/cpuinfo")
        lines = info.read_text().splitlines() if info.is_file() else []
        named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        processor = next(named, platform.processor() or platform.machine())
        return Machine(f"{processor} ({torch.backends.cpu.get_cpu_capability()})", torch.__version__, __version__)

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
