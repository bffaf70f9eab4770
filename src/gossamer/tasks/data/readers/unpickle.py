"""CIFAR's python batches are pickles, and a pickle can run anything: here nothing is run.

A batch is a dictionary of byte strings, lists, numbers and one NumPy array. The three names that an array's pickle
calls for are given stand-ins that only keep what they are told; NumPy itself takes no part until the bytes of the
array have been checked. Any other name is refused.
"""

import io
import pickle
from typing import Any, NoReturn

import numpy as np

from gossamer.tasks.data.readers.base import Bytes

ADMITTED = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype")


class _Type:
    """Stands in for ``numpy.dtype('u1')``; its flags mean nothing for single bytes."""

    __slots__ = ("code",)

    def __init__(self, code: Any) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands in for an array, and takes its state: version, shape, type, order and bytes."""

    __slots__ = ("state",)

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Name:
    """Stands in for one of the three names; calling it makes a stand-in."""

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
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which has no place in a batch of images")
        return _Name(f"{module}.{name}")


def batch(raw: bytes) -> dict[bytes, Any]:
    """What the pickle of a CIFAR batch holds, by name; the array is still to be had from ``array``."""
    file = io.BytesIO(raw)
    found = _Unpickler(file, encoding="bytes").load()
    if not isinstance(found, dict):
        raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dictionary")
    if file.read(1):
        raise pickle.UnpicklingError("its end is followed by other bytes")
    return found


def array(kept: object) -> Bytes:
    """The array of bytes that a stand-in was told of."""
    if not isinstance(kept, _Array):
        raise pickle.UnpicklingError("its data is no array")
    _, shape, kind, columns_first, raw = kept.state
    if not isinstance(kind, _Type) or kind.code not in (b"u1", "u1") or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("its data is no array of bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns_first else "C")
