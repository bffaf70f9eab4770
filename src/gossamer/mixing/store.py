"""Rows of numbers that are together larger than memory: read back a block of columns at a time."""

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class Rows:
    """Rows of one length and type, in the order in which they came: in memory, beyond the limit in a temporary file.

    size: how many numbers a row has
    dtype: of which type they are
    limit: bytes that are kept in memory
    """

    size: int
    dtype: npt.DTypeLike
    limit: int
    _near: list[Array] = field(default_factory=list)
    _far: int = 0  # how many are in the file, all of them after the near ones
    _file: Path | None = None

    def __len__(self) -> int:
        return len(self._near) + self._far

    def append(self, row: Array) -> None:
        """Keep one more row."""
        if not self._far and (len(self._near) + 1) * row.nbytes <= self.limit:
            self._near.append(row.copy())
        else:
            with self._place().open("ab") as file:
                row.tofile(file)
            self._far += 1

    def columns(self, start: int, stop: int) -> Array:
        """Some columns of all rows, as a new array."""
        found = np.empty((len(self), stop - start), dtype=self.dtype)
        for row, near in zip(found, self._near, strict=False):
            row[:] = near[start:stop]
        if self._far:
            far = np.memmap(self._place(), dtype=self.dtype, mode="r", shape=(self._far, self.size))
            found[len(self._near) :] = far[:, start:stop]
        return found

    def _place(self) -> Path:
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="gossamer-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = Path(folder) / "rows"
        return self._file
