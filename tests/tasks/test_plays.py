"""Sequences of Shakespeare: every role in one part, no target twice, and the sizes that the page states."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks.data import Data, leaf
from gossamer.tasks.data import load as load_data
from gossamer.tasks.data.locate import folder
from helpers.narrow import present

REAL = folder(None) / "tinyshakespeare_roles.json"


def written(path: Path) -> dict[str, str]:
    """Roles whose characters tell where they stand: two of the first part, three of the second."""
    lengths = {"Zeno": 1000, "Ann": 70, "ARCHIDAMUS": 970, "Brief": 900, "Mopsa": 1700}
    roles = {
        name: "".join(leaf.ALPHABET[(number * 7 + at * (number + 1)) % 80] for at in range(length))
        for number, (name, length) in enumerate(lengths.items())
    }
    listed = {name: [spoken] for name, spoken in roles.items()}
    (path / "shakespeare_roles.json").write_text(json.dumps({"roles": listed}))
    return roles


def load(name: str, path: Path) -> Data:
    return load_data(name, data_dir=path, key=key(0))


def joined(rows: torch.Tensor) -> str:
    return "".join(leaf.ALPHABET[i] for i in rows.flatten())


def test_each_role_is_cut_in_time_and_every_character_is_predicted_once(tmp_path: Path) -> None:
    roles = written(tmp_path)
    data = load("shakespeare-roles:length=50", tmp_path)
    assert (data.outputs, data.shape, data.classes) == (80, (50,), 0)
    for number, name in enumerate(("ARCHIDAMUS", "Mopsa")):
        train, test = (part.take(np.flatnonzero(present(part.group) == number)) for part in (data.train, data.test))
        rows = (len(roles[name]) - 1) // 50
        assert (len(train), len(test)) == (rows - rows // 5, rows // 5)
        assert joined(torch.cat([train.x, test.x])) == roles[name][: rows * 50]
        assert joined(torch.cat([train.y, test.y])) == roles[name][1 : rows * 50 + 1]
    assert set(present(data.train.group)) == {0, 1}, "a role of 900 characters is too short for a client"


def test_all_roles_of_the_first_plays_are_pretrained_on(tmp_path: Path) -> None:
    roles = written(tmp_path)
    data = load("shakespeare-pretrain", tmp_path)
    assert joined(data.train.x[present(data.train.group) == 0]) == roles["Ann"][:64], "in the order of names"
    assert len(data.train) + len(data.test) == 1 + 999 // 64
    assert data.split == "iid"


def test_other_files_and_lengths_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match="length must be at least 1, got 0"):
        load("shakespeare-roles:0", tmp_path)
    with pytest.raises(ConfigError, match="length: no role has 5 sequences of 400 characters: choose shorter ones"):
        load("shakespeare-roles:400", tmp_path)
    (tmp_path / "shakespeare_roles.json").write_text(json.dumps({"roles": {"HAMLET": ["To be"]}}))
    with pytest.raises(ConfigError, match="no ARCHIDAMUS, who opens The Winter's Tale"):
        load("shakespeare-roles", tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason="the file of roles is not there")
def test_the_real_file_has_the_sizes_of_the_page() -> None:
    first, others = leaf.parts(leaf.read_in_order(REAL))
    characters = [sum(map(len, part.values())) for part in (first, others)]
    assert (len(first), len(others), *characters) == (217, 92, 667_591, 359_962)
    assert {"ROMEO", "CORIOLANUS", "GLOUCESTER", "Messenger"} <= first.keys()
    assert {"PROSPERO", "KATHARINA", "ISABELLA", "LEONTES"} <= others.keys()
    pretrain, roles = (load(f"shakespeare-{name}", REAL.parent) for name in ("pretrain", "roles"))
    assert (len(pretrain.train), len(pretrain.test)) == (8_334, 1_991)
    assert (len(roles.train), len(roles.test), len(set(present(roles.train.group)))) == (4_341, 1_061, 50)
    assert set(present(roles.test.group)) == set(present(roles.train.group)), "every client has test sequences"
