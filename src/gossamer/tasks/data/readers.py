"""Readers of image files: idx (MNIST), npz (NumPy) and mat (SVHN). A damaged or wrong file is refused by name.

**Compressed files.** A small file can claim, or expand to, more than the memory has. Sizes that a file claims are
checked before anything is read. What a compressed stream really holds is not known before it is read, so it is read in
pieces, and refused as soon as the limit is passed.

**idx**, the format of MNIST and variants: two zero bytes, type, number of dimensions, big-endian sizes, values. Images
and labels have separate files, plain or gzipped. EMNIST's images are stored column by column.

**npz**: NumPy archives with x_train, y_train, x_test and y_test; images [n, height, width] or with channels last.

**mat**: SVHN's cropped digits, MATLAB files with X [32, 32, 3, n] and y [n, 1], where label 10 stands for the digit 0.
A file of MATLAB 5 has a header of 128 bytes and elements. An element has a type and a number of bytes, and its bytes. A
variable is an element with others inside: flags, dimensions, name and values; it may be compressed as a whole. Only
arrays of numbers are read. SciPy's reader is not used: a damaged file can crash the process.
"""

import gzip
import hashlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zipfile import ZipFile

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
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        reason = " ".join(f"{error}".split())[:200] or type(error).__name__
        raise ConfigError(f"{file} is damaged, or is no {what}: {reason}") from error


def images(x: Bytes, y: Integers, files: tuple[Path | str, Path | str], part: int, facts: Facts) -> Images:
    """Check that images and labels fit each other and the known facts."""
    x_file, y_file = map(str, files)
    if x.dtype != np.uint8 or x.shape[1:] != facts.shape:
        found = f"samples of {_by(x.shape[1:])}" if x.ndim > 1 else "single numbers"
        raise ConfigError(f"{x_file} holds {found} of {x.dtype}, expected images of {_by(facts.shape)} in uint8")
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


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def check_original(file: str, raw: bytes, count: int, whole: int, facts: Facts) -> None:
    """Refuse a file with the original's number of images but another digest, if the original's is known."""
    known = facts.files.get(Path(file).name)
    if known and count == whole and hashlib.md5(raw, usedforsecurity=False).hexdigest() != known:
        raise ConfigError(f"{file} is altered: the MD5 of the original file is {known}")


PIECE = 2**20
"""Bytes that are expanded at once."""


class Stream(Protocol):
    """Something to read bytes from."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        ...


def file_bytes(path: Path, room: int) -> bytes:
    """Return the bytes of a file of at most ``room`` bytes."""
    check_room(path.stat().st_size, room)
    return path.read_bytes()


def member_bytes(archive: ZipFile, name: str, room: int) -> bytes:
    """Return a member of a zip archive, to its end, where its checksum is verified."""
    check_room(archive.getinfo(name).file_size, room)
    with archive.open(name) as stream:
        return expanded(stream, room)


def expanded(stream: Stream, room: int) -> bytes:
    """Return all bytes of a stream. Raise ``ValueError`` if there are more than ``room``."""
    limited, pieces = Limited(stream, room), list[bytes]()
    while piece := limited.read(PIECE):
        pieces.append(piece)
    return b"".join(pieces)


class Limited:
    """A stream that raises ``ValueError`` when more than ``room`` bytes are read from it."""

    def __init__(self, stream: Stream, room: int) -> None:
        self._stream, self._room, self._left = stream, room, room

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes."""
        piece = self._stream.read(min(size, PIECE))
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError(f"it expands to more than {self._room:,} bytes, more than the set has")
        return piece


def inflated(data: bytes, room: int) -> bytes:
    """Return what a zlib stream expands to, to its end, where its checksum is verified.

    Raises ``ValueError`` if that is more than ``room`` bytes, or if the stream is cut short.
    """
    engine, pieces, size = zlib.decompressobj(), list[bytes](), 0
    while not engine.eof:
        pieces.append(engine.decompress(data, PIECE))
        data, size = engine.unconsumed_tail, size + len(pieces[-1])
        check_room(size, room)
        if not (data or pieces[-1]):
            raise ValueError("a compressed stream is cut short")
    return b"".join(pieces)


def check_room(size: int, room: int) -> None:
    """Raise ``ValueError`` for a size of more than ``room`` bytes."""
    if size > room:
        raise ValueError(f"it holds {size:,} bytes, more than the {room:,} of the set")


UINT8 = 0x08


def read_idx(paths: Sequence[Path], facts: Facts, *, transposed: bool = False) -> tuple[Images, Images]:
    """Read training and test set from four files: training images and labels, test images and labels."""
    raws = []
    for path in paths:
        with reading(path, "idx file"):
            raws.append(file_bytes(path, facts.room))
    return _idx_sets([str(path) for path in paths], raws, facts, transposed)


def read_idx_zip(paths: Sequence[Path], facts: Facts, *, members: Sequence[str]) -> tuple[Images, Images]:
    """Read the four files from an archive, as EMNIST has it."""
    (path,) = paths
    with reading(path, "zip archive"), zipfile.ZipFile(path) as archive:
        raws = [member_bytes(archive, member, facts.room) for member in members]
    return _idx_sets([f"{path}, {member}" for member in members], raws, facts, True)


def _idx_sets(files: Sequence[str], raws: Sequence[bytes], facts: Facts, transposed: bool) -> tuple[Images, Images]:
    found = []
    for part, at in enumerate((0, 2)):
        x, y = parse_idx(raws[at], files[at], 3, facts.room), parse_idx(raws[at + 1], files[at + 1], 1, facts.room)
        x = x.swapaxes(1, 2) if transposed else x
        found.append(images(x[:, None], y, (files[at], files[at + 1]), part, facts))
    return found[0], found[1]


def parse_idx(raw: bytes, file: str, dims: int, room: int) -> Bytes:
    """Parse an idx file with an array of ``dims`` dimensions, to the last byte; it has at most ``room`` bytes."""
    with reading(file, "idx file"):
        if raw[:2] == b"\x1f\x8b":
            raw = expanded(gzip.GzipFile(fileobj=io.BytesIO(raw)), room)
    if len(raw) < 4 + 4 * dims or raw[:3] != bytes((0, 0, UINT8)):
        raise ConfigError(f"{file} is no idx file: it begins with {raw[:4].hex(' ') or 'nothing'}")
    if raw[3] != dims:
        swapped = "labels where images should be" if dims == 3 else "images where labels should be"
        raise ConfigError(f"{file} holds {raw[3]} dimensions, expected {dims}: {swapped}")
    shape = np.frombuffer(raw, ">u4", dims, offset=4).astype(np.int64)
    expected, size = 4 + 4 * dims + int(np.prod(shape.astype(object))), len(raw)
    if size != expected:
        state = "cut short" if size < expected else "too long"
        raise ConfigError(f"{file} is {state}: {size:,} bytes, expected {expected:,} by its own header")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


NAMES = ("x_train", "y_train", "x_test", "y_test")


def read_npz(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read training and test set from one archive."""
    (path,) = paths
    arrays = []
    with reading(path, "npz archive"), zipfile.ZipFile(path) as archive:
        present = set(archive.namelist())
        missing = [name for name in NAMES if f"{name}.npy" not in present]
        if missing:
            raise ConfigError(f"{path} lacks {', '.join(missing)}: it must hold {', '.join(NAMES)}")
        # Not with numpy.load: zipfile verifies a member's checksum only when it is read to its end.
        arrays = [npy_array(member_bytes(archive, f"{name}.npy", facts.room)) for name in NAMES]
    found = []
    for part, at in enumerate((0, 2)):
        x, y = arrays[at : at + 2]
        x = np.moveaxis(x, -1, 1) if x.ndim == 4 else x[:, None] if x.ndim == 3 else x
        x_file, y_file = (f"{path}, {name}," for name in NAMES[at : at + 2])
        found.append(images(x, y, (x_file, y_file), part, facts))
    return found[0], found[1]


def npy_array(raw: bytes) -> Bytes:
    """Return the array of a file of NumPy; raise ``ValueError`` if its header does not fit the number of bytes."""
    file = io.BytesIO(raw)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise ValueError(f"an array has version {version[0]}.{version[1]} of NumPy's format")
    shape, _, dtype = readers[version](file)
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and expected != len(raw):  # before the array is made
        raise ValueError(f"an array has {len(raw):,} bytes, its header says {expected:,}")
    file.seek(0)
    array: Bytes = np.lib.format.read_array(file, allow_pickle=False)
    return array


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


def read_mat(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read training and test set from two files."""
    train, test = (_mat_images(path, part, facts) for part, path in enumerate(paths))
    return train, test


def _mat_images(path: Path, part: int, facts: Facts) -> Images:
    with reading(path, "MATLAB file"):
        raw = file_bytes(path, facts.room)
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
            expanded = inflated(bytes(element.data), room)
            room -= len(expanded)
            element = next(_elements(memoryview(expanded), order, aligned=False), element)
        if element.kind == MATRIX:
            inside = list(_elements(element.data, order, aligned=True))
            if len(inside) < 4 or NUMBERS.get(inside[1].kind) != "i4" or len(inside[1].data) > 4 * FEW:
                raise ValueError("a variable has no dimensions, name or values")
            shape = tuple(int(size) for size in np.frombuffer(inside[1].data, f"{order}i4"))
            name, values = bytes(inside[2].data).decode("latin-1"), inside[3]
            if name not in names:
                continue
            if values.kind not in NUMBERS or min(shape, default=-1) < 0:
                raise ValueError("a variable is no array of numbers")
            array = np.frombuffer(values.data, np.dtype(f"{order}{NUMBERS[values.kind]}"))
            if len(array) != math.prod(shape):
                raise ValueError(f"a variable has {len(array):,} numbers, its dimensions say {math.prod(shape):,}")
            found[name] = array.reshape(shape, order="F")  # numbers are stored column by column
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
