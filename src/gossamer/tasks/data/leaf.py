"""Data sets with natural owners: FEMNIST and Shakespeare of LEAF (https://arxiv.org/abs/1812.01097), roles of plays.

**LEAF's files** are json: samples by user, in the folders ``train`` and ``test``, each with one or more files
``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``. The content of x and y
differs between data sets, so the caller converts them to arrays. The reader only checks that nothing is missing.

**Text as samples**: 80 characters and the next one, or sequences of characters and the next one at each position.
Characters are numbered by LEAF's alphabet of 80; all others count as spaces. Sample i of a text predicts character
80 + i from the 80 before it. Sequence i of length n predicts the characters i n + 1 to i n + n. Samples are split in
time: the first four fifths of a role are training samples, the rest test samples. So no test target is a training
target, but the first test samples contain the end of the training text.

**Shakespeare as sequences of characters**: five plays to pretrain on, and the roles of four others to fine-tune on. The
file of roles of tinyshakespeare (https://github.com/karpathy/char-rnn) lists roles in the order of their first words.
This order shows the plays: Coriolanus, Richard III, Richard II, Romeo and Juliet and Henry VI, then The Winter's Tale,
Measure for Measure, The Taming of the Shrew and The Tempest, some of them incomplete. So a model is pretrained on
tragedies and histories, and fine-tuned on comedies and romances, whose roles are the clients. Every role is in one part
alone: that of the play in which it first speaks. Roles such as "Messenger" that speak in many plays are in the first.
"""

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.files import parse_json
from gossamer.core.random import Key
from gossamer.tasks.data.locate import FileLayout, find, folder
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.readers import reading
from gossamer.tasks.data.samples import Data, Samples

Array = npt.NDArray[Any]
Convert = Callable[[list[Any], list[Any]], tuple[Array, Array]]


class OwnedSamples(NamedTuple):
    """Inputs and labels, with the owner of each sample."""

    x: Array
    y: Array
    owner: Index


def read_leaf(paths: Sequence[Path], convert: Convert) -> tuple[OwnedSamples, OwnedSamples]:
    """Read training and test set from the two folders. Owners are numbered by name, consistently in both."""
    found = [list(_users(path, convert)) for path in paths]
    names = sorted({user for users in found for user, _, _ in users})
    number = {name: at for at, name in enumerate(names)}
    for path, users in zip(paths, found, strict=True):
        if not any(len(y) for _, _, y in users):
            raise ConfigError(f"{path} holds no samples")
    train, test = (_numbered(users, number) for users in found)
    return train, test


def _users(inside: Path, convert: Convert) -> Iterator[tuple[str, Array, Array]]:
    files = sorted(inside.glob("*.json"))
    if not files:
        raise ConfigError(f"{inside} holds no .json file: put LEAF's there")
    seen: dict[str, Path] = {}
    for file in files:
        with reading(file, "json file of LEAF"):
            whole = parse_json(file.read_bytes())
            users, counts, data = whole["users"], whole["num_samples"], whole["user_data"]
            if len(users) != len(counts) or set(users) != set(data):
                numbers = f"names {len(users)} users, counts {len(counts)} and holds {len(data)}"
                raise ConfigError(f"{file} {numbers}: it is damaged")
            for user, count in zip(users, counts, strict=True):
                x, y = data[user]["x"], data[user]["y"]
                if len(x) != count or len(y) != count:
                    found = f"{len(x)} inputs and {len(y)} labels"
                    raise ConfigError(f"{file}: user {user} has {found}, expected {count}")
            for user in users:
                if user in seen:
                    raise ConfigError(f"{file} holds the user {user}, who is also in {seen[user]}")
                seen[user] = file
                yield user, *convert(data[user]["x"], data[user]["y"])


def _numbered(users: list[tuple[str, Array, Array]], number: dict[str, int]) -> OwnedSamples:
    held = [(number[user], x, y) for user, x, y in users if len(y)]
    owner = np.repeat([at for at, _, _ in held], [len(y) for _, _, y in held]).astype(np.int64)
    return OwnedSamples(np.concatenate([x for _, x, _ in held]), np.concatenate([y for _, _, y in held]), owner)


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
        roles = parse_json(path.read_bytes())["roles"]
        texts = {}
        for name in roles:
            if not isinstance(roles[name], list):
                raise ValueError("a role must be a list of speeches")
            texts[name] = "\n".join(speech for speech in roles[name] if speech)
        return texts


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
    return _owned(train), _owned(test)


def _owned(samples: list[tuple[Index, Index]]) -> OwnedSamples:
    owner = np.repeat(np.arange(len(samples)), [len(y) for _, y in samples])
    return OwnedSamples(np.concatenate([x for x, _ in samples]), np.concatenate([y for _, y in samples]), owner)


Reader = Callable[[Sequence[Path]], tuple[OwnedSamples, OwnedSamples]]

CHARACTERS = 62
SIDE = 28

ROLES = (("tinyshakespeare_roles.json", "shakespeare_roles.json"),), (".", "shakespeare")
"""The possible names and folders of the file of roles."""


def _leaf(name: str, convert: Convert) -> FileLayout[Reader]:
    """LEAF's two folders, under the set's name or in LEAF's own folder ``data``."""
    return FileLayout((("train/",), ("test/",)), (name, f"{name}/data"), partial(read_leaf, convert=convert))


def _load(name: str, data_dir: Path | None, layouts: Sequence[FileLayout[Reader]], classes: int, model: str) -> Data:
    found = find(name, folder(data_dir), layouts)
    train, test = (_samples(part) for part in found.read(found.paths))
    return Data(name, train, test, classes, split="natural", model=model)


def _samples(part: OwnedSamples) -> Samples:
    return Samples(torch.from_numpy(part.x), torch.from_numpy(part.y), part.owner)


def pixels(x: list[Any], y: list[Any]) -> tuple[npt.NDArray[np.float32], Index]:
    """Convert LEAF's images: 784 numbers in [0, 1], with 1 for white, and a label from 0 to 61."""
    image, label = np.array(x, dtype=np.float32).reshape(-1, SIDE * SIDE), np.array(y)
    if len(y) == 0:
        return image.reshape(-1, 1, SIDE, SIDE), label.astype(np.int64)
    if len(image) != len(y) or not (image >= 0).all() or not (image <= 1).all():
        raise ValueError(f"an image must be {SIDE * SIDE} numbers from 0 to 1")
    if label.ndim != 1 or label.dtype.kind != "i" or label.min() < 0 or label.max() >= CHARACTERS:
        raise ValueError(f"a label must be a whole number from 0 to {CHARACTERS - 1}")
    return image.reshape(-1, 1, SIDE, SIDE), label.astype(np.int64)


@dataclass(frozen=True)
class Femnist:
    """Handwritten digits and letters by writer, 28 x 28 pixels, 62 classes; from LEAF."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the set from LEAF's files."""
        return _load("femnist", data_dir, [_leaf("femnist", pixels)], CHARACTERS, model="cnn4")


@dataclass(frozen=True)
class Shakespeare:
    """Plays by role: 80 characters and the next one, 80 classes; from LEAF's files or a file of roles.

    Args:
        stride: number of characters between two samples, for a file of roles
    """

    stride: int = 1

    def __post_init__(self) -> None:
        require((self.stride >= 1, f"stride must be at least 1, got {self.stride}"))

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the set from its files."""
        roles: FileLayout[Reader] = FileLayout(*ROLES, partial(read_roles, stride=self.stride))
        layouts = [_leaf("shakespeare", from_leaf), roles]
        return _load("shakespeare", data_dir, layouts, len(ALPHABET), model="lstm")


Both = tuple[dict[str, str], dict[str, str]]

FIRST = "ARCHIDAMUS"
"""The role that opens The Winter's Tale, the first play of the second part."""

SMALLEST = 960
"""The number of characters of a client's role, at least: 15 sequences of 64."""


def parts(roles: Mapping[str, str]) -> Both:
    """Return the roles of the first five plays, and those of the others."""
    if FIRST not in roles:
        raise ConfigError(
            f"the file of roles has no {FIRST}, who opens The Winter's Tale: take that of tinyshakespeare, "
            "with its roles in the order of their first words"
        )
    before = set(takewhile(lambda name: name != FIRST, roles))
    return {name: roles[name] for name in before}, {name: roles[name] for name in roles if name not in before}


@dataclass(frozen=True)
class _Sequences(CheckedFields, ABC):
    length: int = 64

    def __post_init__(self) -> None:
        require((self.length >= 1, wrong(self, "length", "must be at least 1")))

    def _data(self, name: str, roles: Mapping[str, str], least: int, split: str) -> Data:
        """Return the sequences of each role, in the order of names; skip roles with fewer than ``least``."""
        cut = [sequences(roles[name], self.length) for name in sorted(roles)]
        kept = [(x, y) for x, y in cut if len(y) >= least]
        require((bool(kept), f"length: no role has {least} sequences of {self.length} characters: choose shorter ones"))
        train, test = (_samples(part) for part in in_time(kept))
        return Data(name, train, test, classes=0, split=split, model="gpt", tokens=len(ALPHABET))


def _plays(data_dir: Path | None, name: str) -> Both:
    found = find(name, folder(data_dir), [FileLayout(*ROLES, read_in_order)])
    return parts(found.read(found.paths[0]))


@dataclass(frozen=True)
class ShakespearePretrain(_Sequences):
    """Sequences of characters from five plays of Shakespeare, to pretrain on; from a file of roles.

    Args:
        length: number of characters per sequence
    """

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load all roles with at least one sequence."""
        first, _ = _plays(data_dir, "shakespeare-pretrain")
        return self._data("shakespeare-pretrain", first, 1, split="iid")


@dataclass(frozen=True)
class ShakespeareRoles(_Sequences):
    """Sequences of characters by role, from four other plays of Shakespeare, to fine-tune on; from a file of roles.

    Args:
        length: number of characters per sequence
    """

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the roles with enough text for training and test sequences."""
        _, others = _plays(data_dir, "shakespeare-roles")
        long = {name: spoken for name, spoken in others.items() if len(spoken) >= SMALLEST}
        return self._data("shakespeare-roles", long, TEST_PART, split="natural")
