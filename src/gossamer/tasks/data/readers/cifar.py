"""CIFAR-10 and CIFAR-100: python batches (pickles) or binary records, from a folder or the original archive.

An image has 3,072 bytes: red, green and blue planes of 32 x 32. A python batch states its number of images. A binary
file has no header and may be truncated between two records, so it must have all images of the original.
"""

import gzip
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.readers import expand, unpickle
from gossamer.tasks.data.readers.base import Bytes, Facts, Images, check_original, images, reading

PIXELS = 3 * 32 * 32
LABELS = {10: b"labels", 100: b"fine_labels"}
"""Name of the labels in a python batch, by the number of classes."""

Batch = tuple[Bytes, Bytes]


def read(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read both sets from files; the last file is the test set."""
    raws = {}
    for path in paths:
        with reading(path, "CIFAR file"):
            raws[str(path)] = expand.file_bytes(path, facts.room)
    return _parts(raws, facts)


def read_tar(paths: Sequence[Path], facts: Facts, *, members: Sequence[str]) -> tuple[Images, Images]:
    """Read both sets from the original archive, to its end so that its checksum is verified; unpack nothing."""
    (path,) = paths
    found: dict[str, bytes] = {}
    with reading(path, "tar.gz archive"), gzip.open(path) as packed:
        stream = expand.Limited(packed, facts.room)
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
            for member in archive:
                expand.check(member.size, facts.room)
                file = archive.extractfile(member) if member.name in members and member.isfile() else None
                if file is not None:
                    found[member.name] = file.read()
        while stream.read(expand.PIECE):
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
        images(_planes(x), y.astype(np.int64), (train_files, train_files), 0, facts),
        images(_planes(test[0]), test[1].astype(np.int64), (files[-1], files[-1]), 1, facts),
    )


def _planes(x: Bytes) -> Bytes:
    return x.reshape(-1, 3, 32, 32)


def _batch(file: str, raw: bytes, whole: int, facts: Facts) -> Batch:
    x, y = _records(file, raw, whole, facts) if file.endswith(".bin") else _pickled(file, raw, facts)
    if len(x) != len(y) or not 1 <= len(x) <= whole:
        raise ConfigError(f"{file} holds {len(x)} images and {len(y)} labels, expected {whole} of each or fewer")
    if int(y.max()) >= facts.classes:
        raise ConfigError(f"{file} holds the label {int(y.max())}, expected 0 to {facts.classes - 1}")
    check_original(file, raw, len(x), whole, facts)
    return x, y


def _pickled(file: str, raw: bytes, facts: Facts) -> Batch:
    with reading(file, "CIFAR python batch"):
        found = unpickle.batch(raw)
        name = LABELS[facts.classes]
        if name not in found:
            raise ConfigError(f"{file} holds no {name.decode()}: is it a batch of the other CIFAR?")
        x, y = unpickle.array(found.get(b"data")), bytes(found[name])  # bytes refuses what is not from 0 to 255
        if x.ndim != 2 or x.shape[1] != PIXELS:
            raise ConfigError(f"{file} holds an array of shape {x.shape}, expected rows of {PIXELS} bytes")
        return x, np.frombuffer(y, np.uint8)


def _records(file: str, raw: bytes, whole: int, facts: Facts) -> Batch:
    """The label is one byte before the pixels; CIFAR-100 has the coarse label before the fine label."""
    ahead = 1 if facts.classes == 10 else 2
    expected = whole * (ahead + PIXELS)
    if len(raw) != expected:
        raise ConfigError(f"{file} holds {len(raw):,} bytes, expected {expected:,}: it is truncated, or another file")
    rows = np.frombuffer(raw, np.uint8).reshape(whole, ahead + PIXELS)
    return rows[:, ahead:], rows[:, ahead - 1]
