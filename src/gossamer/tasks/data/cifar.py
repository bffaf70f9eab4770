"""CIFAR-10 and CIFAR-100: python batches (pickles) or binary records, from a folder or the original archive.

An image has 3,072 bytes: red, green and blue planes of 32 x 32. A python batch states its number of images. A binary
file has no header and may be truncated between two records, so it must have all images of the original.

A python batch is read without executing code. It is a dictionary of byte strings, lists, numbers and one NumPy array.
An array's pickle refers to three names. Here they are placeholders that only store their arguments. NumPy gets the
array's bytes after they are checked. Any other name is refused.
"""

import gzip
import io
import pickle
import pickletools
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import numpy as np

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.readers import (
    PIECE,
    Bytes,
    Facts,
    Images,
    Limited,
    check_original,
    check_room,
    file_bytes,
    images,
    reading,
)

NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
"""Operations that give an object a number."""

ADMITTED = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")


class _Type:
    """Placeholder for ``numpy.dtype('u1')``; its flags are irrelevant for single bytes."""

    __slots__ = ("code",)

    def __init__(self, code: Any) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Placeholder for an array; stores its state: version, shape, type, order and bytes."""

    __slots__ = ("state",)

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Name:
    """Placeholder for one of the three names; a call returns a placeholder."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> _Array | _Type:
        return _Type(args[0]) if self.name == "numpy.dtype" else _Array()

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("it sets the state of a name")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Name:
        if f"{module}.{name}" not in ADMITTED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed in a batch of images")
        return _Name(f"{module}.{name}")


def unpickled(raw: bytes) -> dict[bytes, Any]:
    """Return the content of a CIFAR batch by name; arrays are placeholders, for ``unpickled_array``."""
    # Pickle makes a table up to the largest number of an object, which may be far beyond their count.
    for count, (operation, number, _) in enumerate(pickletools.genops(raw)):
        if operation.name in NUMBERING and isinstance(number, int) and number > count:
            raise pickle.UnpicklingError(f"it numbers an object {number:,}, and has {count:,} before it")
    file = io.BytesIO(raw)
    found = _Unpickler(file, encoding="bytes").load()
    if not isinstance(found, dict):
        raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dictionary")
    if file.read(1):
        raise pickle.UnpicklingError("its end is followed by other bytes")
    return found


def unpickled_array(kept: object) -> Bytes:
    """Return the byte array of a placeholder."""
    if not isinstance(kept, _Array):
        raise pickle.UnpicklingError("its data is no array")
    _, shape, kind, columns_first, raw = kept.state
    if not isinstance(kind, _Type) or kind.code not in (b"u1", "u1") or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("its data is no array of bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns_first else "C")


PIXELS, PLANES = 3 * 32 * 32, (-1, 3, 32, 32)
LABELS = {10: b"labels", 100: b"fine_labels"}
"""Name of the labels in a python batch, by the number of classes."""

Batch = tuple[Bytes, Bytes]


def read_cifar(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read both sets from files; the last file is the test set."""
    raws = {}
    for path in paths:
        with reading(path, "CIFAR file"):
            raws[str(path)] = file_bytes(path, facts.room)
    return _parts(raws, facts)


def read_cifar_tar(paths: Sequence[Path], facts: Facts, *, members: Sequence[str]) -> tuple[Images, Images]:
    """Read both sets from the original archive, to its end so that its checksum is verified; unpack nothing."""
    (path,) = paths
    found: dict[str, bytes] = {}
    with reading(path, "tar.gz archive"), gzip.open(path) as packed:
        stream = Limited(packed, facts.room)
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
            for member in archive:
                check_room(member.size, facts.room)
                file = archive.extractfile(member) if member.name in members and member.isfile() else None
                if file is not None:
                    found[member.name] = file.read()
        while stream.read(PIECE):
            pass
    missing = [member for member in members if member not in found]
    if missing:
        raise ConfigError(f"{path} lacks {', '.join(missing)}")
    return _parts({f"{path}, {member}": found[member] for member in members}, facts)


def _parts(raws: Mapping[str, bytes], facts: Facts) -> tuple[Images, Images]:
    files = list(raws)
    whole = facts.counts[0] // (len(files) - 1)  # images per training file
    batches = [_batch(file, raws[file], whole, facts) for file in files[:-1]]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    train_files = files[0] if len(files) == 2 else f"{files[0]} to {Path(files[-2]).name}"
    test = _batch(files[-1], raws[files[-1]], facts.counts[1], facts)
    return (
        images(x.reshape(PLANES), y.astype(np.int64), (train_files, train_files), 0, facts),
        images(test[0].reshape(PLANES), test[1].astype(np.int64), (files[-1], files[-1]), 1, facts),
    )


def _batch(file: str, raw: bytes, whole: int, facts: Facts) -> Batch:
    if file.endswith(".bin"):
        # The label is one byte before the pixels; CIFAR-100 has the coarse label before the fine label.
        ahead = 1 if facts.classes == 10 else 2
        size, expected = len(raw), whole * (ahead + PIXELS)
        if size != expected:
            raise ConfigError(f"{file} holds {size:,} bytes, expected {expected:,}: it is truncated, or another file")
        rows = np.frombuffer(raw, np.uint8).reshape(whole, ahead + PIXELS)
        x, y = rows[:, ahead:], rows[:, ahead - 1]
    else:
        with reading(file, "CIFAR python batch"):
            found, name = unpickled(raw), LABELS[facts.classes]
            if name not in found:
                raise ConfigError(f"{file} holds no {name.decode()}: is it a batch of the other CIFAR?")
            x = unpickled_array(found.get(b"data"))
            y = np.frombuffer(bytes(found[name]), np.uint8)  # bytes refuses what is not from 0 to 255
            if x.ndim != 2 or x.shape[1] != PIXELS:
                raise ConfigError(f"{file} holds an array of shape {x.shape}, expected rows of {PIXELS} bytes")
    if len(x) != len(y) or not 1 <= len(x) <= whole:
        raise ConfigError(f"{file} holds {len(x)} images and {len(y)} labels, expected {whole} of each or fewer")
    if int(y.max()) >= facts.classes:
        raise ConfigError(f"{file} holds the label {int(y.max())}, expected 0 to {facts.classes - 1}")
    check_original(file, raw, len(x), whole, facts)
    return x, y
