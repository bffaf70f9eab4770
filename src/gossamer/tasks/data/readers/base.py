"""Shared code of readers: images, known facts about public sets, and errors for invalid files."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.partition import Index

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.integer[Any]]

SLACK = 2**24
"""Bytes of a file that are neither images nor labels, at most."""


class Images(NamedTuple):
    """Images [n, channels, height, width], labels starting at 0, and the files of both."""

    x: Bytes
    y: Index
    x_file: str
    y_file: str


@dataclass(frozen=True)
class Facts:
    """Known facts about a public image set, for all of its file layouts.

    Args:
        shape: channels, height and width of an image
        classes: number of classes
        counts: numbers of training and test images of the complete set; a file may hold fewer
        first: label of the first class in the files
        arrays: SHA-256 of training images, training labels, test images, test labels, in bytes with channels last
        files: MD5 of original files by name, for formats without a checksum
    """

    shape: tuple[int, int, int]
    classes: int
    counts: tuple[int, int]
    first: int = 0
    arrays: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """The most bytes that a file of the set has, expanded: all images in bytes, a label of eight bytes for each."""
        return sum(self.counts) * (math.prod(self.shape) + 8) + SLACK


@contextmanager
def reading(file: Path | str, what: str) -> Iterator[None]:
    """Turn any error inside the block into a ``ConfigError`` with the file's name; parsers raise many types."""
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        raise _damaged(file, what, error) from error
    except Exception as error:
        raise _damaged(file, what, error) from error


def _damaged(file: Path | str, what: str, error: Exception) -> ConfigError:
    reason = " ".join(f"{error}".split())[:200]
    return ConfigError(f"{file} is damaged, or is no {what}: {reason or type(error).__name__}")


def images(x: Bytes, y: Integers, files: tuple[Path | str, Path | str], part: int, facts: Facts) -> Images:
    """Check that images and labels fit each other and the known facts."""
    x_file, y_file = map(str, files)
    if x.dtype != np.uint8 or x.shape[1:] != facts.shape:
        raise ConfigError(f"{x_file} holds {_size(x)} of {x.dtype}, expected images of {_by(facts.shape)} in uint8")
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ConfigError(f"{y_file} holds labels of shape {_by(y.shape)} and type {y.dtype}, expected integers")
    if len(x) != len(y):
        raise ConfigError(f"{x_file} holds {len(x)} images and {y_file} {len(y)} labels: they do not belong together")
    if not 1 <= len(x) <= facts.counts[part]:
        raise ConfigError(f"{x_file} holds {len(x)} images, expected {facts.counts[part]} or, of a subset, fewer")
    return Images(x, labels(y, y_file, facts), x_file, y_file)


def labels(y: Integers, file: str, facts: Facts) -> Index:
    """Return labels starting at 0; refuse labels out of range."""
    low, high = int(y.min()), int(y.max())
    first, last = facts.first, facts.first + facts.classes - 1
    if low < first or high > last:
        raise ConfigError(f"{file} holds labels from {low} to {high}, expected {first} to {last}: is it another set's?")
    return y.astype(np.int64) - first


def _size(x: Bytes) -> str:
    return f"samples of {_by(x.shape[1:])}" if x.ndim > 1 else "single numbers"


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def check_original(file: str, raw: bytes, count: int, whole: int, facts: Facts) -> None:
    """Refuse a file with the original's number of images but another digest, if the original's is known."""
    known = facts.files.get(Path(file).name)
    if known and count == whole and hashlib.md5(raw, usedforsecurity=False).hexdigest() != known:
        raise ConfigError(f"{file} is altered: the MD5 of the original file is {known}")
