"""What all readers share: images as files hold them, what is known of a public set, and how a bad file is refused."""

import hashlib
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


class Images(NamedTuple):
    """Images [n, channels, height, width] and labels from 0, and the files that both came from."""

    x: Bytes
    y: Index
    x_file: str
    y_file: str


@dataclass(frozen=True)
class Facts:
    """What is known of a public set of images, whatever files it comes in.

    Args:
        shape: channels, height and width of an image
        classes: how many there are
        counts: training and test images of the whole set; a file may hold fewer
        first: the label of the first class, as files write it
        arrays: SHA-256 of training images, training labels, test images, test labels, in bytes with channels last
        files: MD5 of original files by name, for formats that do not check themselves
    """

    shape: tuple[int, int, int]
    classes: int
    counts: tuple[int, int]
    first: int = 0
    arrays: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def reading(file: Path | str, what: str) -> Iterator[None]:
    """Whatever goes wrong with a file is said with its name; a parser may fail on damaged bytes in any way."""
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
    said = " ".join(f"{error}".split())[:200]
    return ConfigError(f"{file} is damaged, or is no {what}: {said or type(error).__name__}")


def images(x: Bytes, y: Integers, files: tuple[Path | str, Path | str], part: int, facts: Facts) -> Images:
    """Images and labels that agree with each other and with what is known of the set; others are refused."""
    x_file, y_file = map(str, files)
    if x.dtype != np.uint8 or x.shape[1:] != facts.shape:
        raise ConfigError(f"{x_file} holds {_size(x)} of {x.dtype}, expected images of {_by(facts.shape)} in uint8")
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ConfigError(f"{y_file} holds labels of shape {_by(y.shape)} and type {y.dtype}, expected whole numbers")
    if len(x) != len(y):
        raise ConfigError(f"{x_file} holds {len(x)} images and {y_file} {len(y)} labels: they do not belong together")
    if not 1 <= len(x) <= facts.counts[part]:
        raise ConfigError(f"{x_file} holds {len(x)} images, expected {facts.counts[part]} or, of a subset, fewer")
    return Images(x, labels(y, y_file, facts), x_file, y_file)


def labels(y: Integers, file: str, facts: Facts) -> Index:
    """Labels counted from 0; one out of range is refused."""
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
    """Refuse a file that is as large as the original and is not the original, where that one's digest is known."""
    known = facts.files.get(Path(file).name)
    if known and count == whole and hashlib.md5(raw, usedforsecurity=False).hexdigest() != known:
        raise ConfigError(f"{file} is altered: it is not the original file, whose MD5 is {known}")
