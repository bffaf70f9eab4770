"""Damaged data files of every format.

    PYTHONPATH=tests python tests/fuzz/data_files.py [--full] [--seconds S] [--seed N]

Each file of a small set is damaged in turn: flipped bits, lost, added, repeated or foreign bytes, sizes in headers that
are far too large. The set is then refused with ``ConfigError`` and the name of the file, or it is read. What is read
from a format with checksums is what was there; from other formats it has valid labels and as many samples as labels.
"""

import random
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from fuzz import campaign
from gossamer.core.errors import ConfigError
from gossamer.tasks import data as gd
from helpers.small_files import COMPRESSED, FORMATS, files, load, same

EACH = 60
"""Damaged files per group."""


def damaged(raw: bytes, other: bytes, rng: random.Random) -> bytes:
    """Bytes with some damage."""
    made, at = bytearray(raw), rng.randrange(min(len(raw), 200) if rng.random() < 0.5 else len(raw))
    length = rng.choice((1, 2, 4, 16, 64))
    kind = rng.randrange(8)
    if kind == 0:
        made[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        made[at : at + length] = rng.randbytes(length)
    elif kind == 2:
        made[at : at + length] = rng.choice((b"\xff", b"\x00", b"\x7f")) * length
    elif kind == 3:
        del made[at : at + length]
    elif kind == 4:
        made[at:at] = rng.randbytes(length)
    elif kind == 5:
        made[at:at] = made[at : at + length] * rng.choice((1, 2, 1000))
    elif kind == 6:
        del made[at:]
    else:
        made[at:] = other[rng.randrange(len(other)) :]
    return bytes(made)


def check(form: str, before: gd.Data, after: gd.Data) -> None:
    """Check what was read from a damaged file."""
    if form in COMPRESSED:
        assert same(before, after), f"{form}: damage was not noticed"
    assert len(after.train) >= 1
    for old, new in ((before.train, after.train), (before.test, after.test)):
        assert new.y.shape[0] == len(new)
        assert new.y.dtype == old.y.dtype
        assert bool((new.y >= 0).all())


def check_named(path: Path, reason: str) -> None:
    """Check that a refusal names the damaged file, or its folder."""
    assert str(path) in reason or str(path.parent) in reason, f"{path} is not named: {reason}"


def group(number: int) -> campaign.Case:
    """Damage to the files of one format."""
    form = sorted(FORMATS)[number % len(FORMATS)]

    def attack(rng: random.Random, counts: Counter[str]) -> None:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            root = Path(folder)
            spec = FORMATS[form](root)
            before, there = load(spec, root), files(root)
            whole = {path: path.read_bytes() for path in there}
            for _ in range(EACH):
                path = rng.choice(there)
                path.write_bytes(damaged(whole[path], whole[rng.choice(there)], rng))
                try:
                    after = load(spec, root)
                except ConfigError as error:
                    check_named(path, str(error))
                    counts["refused"] += 1
                except Exception as error:
                    error.add_note(f"in a damaged {form}")
                    raise
                else:
                    check(form, before, after)
                    counts["read"] += 1
                path.write_bytes(whole[path])

    return attack


if __name__ == "__main__":
    campaign.main("data files", group, 10_000, room=300.0)
