"""NumPy archives with x_train, y_train, x_test and y_test; images [n, height, width] or with channels last."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.core.errors import ConfigError
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
        arrays = [_array(archive.read(f"{name}.npy")) for name in NAMES]
    train, test = (_part(path, arrays[at : at + 2], at // 2, facts) for at in (0, 2))
    return train, test


def _array(raw: bytes) -> Bytes:
    file = io.BytesIO(raw)
    array: Bytes = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):
        raise ValueError("an array is followed by other bytes")
    return array


def _part(path: Path, arrays: Sequence[Bytes], part: int, facts: Facts) -> Images:
    x, y = arrays
    x = np.moveaxis(x, -1, 1) if x.ndim == 4 else x[:, None] if x.ndim == 3 else x
    x_file, y_file = (f"{path}, {name}," for name in NAMES[2 * part : 2 * part + 2])
    return images(x, y, (x_file, y_file), part, facts)
