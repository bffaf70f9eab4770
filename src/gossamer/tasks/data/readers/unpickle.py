"""Read CIFAR's python batches, which are pickles, without executing code.

A batch is a dictionary of byte strings, lists, numbers and one NumPy array. An array's pickle refers to three names.
Here they are placeholders that only store their arguments. NumPy gets the array's bytes after they are checked. Any
other name is refused.
"""

import io
import pickle
import pickletools
from typing import Any, NoReturn

import numpy as np

from gossamer.tasks.data.readers.base import Bytes

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


def batch(raw: bytes) -> dict[bytes, Any]:
    """Return the content of a CIFAR batch by name; arrays are placeholders, for ``array``."""
    _check_numbers(raw)
    file = io.BytesIO(raw)
    found = _Unpickler(file, encoding="bytes").load()
    if not isinstance(found, dict):
        raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dictionary")
    if file.read(1):
        raise pickle.UnpicklingError("its end is followed by other bytes")
    return found


def _check_numbers(raw: bytes) -> None:
    """Refuse a pickle that numbers its objects beyond their count: pickle makes a table up to the largest number."""
    for count, (operation, number, _) in enumerate(pickletools.genops(raw)):
        if operation.name in NUMBERING and isinstance(number, int) and number > count:
            raise pickle.UnpicklingError(f"it numbers an object {number:,}, and has {count:,} before it")


def array(kept: object) -> Bytes:
    """Return the byte array of a placeholder."""
    if not isinstance(kept, _Array):
        raise pickle.UnpicklingError("its data is no array")
    _, shape, kind, columns_first, raw = kept.state
    if not isinstance(kind, _Type) or kind.code not in (b"u1", "u1") or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("its data is no array of bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns_first else "C")
