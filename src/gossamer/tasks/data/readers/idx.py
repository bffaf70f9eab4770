"""The idx format of MNIST and variants: two zero bytes, type, number of dimensions, big-endian sizes, values.

Images and labels have separate files, plain or gzipped. EMNIST's images are stored column by column.
"""

import gzip
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.readers import expand
from gossamer.tasks.data.readers.base import Bytes, Facts, Images, images, reading

UINT8 = 0x08


def read(paths: Sequence[Path], facts: Facts, *, transposed: bool = False) -> tuple[Images, Images]:
    """Read training and test set from four files: training images and labels, test images and labels."""
    raws = []
    for path in paths:
        with reading(path, "idx file"):
            raws.append(expand.file_bytes(path, facts.room))
    return _parts([str(path) for path in paths], raws, facts, transposed)


def read_zip(paths: Sequence[Path], facts: Facts, *, members: Sequence[str]) -> tuple[Images, Images]:
    """Read the four files from an archive, as EMNIST has it."""
    (path,) = paths
    with reading(path, "zip archive"), zipfile.ZipFile(path) as archive:
        raws = [expand.member(archive, member, facts.room) for member in members]
    return _parts([f"{path}, {member}" for member in members], raws, facts, True)


def _parts(files: Sequence[str], raws: Sequence[bytes], facts: Facts, transposed: bool) -> tuple[Images, Images]:
    train, test = (_part(files[at : at + 2], raws[at : at + 2], at // 2, facts, transposed) for at in (0, 2))
    return train, test


def _part(files: Sequence[str], raws: Sequence[bytes], part: int, facts: Facts, transposed: bool) -> Images:
    x, y = (parse(raw, file, dims, facts.room) for raw, file, dims in zip(raws, files, (3, 1), strict=True))
    x = x.swapaxes(1, 2) if transposed else x
    return images(x[:, None], y, (files[0], files[1]), part, facts)


def parse(raw: bytes, file: str, dims: int, room: int) -> Bytes:
    """Parse an idx file with an array of ``dims`` dimensions, to the last byte; it has at most ``room`` bytes."""
    with reading(file, "idx file"):
        if raw[:2] == b"\x1f\x8b":
            raw = expand.whole(gzip.GzipFile(fileobj=io.BytesIO(raw)), room)
    if len(raw) < 4 + 4 * dims or raw[:3] != bytes((0, 0, UINT8)):
        raise ConfigError(f"{file} is no idx file: it begins with {raw[:4].hex(' ') or 'nothing'}")
    if raw[3] != dims:
        raise ConfigError(f"{file} holds {raw[3]} dimensions, expected {dims}: {_swapped(dims)}")
    shape = np.frombuffer(raw, ">u4", dims, offset=4).astype(np.int64)
    expected, size = 4 + 4 * dims + int(np.prod(shape.astype(object))), len(raw)
    if size != expected:
        state = "cut short" if size < expected else "too long"
        raise ConfigError(f"{file} is {state}: {size:,} bytes, expected {expected:,} by its own header")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def _swapped(dims: int) -> str:
    return "labels where images should be" if dims == 3 else "images where labels should be"
