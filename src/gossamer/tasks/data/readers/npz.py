"""NumPy archives with x_train, y_train, x_test and y_test; images [n, height, width] or with channels last."""

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.core.errors import ConfigError
from gossamer.tasks.data.readers import expand
from gossamer.tasks.data.readers.base import Bytes, Facts, Images, images, reading

NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read training and test set from one archive."""
    (path,) = paths
    arrays = []
    with reading(path, "npz archive"), zipfile.ZipFile(path) as archive:
        present = set(archive.namelist())
        missing = [name for name in NAMES if f"{name}.npy" not in present]
        if missing:
            raise ConfigError(f"{path} lacks {', '.join(missing)}: it must hold {', '.join(NAMES)}")
        # Not with numpy.load: zipfile verifies a member's checksum only when it is read to its end.
        arrays = [_array(expand.member(archive, f"{name}.npy", facts.room)) for name in NAMES]
    train, test = (_part(path, arrays[at : at + 2], at // 2, facts) for at in (0, 2))
    return train, test


def _array(raw: bytes) -> Bytes:
    file = io.BytesIO(raw)
    _check_header(file, len(raw))
    array: Bytes = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _check_header(file: io.BytesIO, size: int) -> None:
    """Raise ``ValueError`` if the header of an array does not fit the number of bytes, before the array is made."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise ValueError(f"an array has version {version[0]}.{version[1]} of NumPy's format")
    shape, _, dtype = readers[version](file)
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and expected != size:
        raise ValueError(f"an array has {size:,} bytes, its header says {expected:,}")
    file.seek(0)


def _part(path: Path, arrays: Sequence[Bytes], part: int, facts: Facts) -> Images:
    x, y = arrays
    x = np.moveaxis(x, -1, 1) if x.ndim == 4 else x[:, None] if x.ndim == 3 else x
    x_file, y_file = (f"{path}, {name}," for name in NAMES[2 * part : 2 * part + 2])
    return images(x, y, (x_file, y_file), part, facts)
