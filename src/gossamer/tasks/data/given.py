"""Data and splits as arguments of ``Task.of``: what users give, converted and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require
from gossamer.core.fields import whole_number
from gossamer.core.random import fold, generator
from gossamer.core.random import key as make_key
from gossamer.core.specs import parse
from gossamer.fleet.units import SIZES, read_size
from gossamer.tasks.data import nests
from gossamer.tasks.data.convert import Reading, is_federation, owners, samples
from gossamer.tasks.data.partition import Index, Split, offsets
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.samples import Data, Samples
from gossamer.tasks.data.splits import drawn_tests, split
from gossamer.tasks.data.strata import strata
from gossamer.tasks.losses import LossFunction, wrong_targets

CLIENTS = 50
"""The default number of clients."""

Indices = Sequence[Any]
"""The sample indices of each client."""


def read_memory(given: int | str) -> int:
    """Parse the memory budget: bytes, or text such as ``2GB``."""
    try:
        return read_size(given)
    except ValueError:
        units = ", ".join(SIZES)
        raise ConfigError(f"memory must be bytes or text such as '2GB' (units: {units}), got {given!r}") from None


def given_data(train: Any, test: Any, reading: Reading, groups: Any, test_groups: Any, loss: LossFunction) -> Data:
    """Convert training and test data; one data set per client, or ``groups``, make the clients natural owners."""
    test = _by_name(train, test)
    found = {"train": samples(train, "train", reading), "test": samples(test, "test", reading)}
    for name, given, argument in (("train", groups, "groups"), ("test", test_groups, "test_groups")):
        if given is not None:
            found[name] = _owned(found[name], given, argument)
    if is_federation(train) and is_federation(test) and len(train) != len(test):
        raise ConfigError(f"train has {len(train)} clients, but test has {len(test)}: give each client both")
    check_samples(loss, **found)
    natural = found["train"].group is not None
    classes = count_classes(*(held.y for held in found.values()))
    return Data("custom", found["train"], found["test"], classes, "natural" if natural else "iid", "custom")


def _by_name(train: Any, test: Any) -> Any:
    """Return the test data of clients in the order of their training data; refuse other names."""
    if not (isinstance(train, Mapping) and isinstance(test, Mapping)) or "DatasetDict" in map(_kind, (train, test)):
        return test
    lacking = [f"test has no data for client {name!r}" for name in train if name not in test]
    strange = [f"{name!r} is no client of train" for name in test if name not in train]
    if lacking or strange:
        raise ConfigError(f"{', and '.join((*lacking, *strange))}: use the same names")
    return {name: test[name] for name in train}


def _kind(given: object) -> str:
    return type(given).__name__


def _owned(held: Samples, given: Any, argument: str) -> Samples:
    return replace(held, group=owners(given, argument, len(held)))


def count_classes(*targets: Tensor) -> int:
    """Return the number of classes; 0 if targets are not class numbers."""
    if not targets or not all(y.dtype == torch.int64 and y.dim() == 1 and int(y.min()) >= 0 for y in targets):
        return 0
    return max(int(y.max()) for y in targets) + 1


def check_samples(loss: LossFunction, /, **given: Samples) -> None:
    """Refuse samples that cannot be trained on; list all mistakes."""
    mistakes = [mistake for name, held in given.items() if (mistake := _mistake(name, held, loss))]
    if mistakes:
        raise ConfigError(*mistakes)


def _mistake(name: str, held: Samples, loss: LossFunction) -> str:
    tensors = {} if held.lazy else nests.leaves(held.x)
    counts = {len(tensor) for tensor in tensors.values()} or {len(held)}
    if counts != {len(held)} or not len(held):
        number = " or ".join(map(str, sorted(counts)))
        return f"{name}: x holds {number} samples and y {len(held)}: the numbers must be equal and not 0"
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()):
        return f"{name}: x has type torch.bfloat16, which NumPy does not support: use float32 or float16"
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        return f"{name}: x holds values that are not finite"
    problem = wrong_targets(loss, held.y)
    return f"{name}: {problem}" if problem else ""


# Splits.


def given_split(given: Any, data: Data, clients: int | None, seed: int) -> tuple[str, Split]:
    """Return the name and the split of an argument: a spec, a rule, a split, sample indices, or a function."""
    given = data.split if given is None else given
    if isinstance(given, Split):
        return "custom", _checked(given, data, clients)
    if callable(given) and not hasattr(given, "deal"):
        return "custom", _indexed(_called(given, data, clients or CLIENTS, seed), data, clients, seed)
    if not isinstance(given, str) and not hasattr(given, "deal"):
        return "custom", _indexed(given, data, clients, seed)
    number = clients if clients is not None else _natural_clients(data) or CLIENTS
    number, seed = whole_number("clients", number, 1), whole_number("seed", seed, 0)
    rule = parse(given, SPLITS, "split") if isinstance(given, str) else given
    return given if isinstance(given, str) else "custom", split(rule, data, number, make_key(seed))


def _natural_clients(data: Data) -> int:
    return 0 if data.train.group is None else len(np.unique(data.train.group))


def _called(function: Callable[..., Any], data: Data, clients: int, seed: int) -> Any:
    return function(data.train.y.numpy(), clients, generator(fold(make_key(seed), "deal")))


def _checked(given: Split, data: Data, clients: int | None) -> Split:
    largest = [int(index.max()) if len(index) else -1 for index in (given.train_index, given.test_index)]
    require(
        (clients in (None, given.clients), f"clients is {clients}, but the split has {given.clients}"),
        (largest[0] < len(data.train), f"the split has training sample {largest[0]}, the data only {len(data.train)}"),
        (largest[1] < len(data.test), f"the split has test sample {largest[1]}, the data only {len(data.test)}"),
    )
    return given


def _indexed(given: Indices, data: Data, clients: int | None, seed: int) -> Split:
    """Return the split of sample indices by client; test sets are drawn with each client's label distribution."""
    try:
        lists = [np.sort(np.asarray(one)) for one in given]
    except (TypeError, ValueError):
        raise ConfigError(f"split must be a name, a rule, a Split, index lists or a function, got {given!r}") from None
    mistakes = [
        f"split: client {client} {mistake}" for client, one in enumerate(lists) if (mistake := _wrong(one, data))
    ]
    if clients is not None and clients != len(lists):
        mistakes.append(f"clients is {clients}, but the split has {len(lists)}")
    if mistakes or not lists:
        raise ConfigError(*mistakes or ["split: the list of clients is empty"])
    index = np.concatenate(lists).astype(np.int64)
    start = offsets(np.array([len(one) for one in lists]))
    return Split(index, start, *drawn_tests(index, start, strata(data), fold(make_key(seed), "test")))


def _wrong(index: Index, data: Data) -> str:
    if index.ndim != 1 or index.dtype.kind not in "iu":
        return f"must have a list of whole numbers, got {index.dtype} of shape {index.shape}"
    if not len(index):
        return "has no samples"
    if index[0] < 0 or index[-1] >= len(data.train):
        return f"has sample {index[0] if index[0] < 0 else index[-1]}, but samples are 0 to {len(data.train) - 1}"
    return "has a sample twice" if len(np.unique(index)) < len(index) else ""
