"""SVHN's cropped digits: MATLAB files with X [32, 32, 3, n] and y [n, 1], where label 10 stands for the digit 0."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.core.errors import ConfigError
from gossamer.core.extras import need
from gossamer.tasks.data.readers.base import Facts, Images, check_original, images, reading


def read(paths: Sequence[Path], facts: Facts) -> tuple[Images, Images]:
    """Read training and test set from two files."""
    train, test = (_part(path, part, facts) for part, path in enumerate(paths))
    return train, test


def _part(path: Path, part: int, facts: Facts) -> Images:
    need("scipy")
    import scipy.io

    with reading(path, "MATLAB file"):
        raw = path.read_bytes()
        found = scipy.io.loadmat(io.BytesIO(raw), variable_names=["X", "y"])
    if "X" not in found or "y" not in found:
        raise ConfigError(f"{path} is truncated or belongs to another set: it must hold X and y")
    x, y = found["X"], found["y"]
    if x.ndim != 4 or y.ndim != 2 or y.shape[1] != 1 or y.dtype.kind not in "iu":
        raise ConfigError(f"{path} holds X of shape {x.shape} and y of shape {y.shape} and type {y.dtype}")
    part_read = images(x.transpose(3, 2, 0, 1), y[:, 0], (path, path), part, facts)
    check_original(str(path), raw, len(y), facts.counts[part], facts)
    return part_read._replace(y=(part_read.y + facts.first) % np.int64(facts.classes))
