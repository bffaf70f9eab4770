"""A task: a model, data, its partition over clients, and the loss."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.core.errors import ConfigError, require
from gossamer.core.random import key as make_key
from gossamer.core.specs import parse, spec
from gossamer.tasks.data.datasets import load
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.samples import Data, Samples
from gossamer.tasks.data.splits import split
from gossamer.tasks.nets import build
from gossamer.tasks.static_norms import STATISTICS, OfBatch, Statistics

Arrays = tuple[Tensor, Tensor]
AnyTask = Union["Task", Callable[..., "Task"]]
"""A task, or a function that returns one; it takes no argument, a client number, or client number and settings."""


def correct(output: Tensor, y: Tensor) -> Tensor:
    """Return for each sample whether the largest output is the label."""
    return output.argmax(-1) == y


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem with data that is partitioned over clients.

    Args:
        model: function that builds the network; called with a seeded generator, so the same seed gives the same weights
        data: training and test samples
        split: partition of the samples over clients
        loss: function from outputs and labels to the mean loss of a batch
        correct: function from outputs and labels to one boolean per sample
        statistics: statistics of static batch norms in evaluation, and the evaluation batch size
        names: names of data, model and split for the run folder
    """

    model: Callable[[], nn.Module]
    data: Data
    split: Split
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    correct: Callable[[Tensor, Tensor], Tensor] = correct
    statistics: Statistics = OfBatch()
    names: tuple[str, str, str] = ("custom", "custom", "custom")

    @classmethod
    def of(
        cls,
        model: Callable[[], nn.Module],
        train: Arrays,
        test: Arrays,
        *,
        clients: int = 50,
        split: str = "iid",
        seed: int = 0,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        correct: Callable[[Tensor, Tensor], Tensor] = correct,
    ) -> "Task":
        """Create a task from a module and arrays.

        ``model`` is a function without arguments that builds an ``nn.Module``, for example its class. ``train`` and
        ``test`` are ``(x, y)`` tensors with one sample per row. ``split`` is a spec such as ``"dirichlet:0.3"``.
        """
        _check_arrays(train=train, test=test)
        classes = int(max(train[1].max(), test[1].max())) + 1
        data = Data("custom", Samples(*train), Samples(*test), classes=classes, split=split, model="custom")
        names = ("custom", "custom", split)
        return cls(model, data, deal(data, split, clients, seed), loss, correct, names=names)

    @classmethod
    def named(
        cls,
        data: str,
        *,
        data_dir: str | Path | None = None,
        model: str | None = None,
        split: str | None = None,
        clients: int = 50,
        seed: int = 0,
        statistics: str | None = None,
    ) -> "Task":
        """Create a task from a data set and a network of Gossamer, named as in ``gossamer run``."""
        found = load(data, data_dir=Path(data_dir) if data_dir else None, clients=clients, key=make_key(seed))
        rule = split or found.split
        return cls.of_data(found, model, rule, deal(found, rule, clients, seed), statistics)

    @classmethod
    def of_data(cls, data: Data, model: str | None, rule: str, split: Split, statistics: str | None = None) -> "Task":
        """Create a task from loaded data, a network by name (by default the data's own), and a split."""
        net, shape, classes = model or data.model, data.shape, data.classes
        by = parse(statistics, STATISTICS, "statistics") if statistics else OfBatch()
        return cls(lambda: build(net, shape, classes), data, split, statistics=by, names=(data.name, net, rule))

    @classmethod
    def own(
        cls,
        model: Callable[[], nn.Module],
        train: Arrays | None = None,
        test: Arrays | None = None,
        *,
        client: int | None,
        clients: int,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        correct: Callable[[Tensor, Tensor], Tensor] = correct,
    ) -> "Task":
        """Create the task of one machine of a deployment, with the samples of one client only.

        For the server ``client`` is none: it needs no samples, but may have test samples.
        """
        require(
            (clients >= 1, f"clients must be at least 1, got {clients}"),
            (client is None or 0 <= client < clients, f"client must be from 0 to {clients - 1}, got {client}"),
            (client is None or train is not None, f"client {client} needs training samples"),
        )
        given = {name: arrays for name, arrays in (("train", train), ("test", test)) if arrays is not None}
        _check_arrays(**given)
        x, y = next(iter(given.values()), (torch.empty(0), torch.empty(0, dtype=torch.int64)))
        none = (x[:0], y[:0])
        classes = max((int(arrays[1].max()) + 1 for arrays in given.values()), default=0)
        data = Data("own", Samples(*train or none), Samples(*test or none), classes, split="own", model="custom")
        split = Split.alone(client, clients, len(data.train), len(data.test))
        return cls(model, data, split, loss, correct, names=("custom", "custom", "by client"))

    def with_split(self, kept: Split) -> "Task":
        """Return the same task with another split, for example one read from a run folder."""
        return replace(self, split=kept)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.split.clients

    def describe(self) -> dict[str, object]:
        """Return the description for the run folder; a resumed run must have the same one."""
        name, model, rule = self.names
        return {
            "data": name,
            "model": model,
            "split": rule,
            "clients": self.clients,
            "statistics": spec(self.statistics, STATISTICS),
            "data_digest": self.data.digest(),
            "split_digest": self.split.digest(),
        }


def task_at(task: AnyTask, client: int | None, settings: Mapping[str, Any]) -> Task:
    """Return the task of a client's machine; ``None`` means the server or a simulation."""
    if not callable(task):
        return task
    takes = len(inspect.signature(task).parameters)
    if takes > 2:
        raise ConfigError(
            f"a task takes at most a client number and a machine's settings, this one takes {takes} arguments"
        )
    made = task(*(client, dict(settings))[:takes])
    if not isinstance(made, Task):
        raise ConfigError(f"a task must be a gossamer.Task or a function that returns one, got {type(made).__name__}")
    return made


def deal(data: Data, spec: str, clients: int, seed: int) -> Split:
    """Return the split of a spec, drawn with the run's seed."""
    require((clients >= 1, f"clients must be at least 1, got {clients}"))
    return split(parse(spec, SPLITS, "split"), data, clients, make_key(seed))


def _check_arrays(**given: Arrays) -> None:
    mistakes = []
    for name, (x, y) in given.items():
        if len(x) != len(y) or len(x) == 0:
            mistakes.append(f"{name}: x holds {len(x)} samples and y {len(y)}: the numbers must be equal and not 0")
        elif x.dtype == torch.bfloat16:
            mistakes.append(f"{name}: x has type torch.bfloat16, which NumPy does not support: use float32 or float16")
        elif not torch.isfinite(x).all():
            mistakes.append(f"{name}: x holds values that are not finite")
        elif y.dim() != 1 or y.dtype != torch.int64 or y.min() < 0:
            mistakes.append(f"{name}: y must hold one label per sample, as int64 numbers starting at 0")
    if mistakes:
        raise ConfigError(*mistakes)
