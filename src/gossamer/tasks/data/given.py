"""Data and splits as arguments of ``Task.of``: what users give, converted and checked.

Data is given as arrays, map-style data sets, Hugging Face data sets, or one data set per client. A sample of a data set
is ``(x, y)``, or a dict with the target in the column ``target``. Data that fits the budget is read once and held in
memory; larger data is read when needed (``gossamer.tasks.data.lazy``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset

from gossamer.core.errors import ConfigError, require
from gossamer.core.fields import whole_number
from gossamer.core.random import fold, generator
from gossamer.core.random import key as make_key
from gossamer.core.specs import parse
from gossamer.fleet.units import SIZES, read_size
from gossamer.tasks.data import nests
from gossamer.tasks.data.lazy import ANY, LazySamples, all_seeded
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.partition import Index, Split, offsets
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.samples import AnySamples, Data, Samples
from gossamer.tasks.data.splits import drawn_tests, split, strata
from gossamer.tasks.losses import LossFunction, wrong_targets

TARGETS = ("labels", "label", "target", "targets", "y")
"""Names of the target column of a data set with dict samples, in order of preference."""

READ_AT_ONCE = 256
"""Number of samples per batch when a data set is read into memory."""

PROBED = 8
"""Number of samples from which the size of a data set is estimated."""


class Reading(NamedTuple):
    """How data sets are read.

    Args:
        target: name of the target column; none means the first known name
        memory: bytes up to which data is held in memory, and budget of what is read ahead
        workers: number of processes that read
    """

    target: str | None
    memory: int
    workers: int


def samples(given: Any, name: str, reading: Reading) -> AnySamples:
    """Convert ``given`` to samples; ``name`` is the argument in error messages."""
    if isinstance(given, AnySamples):
        return given
    with all_seeded(ANY):  # data sets may draw random numbers
        return _read([_part(one, label, reading) for label, one in _by_client(given, name)], given, reading)


def _read(parts: "list[AnySamples | _Pairs]", given: Any, reading: Reading) -> AnySamples:
    """Hold all samples in memory if they fit, else return samples that are read when needed."""
    group = np.repeat(np.arange(len(parts)), [len(part) for part in parts]) if is_federation(given) else None
    if sum(part.size() for part in parts if isinstance(part, _Pairs)) <= reading.memory:
        held = [part.held() if isinstance(part, _Pairs) else part for part in parts]
        x = held[0].x if len(held) == 1 else nests.concatenate([part.x for part in held])
        return Samples(x, torch.cat([part.y for part in held]), group)
    inputs: ConcatDataset[Nest] = ConcatDataset([_Inputs(part) for part in parts])
    y = torch.cat([part.y if isinstance(part, AnySamples) else part.targets(reading.workers) for part in parts])
    return LazySamples(inputs, y, group, reading.memory, reading.workers)


def is_federation(given: Any) -> bool:
    """Return whether data is given as one data set per client: a list or a mapping."""
    return isinstance(given, list | Mapping)


def _by_client(given: Any, name: str) -> list[tuple[str, Any]]:
    """Return the data of each client with its name in messages, or all data as one item."""
    if not is_federation(given):
        return [(name, given)]
    if type(given).__name__ == "DatasetDict":
        raise ConfigError(f"{name} is a DatasetDict: give one of its data sets, {', '.join(map(repr, given))}")
    items = given.items() if isinstance(given, Mapping) else enumerate(given)
    found = [(f"{name}[{client!r}]", one) for client, one in items]
    if not found:
        raise ConfigError(f"{name} is empty: give one data set per client")
    return found


def _part(given: Any, name: str, reading: Reading) -> "AnySamples | _Pairs":
    if isinstance(given, AnySamples):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        x, y = _nest(given[0], f"{name}: x"), _targets(given[1], name)
        if not y.dim():
            raise ConfigError(_one_sample(name))
        return Samples(x, y)
    if isinstance(given, Mapping):
        raise ConfigError(_one_sample(name))
    return _Pairs(_map_style(given, name), name, reading.target)


def _one_sample(name: str) -> str:
    """Return the message on one sample in place of a data set; most likely the user has a list of samples."""
    whole, listed, _ = name.partition("[")
    what = f"{whole} is a list of samples" if listed else f"{name} is one sample"
    return f"{what}: give (x, y) arrays or a Dataset; a list means one data set per client"


def owners(given: Any, name: str, count: int) -> Index:
    """Convert the owner of each sample (numbers or names) to integers, in sorted order of the owners."""
    array = np.asarray(given)
    if array.shape != (count,):
        raise ConfigError(f"{name} must hold one owner per sample: {count} samples, but its shape is {array.shape}")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


# Arrays.


def _nest(given: Any, name: str) -> Nest:
    """Convert inputs, of one sample or of all: an array, or a dict or tuple of these."""
    if isinstance(given, Mapping):
        return {str(key): _nest(inner, f"{name}[{key!r}]") for key, inner in given.items()}
    if isinstance(given, tuple):
        return tuple(_nest(inner, f"{name}[{number}]") for number, inner in enumerate(given))
    if hasattr(given, "getbands"):  # a PIL image
        raise ConfigError(f"{name} is a PIL image: give the data set a transform to a tensor")
    return as_tensor(given, name)


def _targets(given: Any, name: str) -> Tensor:
    found = as_tensor(given, f"{name}: y")
    whole = not found.is_floating_point() and not found.is_complex()
    return found.to(torch.int64) if whole else found


def as_tensor(given: Any, name: str) -> Tensor:
    """Convert an array or nested lists of numbers; NumPy's and Python's float64 become torch's default type."""
    if isinstance(given, Tensor):
        return given.detach()
    try:
        array = np.asarray(given)
    except ValueError:
        raise ConfigError(f"{name}: rows have different lengths: pad them to one length") from None
    if array.dtype.kind not in "biuf":
        raise ConfigError(_not_numbers(given, array, name))
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


def _not_numbers(given: Any, array: np.ndarray, name: str) -> str:
    if array.dtype.kind in "US" and name.endswith(": y"):
        return f"{name} is text: number the classes from 0"
    if array.dtype.kind in "US":
        return f"{name} is text: encode it as numbers (a tokenizer), or remove the column"
    return f"{name} must hold numbers, got {type(given).__name__}: convert it to a tensor or an array"


# Data sets.


class _Pairs(Dataset[tuple[Nest, Tensor]]):
    """A user's data set with samples converted to an input nest and a target."""

    def __init__(self, dataset: Any, name: str, target: str | None) -> None:
        self.dataset, self.name, self.target = dataset, name, target
        if not len(dataset):
            raise ConfigError(f"{name}: the data set is empty")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[Nest, Tensor]:
        x, y = self._parts(self.dataset[row])
        return _nest(x, f"{self.name}: an input"), _targets(y, self.name)

    def _parts(self, sample: Any) -> tuple[Any, Any]:
        if isinstance(sample, Mapping):
            column = target_column(list(sample), self.name, self.target)
            return {name: value for name, value in sample.items() if name != column}, sample[column]
        if isinstance(sample, tuple | list) and len(sample) == 2:
            return sample[0], sample[1]
        several = f" of {len(sample)}: write ((a, b), y)" if isinstance(sample, tuple | list) else ""
        got = f"a {type(sample).__name__}{several}"
        raise ConfigError(f"{self.name}: a sample must be (x, y) or a dict with a target column, got {got}")

    def size(self) -> float:
        """Return the estimated size of all samples in bytes."""
        rows = np.linspace(0, len(self) - 1, min(PROBED, len(self))).astype(int).tolist()
        return len(self) * sum(nests.nbytes(self[row]) for row in rows) / len(rows)

    def held(self) -> Samples:
        """Read all samples into memory."""
        bounds = [*range(0, len(self), READ_AT_ONCE), len(self)]
        try:
            batches = [nests.stack([self[row] for row in range(*bound)]) for bound in pairwise(bounds)]
            x, y = nests.concatenate(batches)
        except RuntimeError as error:
            raise ConfigError(f"{self.name}: samples have different shapes: pad or resize them ({error})") from None
        assert isinstance(y, Tensor)
        return Samples(x, y)

    def targets(self, workers: int) -> Tensor:
        """Return all targets: those that the data set holds, or else those of one pass over it."""
        known = self._known_targets()
        if known is not None:
            return _targets(known, self.name)
        loader: DataLoader[Any] = DataLoader(
            _Targets(self), batch_size=READ_AT_ONCE, num_workers=workers, collate_fn=torch.stack
        )
        return torch.cat(list(loader))

    def _known_targets(self) -> Any:
        columns = getattr(self.dataset, "column_names", None)
        if columns is not None:
            return self.dataset[target_column(columns, self.name, self.target)]
        found: list[Any] = [getattr(self.dataset, name, None) for name in ("targets", "labels")]
        return next((some for some in found if hasattr(some, "__len__") and len(some) == len(self)), None)


class _Inputs(Dataset[Nest]):
    """The inputs of converted samples."""

    def __init__(self, part: AnySamples | _Pairs) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, row: int) -> Nest:
        return nests.take(self.part.x, row) if isinstance(self.part, AnySamples) else self.part[row][0]


class _Targets(Dataset[Tensor]):
    """The targets of converted samples."""

    def __init__(self, pairs: _Pairs) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> Tensor:
        return self.pairs[row][1]


def target_column(columns: Sequence[str], name: str, target: str | None) -> str:
    """Return the name of the target column."""
    found = next((column for column in ([target] if target else TARGETS) if column in columns), None)
    if found is None:
        wanted = f"no column {target!r}" if target else "no target column"
        raise ConfigError(f"{name}: {wanted} among {', '.join(map(str, columns))}: name it with target=")
    return found


def _map_style(given: Any, name: str) -> Any:
    """Return a map-style data set; refuse what has no length or index."""
    if isinstance(given, DataLoader):
        given = given.dataset  # batches and their order are chosen by the solver
    if isinstance(given, str | bytes | Tensor | np.ndarray):
        raise ConfigError(f"{name} must be a pair (x, y) or a data set, got a {type(given).__name__}")
    if isinstance(given, IterableDataset) or not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise ConfigError(
            f"{name}: a {type(given).__name__} has no length and index: give a map-style data set, arrays (x, y), "
            "or a list of one of these per client"
        )
    return given


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
            found[name] = replace(found[name], group=owners(given, argument, len(found[name])))
    if is_federation(train) and is_federation(test) and len(train) != len(test):
        raise ConfigError(f"train has {len(train)} clients, but test has {len(test)}: give each client both")
    check_samples(loss, **found)
    natural = found["train"].group is not None
    classes = count_classes(*(held.y for held in found.values()))
    return Data("custom", found["train"], found["test"], classes, "natural" if natural else "iid", "custom")


def _by_name(train: Any, test: Any) -> Any:
    """Return the test data of clients in the order of their training data; refuse other names."""
    kinds = (type(train).__name__, type(test).__name__)
    if not (isinstance(train, Mapping) and isinstance(test, Mapping)) or "DatasetDict" in kinds:
        return test
    lacking = [f"test has no data for client {name!r}" for name in train if name not in test]
    strange = [f"{name!r} is no client of train" for name in test if name not in train]
    if lacking or strange:
        raise ConfigError(f"{', and '.join((*lacking, *strange))}: use the same names")
    return {name: test[name] for name in train}


def count_classes(*targets: Tensor) -> int:
    """Return the number of classes; 0 if targets are not class numbers."""
    if not targets or not all(y.dtype == torch.int64 and y.dim() == 1 and int(y.min()) >= 0 for y in targets):
        return 0
    return max(int(y.max()) for y in targets) + 1


def check_samples(loss: LossFunction, /, **given: AnySamples) -> None:
    """Refuse samples that cannot be trained on; list all mistakes."""
    mistakes = [mistake for name, held in given.items() if (mistake := _mistake(name, held, loss))]
    if mistakes:
        raise ConfigError(*mistakes)


def _mistake(name: str, held: AnySamples, loss: LossFunction) -> str:
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
        dealt = given(data.train.y.numpy(), clients or CLIENTS, generator(fold(make_key(seed), "deal")))
        return "custom", _indexed(dealt, data, clients, seed)
    if not isinstance(given, str) and not hasattr(given, "deal"):
        return "custom", _indexed(given, data, clients, seed)
    natural = 0 if data.train.group is None else len(np.unique(data.train.group))
    number = clients if clients is not None else natural or CLIENTS
    number, seed = whole_number("clients", number, 1), whole_number("seed", seed, 0)
    rule = parse(given, SPLITS, "split") if isinstance(given, str) else given
    return given if isinstance(given, str) else "custom", split(rule, data, number, make_key(seed))


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
