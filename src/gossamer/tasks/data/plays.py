"""Shakespeare as sequences of characters: five plays to pretrain on, and the roles of four others to fine-tune on.

The file of roles of tinyshakespeare (https://github.com/karpathy/char-rnn) lists roles in the order of their first
words. This order shows the plays: Coriolanus, Richard III, Richard II, Romeo and Juliet and Henry VI, then The Winter's
Tale, Measure for Measure, The Taming of the Shrew and The Tempest, some of them incomplete. So a model is pretrained on
tragedies and histories, and fine-tuned on comedies and romances, whose roles are the clients. Every role is in one part
alone: that of the play in which it first speaks. Roles such as "Messenger" that speak in many plays are in the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.tasks.data import text
from gossamer.tasks.data.locate import FileLayout, find, folder
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.readers.leaf import OwnedSamples
from gossamer.tasks.data.samples import Data, Samples

Reader = Callable[[Sequence[Path]], dict[str, str]]
Both = tuple[dict[str, str], dict[str, str]]

FIRST = "ARCHIDAMUS"
"""The role that opens The Winter's Tale, the first play of the second part."""

SMALLEST = 960
"""The number of characters of a client's role, at least: 15 sequences of 64."""

FILES: FileLayout[Reader] = FileLayout(
    (("tinyshakespeare_roles.json", "shakespeare_roles.json"),),
    (".", "shakespeare"),
    lambda paths: text.read_in_order(paths[0]),
)


def parts(roles: Mapping[str, str]) -> Both:
    """Return the roles of the first five plays, and those of the others."""
    if FIRST not in roles:
        raise ConfigError(
            f"the file of roles has no {FIRST}, who opens The Winter's Tale: take that of tinyshakespeare, "
            "with its roles in the order of their first words"
        )
    before = set(takewhile(lambda name: name != FIRST, roles))
    return {name: roles[name] for name in before}, {name: roles[name] for name in roles if name not in before}


def _parts(data_dir: Path | None, name: str) -> Both:
    found = find(name, folder(data_dir), [FILES])
    return parts(found.read(found.paths))


def _cut(roles: Mapping[str, str], length: int, least: int) -> list[tuple[Index, Index]]:
    """Return the sequences of each role, in the order of names; skip roles with fewer than ``least``."""
    cut = [text.sequences(roles[name], length) for name in sorted(roles)]
    kept = [(x, y) for x, y in cut if len(y) >= least]
    require((bool(kept), f"length: no role has {least} sequences of {length} characters: choose shorter ones"))
    return kept


def _data(name: str, cut: list[tuple[Index, Index]], split: str) -> Data:
    train, test = (_samples(part) for part in text.in_time(cut))
    return Data(name, train, test, classes=0, split=split, model="gpt", tokens=len(text.ALPHABET))


def _samples(part: OwnedSamples) -> Samples:
    return Samples(torch.from_numpy(part.x), torch.from_numpy(part.y), part.owner)


@dataclass(frozen=True)
class _Sequences(CheckedFields):
    length: int = 64

    def __post_init__(self) -> None:
        require((self.length >= 1, wrong(self, "length", "must be at least 1")))


@dataclass(frozen=True)
class ShakespearePretrain(_Sequences):
    """Sequences of characters from five plays of Shakespeare, to pretrain on; from a file of roles.

    Args:
        length: number of characters per sequence
    """

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load all roles with at least one sequence."""
        first, _ = _parts(data_dir, "shakespeare-pretrain")
        return _data("shakespeare-pretrain", _cut(first, self.length, 1), split="iid")


@dataclass(frozen=True)
class ShakespeareRoles(_Sequences):
    """Sequences of characters by role, from four other plays of Shakespeare, to fine-tune on; from a file of roles.

    Args:
        length: number of characters per sequence
    """

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the roles with enough text for training and test sequences."""
        _, others = _parts(data_dir, "shakespeare-roles")
        long = {name: spoken for name, spoken in others.items() if len(spoken) >= SMALLEST}
        return _data("shakespeare-roles", _cut(long, self.length, text.TEST_PART), split="natural")
