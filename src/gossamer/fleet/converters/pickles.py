"""Pickles of plain containers and numbers. Nothing else is ever made, and no code of a pickle is called.

The operations of a pickle are listed before any is carried out, and only those of containers, texts and numbers are
allowed. Of names, only those of NumPy's numbers are, and they stand for objects of this module.
"""

import io
import pickle
import pickletools
import struct
from typing import Any

from gossamer.core.errors import ConfigError

LARGEST = 2**30
"""The largest size of a pickle in bytes."""

OPERATIONS = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "POP_MARK", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"),
        *("GET", "BINGET", "LONG_BINGET", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1"),
        *("TUPLE2", "TUPLE3", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "NONE", "NEWTRUE", "NEWFALSE", "INT"),
        *("BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
        *("SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    }
)
REMEMBERED = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
FORMATS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "i2": "<h", "i1": "<b", "u8": "<Q", "u4": "<I", "u2": "<H"}


class _Kind:
    """The data type of a NumPy number."""

    __slots__ = ("code",)

    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Refuse another byte order."""
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|"):
            raise ValueError("a number of NumPy in another byte order")


class _Function:
    """Stands for a function of a pickle. It has no state that a pickle could change."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise ValueError("an object that is no container or number")


class _Dtype(_Function):
    __slots__ = ()

    def __call__(self, code: object, *rest: object) -> _Kind:
        return _Kind(code)


class _Scalar(_Function):
    __slots__ = ()

    def __call__(self, kind: object, data: object) -> float:
        if not isinstance(kind, _Kind) or kind.code not in FORMATS or not isinstance(data, bytes | str):
            raise ValueError("a number of NumPy of an unknown type")
        raw = data.encode("latin1") if isinstance(data, str) else data
        number: float = struct.unpack(FORMATS[str(kind.code)], raw)[0]
        return number


class _Encode(_Function):
    __slots__ = ()

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("bytes in an unknown encoding")
        return text.encode("latin1")


NAMES: dict[tuple[str, str], _Function] = {
    ("numpy", "dtype"): _Dtype(),
    ("numpy.core.multiarray", "scalar"): _Scalar(),
    ("numpy._core.multiarray", "scalar"): _Scalar(),
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name, and refuse all but a few."""
        if (module, name) not in NAMES:
            raise ValueError(f"it names {module}.{name}")
        return NAMES[module, name]


def read_pickle(data: bytes) -> Any:
    """Return the containers and numbers of a pickle; raise ``ConfigError`` for anything else."""
    if len(data) > LARGEST:
        raise ConfigError(f"it has {len(data):,} bytes, more than the {LARGEST:,} that are read")
    try:
        _check(data)
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a damaged pickle fails in many ways
        cause = str(error) or type(error).__name__
        raise ConfigError(f"is not a pickle of containers and numbers alone: {cause}") from error


def _check(data: bytes) -> None:
    """Refuse operations that make other objects, and places in memory far beyond the number of operations."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        if operation.name not in OPERATIONS:
            raise ValueError(f"it has the operation {operation.name}")
        if operation.name in REMEMBERED and not 0 <= int(argument or 0) <= count:
            raise ValueError(f"it has more places in memory than operations: {argument}")
