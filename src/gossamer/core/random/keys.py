"""Keys: all random numbers of a run follow from one seed, on every device, without state.

A **key** is two 64-bit words. The same key always gives the same numbers, so different purposes need different keys.
They are made by folding labels and integers into a key: ``fold(run, "noise", round, client)``.

Exact definition: ``fold(key, x)`` is the 16-byte BLAKE2b digest, with no BLAKE2b key, salt or person, of

    word a, word b      8 bytes each, little endian
    tag                 one byte: "s" for a string, "i" for an integer
    label               a string as UTF-8; an integer as two's complement, little endian, in bit_length // 8 + 1 bytes

read as two little-endian words. ``fold(key, x, y)`` is ``fold(fold(key, x), y)``, so the key of a round can be computed
once and folded further. Each digest covers one label, so ("ab", "c") and ("a", "bc") differ. ``key(seed)`` is the seed
folded into the key (0, 0).

The rows of a group of clients have a key each: ``Keys``. Whatever draws from a key draws from keys as well, a row of
numbers for each, with the bits of that key alone.

>>> run = key(7)
>>> keys = fold_each(run, "client", [3, 5])
>>> fold(keys, "noise")[1] == fold(run, "client", 5, "noise")
True
"""

import functools
import operator
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, PayloadError, require


class Key(NamedTuple):
    """The two 64-bit words of a Philox key. Make one with ``key`` and ``fold``."""

    a: int
    b: int


Label = str | int
Purpose = tuple[Label, ...]
"""The labels that are folded into a run's key, one after the other."""


class KeyRing(Key):
    """A run's key as far as one machine may know it: the keys of some purposes, and nothing of the others.

    ``fold`` takes it in place of the run's key. Keys are digests, so those of some purposes say nothing about others:

    >>> run = key(7)
    >>> ring = KeyRing({("round", 3, "client", 1): fold(run, "round", 3, "client", 1)})
    >>> fold(ring, "round", 3, "client", 1, "batches") == fold(run, "round", 3, "client", 1, "batches")
    True

    A ring itself has no words: to draw from it is an error.

    Args:
        granted: the known keys by purpose; every ring that is folded from this one sees later changes of it
        path: the purpose that this ring stands for
    """

    granted: dict[Purpose, Key]
    path: Purpose

    def __new__(cls, granted: dict[Purpose, Key], path: Purpose = ()) -> "KeyRing":
        """Return a key without words, so that none can be used by mistake."""
        made: KeyRing = tuple.__new__(cls)
        made.granted, made.path = granted, path
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and self.granted is other.granted and self.path == other.path

    def __hash__(self) -> int:
        return hash((id(self.granted), self.path))

    def __repr__(self) -> str:
        return f"KeyRing{self.path}"

    def child(self, label: Label) -> Key:
        """Return the key with one more label, or the ring of what is known below it."""
        path = (*self.path, label)
        if path in self.granted:
            return self.granted[path]
        if any(purpose[: len(path)] == path for purpose in self.granted):
            return KeyRing(self.granted, path)
        raise PayloadError(
            f"this machine was not given the key of {'/'.join(map(str, path))}: a part that draws from the run's key at"
            " clients must name its purpose, see purposes() of views"
        )


class Keys:
    """A key for each row of a group: ``keys[k]`` is the key of row ``k``.

    Labels are folded into the rows when the rows are first read. A codec that draws nothing thus folds nothing, and a
    thousand digests take a millisecond.

    Args:
        above: a key per row
        labels: a label per row that is folded into it; none by default
    """

    def __init__(self, above: Iterable[Key], labels: Sequence[Label] | None = None) -> None:
        self._above = above if isinstance(above, Keys) else tuple(above)
        self._labels = labels

    @functools.cached_property
    def _rows(self) -> tuple[Key, ...]:
        return tuple(self._above if self._labels is None else map(fold, self._above, self._labels))

    def __len__(self) -> int:
        return len(self._above)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    @overload
    def __getitem__(self, row: int) -> Key: ...
    @overload
    def __getitem__(self, row: slice) -> "Keys": ...
    def __getitem__(self, row: int | slice) -> "Key | Keys":
        """Return the key of one row, or the keys of some rows."""
        if not isinstance(row, slice):
            return self._rows[row]
        if "_rows" in vars(self):  # folded already
            return Keys(self._rows[row])
        return Keys(self._above[row], None if self._labels is None else self._labels[row])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return f"Keys({list(self._rows)})"


def key(seed: int) -> Key:
    """Return the key of a seed, which can be any integer."""
    return fold(Key(0, 0), seed)


def secret_key() -> Key:
    """Return a key from the operating system, which nobody can guess."""
    return Key(*struct.unpack("<QQ", os.urandom(16)))


@overload
def fold(key: Key, *labels: Label) -> Key: ...
@overload
def fold(key: Keys, *labels: Label) -> Keys: ...
def fold(key: Key | Keys, *labels: Label) -> Key | Keys:
    """Return a new key for the purpose named by the labels. ``fold(k, x, y) == fold(fold(k, x), y)``.

    Of the keys of rows, it returns each row's.
    """
    for label in labels:
        if isinstance(key, Keys):
            _encoded(label)  # a mistake is shown where it is made, and not where the rows are first read
            key = Keys(key, (label,) * len(key))
        else:
            key = key.child(label) if isinstance(key, KeyRing) else _folded(key, _encoded(label))
    return key


def fold_each(key: Key | Keys, label: Label, values: Iterable[Label]) -> Keys:
    """Return a key per row: ``fold(key, label, value)`` with a value of the row's own."""
    above, own = fold(key, label), tuple(values)
    rows = above if isinstance(above, Keys) else Keys((above,) * len(own))
    require((len(rows) == len(own), f"fold_each: {len(rows):,} keys need a value each, got {len(own):,}"))
    return Keys(rows, own)


@functools.lru_cache(maxsize=4096)
def _folded(key: Key, label: bytes) -> Key:
    """Fold one label into a key. Cached, because a round needs the key of a client several times."""
    digest = blake2b(struct.pack("<QQ", *key) + label, digest_size=16).digest()
    return Key(*struct.unpack("<QQ", digest))


def _encoded(label: Label) -> bytes:
    if isinstance(label, str):
        return b"s" + label.encode()
    try:
        number = operator.index(label)
    except TypeError:
        raise ConfigError(f"fold: a label must be a string or an integer, got {label!r}") from None
    return b"i" + number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def tensor(key: Key | Keys, device: torch.device | str = "cpu") -> Tensor:
    """Return a key as a tensor, for ``draws``: its two words as int64 with the same bits. Keys are ``[K, 2]``."""
    if isinstance(key, Keys):
        # Without the type, NumPy would convert words above 2**63 to floats.
        made = torch.from_numpy(np.array(list(key), dtype=np.uint64).reshape(-1, 2).view(np.int64))
        # A copy from pinned memory does not wait for what the GPU is doing.
        return (
            made.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else made.to(device)
        )
    return torch.tensor([signed(key.a), signed(key.b)], dtype=torch.int64, device=device)


def signed(word: int) -> int:
    """Return the int64 with the low 64 bits of ``word``."""
    return (word + 2**63) % 2**64 - 2**63
