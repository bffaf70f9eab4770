"""SVHN's cropped digits: MATLAB files with X [32, 32, 3, n] and y [n, 1], where label 10 stands for the digit 0.

A file of MATLAB 5 has a header of 128 bytes and elements. An element has a type and a number of bytes, and its bytes. A
variable is an element with others inside: flags, dimensions, name and values; it may be compressed as a whole. Only
arrays of numbers are read. SciPy's reader is not used: a damaged file can crash the process.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.readers import expand
from gossamer.tasks.data.readers.base import Facts, Images, check_original, images, reading

HEADER = 128
MATRIX, COMPRESSED = 14, 15
"""Types of elements: a variable, and a compressed one."""

NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of elements with numbers, in NumPy's words."""

ORDERS = {b"IM": "<", b"MI": ">"}
"""The byte order, by the mark at the end of the header."""

FEW = 32
"""The most dimensions of an array."""

Array = npt.NDArray[Any]


def read(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read training and test set from two files."""
    train, test = (_part(path, part, facts) for part, path in enumerate(paths))
    return train, test


def _part(path: Path, part: int, facts: Facts) -> Images:
    with reading(path, "MATLAB file"):
        raw = expand.file_bytes(path, facts.room)
        found = variables(raw, {"X", "y"}, facts.room)
    if "X" not in found or "y" not in found:
        raise ConfigError(f"{path} is truncated or belongs to another set: it must hold X and y")
    x, y = found["X"], found["y"]
    if x.ndim != 4 or y.ndim != 2 or y.shape[1] != 1 or y.dtype.kind not in "iu":
        raise ConfigError(f"{path} holds X of shape {x.shape} and y of shape {y.shape} and type {y.dtype}")
    part_read = images(x.transpose(3, 2, 0, 1), y[:, 0], (path, path), part, facts)
    check_original(str(path), raw, len(y), facts.counts[part], facts)
    return part_read._replace(y=(part_read.y + facts.first) % np.int64(facts.classes))


class Element(NamedTuple):
    """An element of a file: its type and its bytes."""

    kind: int
    data: memoryview


def variables(raw: bytes, names: set[str], room: int) -> dict[str, Array]:
    """Return the arrays of numbers with these names; compressed ones have at most ``room`` bytes together.

    Raises ``ValueError`` for a file that is no MATLAB 5 file.
    """
    order, found = ORDERS.get(raw[HEADER - 2 : HEADER]), dict[str, Array]()
    if order is None:
        raise ValueError("it has no header of MATLAB 5")
    for element in _elements(memoryview(raw)[HEADER:], order, aligned=False):
        if element.kind == COMPRESSED:
            expanded = expand.inflated(bytes(element.data), room)
            room -= len(expanded)
            element = next(_elements(memoryview(expanded), order, aligned=False), element)
        if element.kind == MATRIX:
            name, shape, values = _parts(element.data, order)
            if name in names:
                found[name] = _array(shape, values, order)
    return found


def _elements(view: memoryview, order: str, aligned: bool) -> Iterator[Element]:
    """Yield the elements in some bytes. Inside a variable they begin at multiples of eight bytes."""
    at = 0
    while at + 8 <= len(view):
        kind, size = struct.unpack_from(f"{order}II", view, at)
        start, end = at + 8, at + 8 + size
        if small := kind >> 16:  # up to four bytes share the eight with their type
            kind, start, end = kind & 0xFFFF, at + 4, at + 4 + small
            size = 0
        if end > len(view) or (small and small > 4):
            raise ValueError(f"an element of {max(size, small):,} bytes runs past the end")
        yield Element(kind, view[start:end])
        at = at + 8 if small else end + (-end % 8 if aligned else 0)


def _parts(view: memoryview, order: str) -> tuple[str, tuple[int, ...], Element]:
    """Return the name, the shape and the values of a variable."""
    inside = list(_elements(view, order, aligned=True))
    if len(inside) < 4 or NUMBERS.get(inside[1].kind) != "i4" or len(inside[1].data) > 4 * FEW:
        raise ValueError("a variable has no dimensions, name or values")
    shape = tuple(int(size) for size in np.frombuffer(inside[1].data, f"{order}i4"))
    return bytes(inside[2].data).decode("latin-1"), shape, inside[3]


def _array(shape: tuple[int, ...], values: Element, order: str) -> Array:
    """Return an array of numbers, which are stored column by column."""
    if values.kind not in NUMBERS or min(shape, default=-1) < 0:
        raise ValueError("a variable is no array of numbers")
    found = np.frombuffer(values.data, np.dtype(f"{order}{NUMBERS[values.kind]}"))
    if len(found) != math.prod(shape):
        raise ValueError(f"a variable has {len(found):,} numbers, its dimensions say {math.prod(shape):,}")
    return found.reshape(shape, order="F")
