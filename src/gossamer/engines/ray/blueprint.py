"""What an actor needs to build its own client: method, task, key and samples, as one object of the object store.

Samples in memory travel as NumPy arrays. Ray lays these out in the object store of each node, so that all actors of a
node read one copy. Samples that are read when needed travel as their data set, which must be readable on every node.

Functions and classes of a script, and of files that were given as ``file.py:name``, are pickled by value: they need not
exist on other machines. Modules that these import must be installed there.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

from gossamer.core.method import Method
from gossamer.core.random import Key
from gossamer.engines.adversary import Adversary
from gossamer.engines.client import Client
from gossamer.tasks.data import nests
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import AnySamples, Data, Samples
from gossamer.tasks.objective import Objective
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
        none = Split.alone(None, task.clients, 0, 0)  # a task has the indices of its client's samples
        bare = replace(task, data=_without_samples(task.data, objective.samples), split=none)
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
        with _by_value():
            return cls(cloudpickle.dumps(Blueprint.of(client)), None if samples.lazy else Arrays.of(samples))

    @property
    def nbytes(self) -> int:
        """Its size in the object store."""
        return len(self.blueprint) + (self.held.nbytes if self.held else 0)

    def client(self) -> Client:
        """Build the client."""
        blueprint: Blueprint = cloudpickle.loads(self.blueprint)
        return blueprint.client(self.held)


def _without_samples(data: Data, samples: AnySamples) -> Data:
    """Return data without test samples, which clients do not use, and without training samples in memory."""
    none = np.arange(0)
    train = samples.to("cpu") if samples.lazy else data.train.take(none)
    return replace(data, train=train, test=data.test.take(none))


def _tensor(array: np.ndarray) -> Tensor:
    """Return a tensor in the memory of an array, which nobody writes to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


@contextmanager
def _by_value() -> Iterator[None]:
    """Pickle what user files define by value: other processes cannot import these files by name."""
    files = [module for module in list(sys.modules.values()) if _is_user_file(module)]
    for module in files:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in files:
            cloudpickle.unregister_pickle_by_value(module)


def _is_user_file(module: object) -> bool:
    """Return whether a module was made from a file without Python's import system (``gossamer.cli.user_files``)."""
    return (
        isinstance(module, ModuleType)
        and module.__spec__ is None
        and module.__name__ != "__main__"
        and getattr(module, "__file__", None) is not None
    )
