"""A task: a model, data, its partition over clients, the loss and the metrics."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, replace
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from torch import nn

from gossamer.core.adapter import Adapter
from gossamer.core.errors import ConfigError, require
from gossamer.core.fields import known_arguments, whole_number
from gossamer.core.random import key as make_key
from gossamer.core.specs import parse, spec
from gossamer.tasks.batch_norms import STATISTICS, OfBatch, Statistics
from gossamer.tasks.data.datasets import load
from gossamer.tasks.data.given import (
    Reading,
    check_samples,
    count_classes,
    given_data,
    given_split,
    read_memory,
    samples,
)
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.samples import AnySamples, Data, Samples
from gossamer.tasks.data.splits import split
from gossamer.tasks.losses import AnyLoss, LossFunction, cross_entropy, loss_function, loss_name
from gossamer.tasks.metrics import ACCURACY, AnyMetrics, Metric, default_metrics, metrics_of
from gossamer.tasks.nets import build
from gossamer.tasks.network import Adapted, Factory, factory

OWN = "own function"
"""The name of a loss that is none of Gossamer's; two of them are not compared."""

AnyTask = Union["Task", Callable[..., "Task"]]
"""A task, or a function that returns one; it takes no argument, a client number, or client number and settings."""


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem with data that is partitioned over clients.

    Args:
        model: function that builds the network; called with a seeded generator, so the same seed gives the same
            weights; or a network, which is copied at every build: every run then starts from its weights
        data: training and test samples
        split: partition of the samples over clients
        loss: function from outputs and targets to the mean loss of a batch; or its name, such as ``mse``
        metrics: what is measured, the primary metric first; empty means what follows from loss and targets
        statistics: statistics of static batch norms in evaluation, and the evaluation batch size
        names: names of data, model and split for the run folder
        call: arguments of ``Task.named``, if it made the task; a run folder rebuilds the task from them
        correct: removed; give ``metrics``
    """

    model: Factory
    data: Data
    split: Split
    loss: LossFunction = cross_entropy
    metrics: tuple[Metric, ...] = ()
    statistics: Statistics = OfBatch()
    names: tuple[str, str, str] = ("custom", "custom", "custom")
    call: Mapping[str, Any] | None = None
    correct: InitVar[None] = None

    def __post_init__(self, correct: object) -> None:
        if correct is not None:
            raise ConfigError("Task.correct was removed: write metrics=f, a function that returns one value per sample")
        object.__setattr__(self, "model", factory(self.model))
        object.__setattr__(self, "loss", loss_function(self.loss))
        metrics = metrics_of(self.metrics) or default_metrics(self.loss, self.data.train.y)
        object.__setattr__(self, "metrics", metrics)

    @classmethod
    @known_arguments("Task.of")
    def of(
        cls,
        model: Factory | nn.Module,
        train: Any,
        test: Any = None,
        *,
        clients: int | None = None,
        split: Any = None,
        groups: Any = None,
        test_groups: Any = None,
        seed: int = 0,
        loss: AnyLoss = "cross_entropy",
        metrics: AnyMetrics = (),
        target: str | None = None,
        memory: int | str = "2GB",
        workers: int = 2,
        correct: None = None,
    ) -> "Task":
        """Create a task from a network and data.

        ``train`` and ``test`` are pairs ``(x, y)`` of arrays with one sample per row, map-style data sets, or a list or
        mapping of one of these per client. Inputs ``x`` may be dicts (passed to the network by keyword) or tuples.

        Args:
            model: function without arguments that builds an ``nn.Module``, for example its class; or an ``nn.Module``:
                every run then starts from a copy of it, with its weights, whatever the seed
            train: training data
            test: test data
            clients: number of clients, by default 50, or as many as ``split`` or ``train`` has
            split: a spec such as ``"dirichlet:0.3"``, a rule, a ``Split``, a list of sample indices per client, or a
                function of targets, number of clients and a NumPy generator that returns such a list
            groups: natural owner of each training sample, numbers or names, for the split ``natural``
            test_groups: natural owner of each test sample
            seed: seed of the split
            loss: name, such as ``"mse"``, or function from outputs and targets to the mean loss of a batch
            metrics: names, functions or torchmetrics objects; the first is the primary one
            target: target column of data sets with dict samples
            memory: data up to this size is held in memory; larger data is read when needed, with at most this much
                read ahead
            workers: number of processes that read larger data
            correct: removed; give ``metrics``
        """
        require((test is not None, "Task.of needs test data: hold out some samples, such as the last fifth"))
        reading = Reading(target, read_memory(memory), whole_number("workers", workers, 0))
        data = given_data(train, test, reading, groups, test_groups, loss_function(loss))
        rule, dealt = given_split(split, data, clients, seed)
        names = ("custom", "custom", rule)
        return cls(factory(model), data, dealt, loss_function(loss), metrics_of(metrics), names=names, correct=correct)

    @classmethod
    @known_arguments("Task.named")
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
        clients, seed = whole_number("clients", clients, 1), whole_number("seed", seed, 0)
        found = load(data, data_dir=Path(data_dir) if data_dir else None, clients=clients, key=make_key(seed))
        rule = split or found.split
        call = {
            "data": data,
            "data_dir": str(Path(data_dir).resolve()) if data_dir else None,
            "model": model,
            "split": split,
            "clients": clients,
            "seed": seed,
            "statistics": statistics,
        }
        return replace(cls.of_data(found, model, rule, deal(found, rule, clients, seed), statistics), call=call)

    @classmethod
    def of_data(cls, data: Data, model: str | None, rule: str, split: Split, statistics: str | None = None) -> "Task":
        """Create a task from loaded data, a network by name (by default the data's own), and a split."""
        net, shape, outputs = model or data.model, data.shape, data.outputs
        by = parse(statistics, STATISTICS, "statistics") if statistics else OfBatch()
        loss, metrics, names = loss_function(data.loss), metrics_of(data.metrics), (data.name, net, rule)
        return cls(lambda: build(net, shape, outputs), data, split, loss, metrics, by, names)

    @classmethod
    @known_arguments("Task.own")
    def own(
        cls,
        model: Factory | nn.Module,
        train: Any = None,
        test: Any = None,
        *,
        client: int | None,
        clients: int,
        loss: AnyLoss = "cross_entropy",
        metrics: AnyMetrics = (),
        target: str | None = None,
        memory: int | str = "2GB",
        workers: int = 2,
        correct: None = None,
    ) -> "Task":
        """Create the task of one machine of a deployment, with the samples of one client only.

        For the server ``client`` is none: it needs no samples, but may have test samples. Data is given as in ``of``.
        """
        require(
            (clients >= 1, f"clients must be at least 1, got {clients}"),
            (client is None or 0 <= client < clients, f"client must be from 0 to {clients - 1}, got {client}"),
            (client is None or train is not None, f"client {client} needs training samples"),
        )
        reading, parts = (
            Reading(target, read_memory(memory), whole_number("workers", workers, 0)),
            {"train": train, "test": test},
        )
        given = {name: samples(part, name, reading) for name, part in parts.items() if part is not None}
        check_samples(loss_function(loss), **given)
        none: AnySamples = Samples(torch.empty(0), torch.empty(0, dtype=torch.int64))
        none = next((held.take(np.arange(0)) for held in given.values()), none)
        classes = count_classes(*(held.y for held in given.values()))
        data = Data("own", given.get("train", none), given.get("test", none), classes, split="own", model="custom")
        split = Split.alone(client, clients, len(data.train), len(data.test))
        names = ("custom", "custom", "by client")
        return cls(factory(model), data, split, loss_function(loss), metrics_of(metrics), names=names, correct=correct)

    def __repr__(self) -> str:
        """Return the task in one line."""
        name, _, rule = self.names
        metrics = ", ".join(metric.name for metric in self.metrics)
        counts = f"{len(self.data.train):,} + {len(self.data.test):,} samples"
        return f"<Task: {name}, {self.clients:,} clients, {rule}, {counts}, {loss_name(self.loss) or OWN}, {metrics}>"

    def with_split(self, kept: Split) -> "Task":
        """Return the same task with another split, for example one read from a run folder."""
        return replace(self, split=kept)

    def adapted(self, adapter: Adapter | None) -> "Task":
        """Return the same task with the network that a method trains: adapted, if the method has an adapter."""
        return self if adapter is None else replace(self, model=Adapted(self.model, adapter))

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.split.clients

    def describe(self) -> dict[str, object]:
        """Return the description for the run folder; a resumed run must have the same one."""
        name, model, rule = self.names
        loss = {} if self.loss is cross_entropy else {"loss": loss_name(self.loss) or OWN}
        shown = [metric.describe() for metric in self.metrics]
        measured = {} if shown == [ACCURACY.describe()] else {"metrics": shown}
        return {
            "data": name,
            "model": model,
            "split": rule,
            "clients": self.clients,
            "statistics": spec(self.statistics, STATISTICS),
            "data_digest": self.data.digest(),
            "split_digest": self.split.digest(),
            **loss,
            **measured,
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
    clients, seed = whole_number("clients", clients, 1), whole_number("seed", seed, 0)
    return split(parse(spec, SPLITS, "split"), data, clients, make_key(seed))
