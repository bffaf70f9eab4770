"""Data sets of LEAF (https://arxiv.org/abs/1812.01097) with natural owners: FEMNIST and Shakespeare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gossamer.core.errors import require
from gossamer.core.random import Key
from gossamer.tasks.data import text
from gossamer.tasks.data.locate import FileLayout, find, folder
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.readers import leaf as reader
from gossamer.tasks.data.readers.leaf import OwnedSamples
from gossamer.tasks.data.samples import Data, Samples

Reader = Callable[[Sequence[Path]], tuple[OwnedSamples, OwnedSamples]]

CHARACTERS = 62
SIDE = 28


def _leaf(name: str, convert: reader.Convert) -> FileLayout[Reader]:
    """LEAF's two folders, under the set's name or in LEAF's own folder ``data``."""
    return FileLayout((("train/",), ("test/",)), (name, f"{name}/data"), partial(reader.read, convert=convert))


def _load(name: str, data_dir: Path | None, layouts: Sequence[FileLayout[Reader]], classes: int, model: str) -> Data:
    found = find(name, folder(data_dir), layouts)
    train, test = (_samples(part) for part in found.read(found.paths))
    return Data(name, train, test, classes, split="natural", model=model)


def _samples(part: OwnedSamples) -> Samples:
    return Samples(torch.from_numpy(part.x), torch.from_numpy(part.y), part.owner)


def pixels(x: list[Any], y: list[Any]) -> tuple[npt.NDArray[np.float32], Index]:
    """Convert LEAF's images: 784 numbers in [0, 1], with 1 for white, and a label from 0 to 61."""
    image, label = np.array(x, dtype=np.float32).reshape(-1, SIDE * SIDE), np.array(y)
    if len(y) == 0:
        return image.reshape(-1, 1, SIDE, SIDE), label.astype(np.int64)
    if len(image) != len(y) or not (image >= 0).all() or not (image <= 1).all():
        raise ValueError(f"an image must be {SIDE * SIDE} numbers from 0 to 1")
    if label.ndim != 1 or label.dtype.kind != "i" or label.min() < 0 or label.max() >= CHARACTERS:
        raise ValueError(f"a label must be a whole number from 0 to {CHARACTERS - 1}")
    return image.reshape(-1, 1, SIDE, SIDE), label.astype(np.int64)


@dataclass(frozen=True)
class Femnist:
    """Handwritten digits and letters by writer, 28 x 28 pixels, 62 classes; from LEAF."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the set from LEAF's files."""
        return _load("femnist", data_dir, [_leaf("femnist", pixels)], CHARACTERS, model="cnn4")


@dataclass(frozen=True)
class Shakespeare:
    """Plays by role: 80 characters and the next one, 80 classes; from LEAF's files or a file of roles.

    Args:
        stride: number of characters between two samples, for a file of roles
    """

    stride: int = 1

    def __post_init__(self) -> None:
        require((self.stride >= 1, f"stride must be at least 1, got {self.stride}"))

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the set from its files."""
        roles: FileLayout[Reader] = FileLayout(
            (("tinyshakespeare_roles.json", "shakespeare_roles.json"),),
            (".", "shakespeare"),
            partial(text.read_roles, stride=self.stride),
        )
        layouts = [_leaf("shakespeare", text.from_leaf), roles]
        return _load("shakespeare", data_dir, layouts, len(text.ALPHABET), model="lstm")
