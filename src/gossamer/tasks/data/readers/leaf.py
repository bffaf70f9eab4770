"""LEAF's json files: samples by user, in the folders ``train`` and ``test``, each with one or more files.

A file is ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``. The content of x
and y differs between data sets, so the caller converts them to arrays. The reader only checks that nothing is missing.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import ConfigError
from gossamer.core.files import parse_json
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.readers.base import reading

Array = npt.NDArray[Any]
Convert = Callable[[list[Any], list[Any]], tuple[Array, Array]]


class OwnedSamples(NamedTuple):
    """Inputs and labels, with the owner of each sample."""

    x: Array
    y: Array
    owner: Index


def read(paths: Sequence[Path], convert: Convert) -> tuple[OwnedSamples, OwnedSamples]:
    """Read training and test set from the two folders. Owners are numbered by name, consistently in both."""
    found = [list(_users(folder, convert)) for folder in paths]
    names = sorted({user for users in found for user, _, _ in users})
    number = {name: at for at, name in enumerate(names)}
    for folder, users in zip(paths, found, strict=True):
        if not any(len(y) for _, _, y in users):
            raise ConfigError(f"{folder} holds no samples")
    train, test = (_joined(users, number) for users in found)
    return train, test


def _users(folder: Path, convert: Convert) -> Iterator[tuple[str, Array, Array]]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(f"{folder} holds no .json file: put LEAF's there")
    seen: dict[str, Path] = {}
    for file in files:
        with reading(file, "json file of LEAF"):
            whole = parse_json(file.read_bytes())
            _check(file, whole)
            for user in whole["users"]:
                if user in seen:
                    raise ConfigError(f"{file} holds the user {user}, who is also in {seen[user]}")
                seen[user] = file
                x, y = convert(whole["user_data"][user]["x"], whole["user_data"][user]["y"])
                yield user, x, y


def _check(file: Path, whole: dict[str, Any]) -> None:
    """Check that the sample counts agree with the samples."""
    users, counts, data = whole["users"], whole["num_samples"], whole["user_data"]
    if len(users) != len(counts) or set(users) != set(data):
        raise ConfigError(f"{file} names {len(users)} users, counts {len(counts)} and holds {len(data)}: it is damaged")
    for user, count in zip(users, counts, strict=True):
        if len(data[user]["x"]) != count or len(data[user]["y"]) != count:
            found = f"{len(data[user]['x'])} inputs and {len(data[user]['y'])} labels"
            raise ConfigError(f"{file}: user {user} has {found}, expected {count}")


def _joined(users: list[tuple[str, Array, Array]], number: dict[str, int]) -> OwnedSamples:
    held = [(number[user], x, y) for user, x, y in users if len(y)]
    owner = np.repeat([at for at, _, _ in held], [len(y) for _, _, y in held]).astype(np.int64)
    return OwnedSamples(np.concatenate([x for _, x, _ in held]), np.concatenate([y for _, _, y in held]), owner)
