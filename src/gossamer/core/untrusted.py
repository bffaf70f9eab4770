"""Checks of what other machines send, before any of it is used: arrays, values, numbers of samples and text.

A codec checks what it reads. The checks here are those that no codec can make: an array that nobody reads, and values
that are finite, but so large that a sum of them is not. They come before an update is folded, so that a refused message
leaves the accumulator as it was.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload

LARGEST = 2.0**50
"""The largest magnitude of a number in an upload.

The sum over 2**16 clients with 2**40 samples each, of vectors that a codec scales up by 2**20, is below 2**126: it does
not overflow in float32. No training that converges comes near it.
"""

TOO_LARGE = "which are far too large"
"""The end of the reason for a refusal."""

MOST_SAMPLES = 2**40
"""The largest number of samples of a client."""

LONGEST = 200
"""The maximum number of characters of a text from another machine."""


def shown(text: str, longest: int = LONGEST) -> str:
    r"""Return a text from another machine for a record or a log: characters that do not print are escaped.

    >>> print(shown("no\x1b[2J data\n"))
    no\x1b[2J data\n
    >>> print(shown("x" * 300, 10))
    xxxxxxx...
    """
    cut = text[: longest + 1]  # an escape is longer than its character, so that this is enough
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return plain if len(plain) <= longest else plain[: longest - 3] + "..."


def check_samples(samples: float) -> None:
    """Raise ``PayloadError`` for a number of samples that no client has."""
    if not (samples > 0 and samples == int(samples)):
        raise PayloadError(f"the number of samples must be a positive whole number, got {samples}")
    if samples > MOST_SAMPLES:
        raise PayloadError(f"the number of samples must be at most {MOST_SAMPLES:,}, got {samples:g}")


def largest(tensors: Iterable[Tensor]) -> float:
    """Return the largest magnitude of floating-point tensors: 0 without entries, NaN if there is one."""
    ends = [torch.stack(torch.aminmax(t)).double() for t in tensors if t.is_floating_point() and t.numel()]
    return float(torch.stack(ends).abs().max()) if ends else 0.0


def check_values(arrays: Mapping[str, Tensor]) -> None:
    """Raise ``PayloadError`` for a finite value above ``LARGEST``. Codecs refuse values that are not finite."""
    if largest(arrays.values()) <= LARGEST:
        return
    for name, array in arrays.items():
        if LARGEST < largest([array]) < math.inf:
            raise PayloadError(f"{name!r} holds values above {LARGEST:.3g}, {TOO_LARGE}")


class ReadArrays(Payload):
    """A payload that notes which of its arrays are read, so that those that nobody reads can be refused."""

    def __init__(self, arrays: Mapping[str, Tensor], read: set[str] | None = None, prefix: str = "") -> None:
        super().__init__(arrays)
        self._read, self._prefix = set[str]() if read is None else read, prefix

    def __getitem__(self, name: str) -> Tensor:
        """Return an array, and note it."""
        self._read.add(self._prefix + name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an array, if it is there, and note it."""
        self._read.add(self._prefix + name)
        return super().get(name, default)

    def items(self) -> Any:
        """Return all arrays with their names, and note all."""
        self._read.update(self._prefix + name for name in self)
        return super().items()

    def values(self) -> Any:
        """Return all arrays, and note all."""
        self._read.update(self._prefix + name for name in self)
        return super().values()

    def under(self, prefix: str, names: Iterable[str]) -> "ReadArrays":
        """Return the arrays with these names, without their prefix. What is read there is noted here."""
        named = {name.removeprefix(prefix): super(ReadArrays, self).__getitem__(name) for name in names}
        return ReadArrays(named, self._read, self._prefix + prefix)

    def check(self) -> None:
        """Raise ``PayloadError`` if an array was not read."""
        check_names(self, self._read)


def under(payload: Payload, prefix: str, names: Iterable[str]) -> Payload:
    """Return the arrays with these names, without their prefix."""
    if isinstance(payload, ReadArrays):
        return payload.under(prefix, names)
    return {name.removeprefix(prefix): payload[name] for name in names}


def check_names(payload: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``PayloadError`` if a payload has an array of another name."""
    if unknown := set(payload) - set(known):
        raise PayloadError(f"unexpected array {min(unknown)!r}")


def check_single(payload: Mapping[str, Tensor]) -> None:
    """Raise ``PayloadError`` if an array has not one dimension: where only one message can be, not those of a group."""
    for name, array in payload.items():
        if array.dim() != 1:
            raise PayloadError(f"{name!r} holds {array.numel():,} values in {array.dim()} dimensions, expected one")
