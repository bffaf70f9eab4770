"""Text as samples: 80 characters and the next one, or sequences of characters and the next one at each position.

Characters are numbered by LEAF's alphabet of 80; all others count as spaces. Sample i of a text predicts character
80 + i from the 80 before it. Sequence i of length n predicts the characters i n + 1 to i n + n. Samples are split in
time: the first four fifths of a role are training samples, the rest test samples. So no test target is a training
target, but the first test samples contain the end of the training text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gossamer.core import files
from gossamer.core.errors import ConfigError
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.readers.base import reading
from gossamer.tasks.data.readers.leaf import OwnedSamples

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CONTEXT = 80
TEST_PART = 5

_NUMBER = np.full(128, ALPHABET.index(" "), dtype=np.int64)
_NUMBER[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))


def encode(text: str) -> Index:
    """Return the characters' indices in the alphabet.

    >>> encode("A é").tolist() == [ALPHABET.index("A"), 1, 1]
    True
    """
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    number: Index = _NUMBER[np.where(codes < len(_NUMBER), codes, ord(" "))]
    return number


def from_leaf(x: list[Any], y: list[Any]) -> tuple[Index, Index]:
    """Convert LEAF's samples: strings of 80 characters, and strings of one."""
    if any(len(context) != CONTEXT for context in x) or any(len(following) != 1 for following in y):
        raise ValueError(f"a sample must have {CONTEXT} characters, and one that follows")
    return encode("".join(x)).reshape(-1, CONTEXT), encode("".join(y))


def windows(text: str, stride: int) -> tuple[Index, Index]:
    """Return every ``stride``-th sample of a text."""
    codes = encode(text)
    return sliding_window_view(codes, CONTEXT)[:-1:stride], codes[CONTEXT::stride]


def sequences(text: str, length: int) -> tuple[Index, Index]:
    """Return the sequences of a text, one after the other, and the next character of each position.

    >>> x, y = sequences("to be or not", 5)
    >>> "".join(ALPHABET[i] for i in x[1]), "".join(ALPHABET[i] for i in y[1])
    (' or n', 'or no')
    """
    codes = encode(text)
    rows = max(0, len(codes) - 1) // length
    x, y = (codes[at:][: rows * length].reshape(rows, length) for at in (0, 1))
    return x, y


def read_texts(path: Path) -> dict[str, str]:
    """Read the text of each role, in the order of names, from ``{"roles": {name: [speech, ...]}}``."""
    return dict(sorted(read_in_order(path).items()))


def read_in_order(path: Path) -> dict[str, str]:
    """Read the same texts, in the order of the file."""
    with reading(path, "file of roles"):
        roles = files.parse_json(path.read_bytes())["roles"]
        return {name: _speech(roles[name]) for name in roles}


def read_roles(paths: Sequence[Path], stride: int) -> tuple[OwnedSamples, OwnedSamples]:
    """Read training and test samples from a file of roles; skip roles that are too short."""
    (path,) = paths
    samples = [windows(text, stride) for text in read_texts(path).values() if len(text) > CONTEXT]
    if not samples:
        raise ConfigError(f"{path} has no role with more than {CONTEXT} characters")
    return in_time(samples)


def in_time(samples: Sequence[tuple[Index, Index]]) -> tuple[OwnedSamples, OwnedSamples]:
    """Return the first four fifths of each owner's samples, and the rest."""
    cuts = [len(y) - len(y) // TEST_PART for _, y in samples]
    train = [(x[:cut], y[:cut]) for (x, y), cut in zip(samples, cuts, strict=True)]
    test = [(x[cut:], y[cut:]) for (x, y), cut in zip(samples, cuts, strict=True)]
    return _joined(train), _joined(test)


def _speech(speeches: list[str]) -> str:
    if not isinstance(speeches, list):
        raise ValueError("a role must be a list of speeches")
    return "\n".join(speech for speech in speeches if speech)


def _joined(samples: list[tuple[Index, Index]]) -> OwnedSamples:
    owner = np.repeat(np.arange(len(samples)), [len(y) for _, y in samples])
    return OwnedSamples(np.concatenate([x for x, _ in samples]), np.concatenate([y for _, y in samples]), owner)
