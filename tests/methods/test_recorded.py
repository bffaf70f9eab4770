"""Messages, states and metrics of every method equal the recorded ones, bit for bit.

Names may have changed since: ``recorded/names.json`` maps recorded names to current ones. Labels that are folded
into keys are part of the format: if one changes, so do the digests.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from helpers.paths import TESTS

HERE = TESTS
RECORD = HERE / f"recorded/torch-{torch.__version__.partition('+')[0]}.json"
NAMES: dict[str, dict[str, str]] = json.loads((HERE / "recorded/names.json").read_text())
ROOM = 16
"""Bytes that a message may have grown by, for header and sections."""

Rounds = list[dict[str, Any]]


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rounds]:
    if not RECORD.exists():
        pytest.skip(f"nothing was recorded with torch {torch.__version__}: other releases may round otherwise")
    file = tmp_path_factory.mktemp("recorded") / "now.json"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}  # torch reads it as it is imported
    subprocess.run([sys.executable, str(HERE / "helpers/recorder.py"), str(file)], check=True, env=environment)
    found: dict[str, Rounds] = json.loads(file.read_text())
    return found


def recorded() -> dict[str, Rounds]:
    found: dict[str, Rounds] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found


def renamed(kind: str, digests: dict[str, str]) -> dict[str, str]:
    """Digests by the names that things have now: the longest beginning of an old name that was changed counts."""
    found = {}
    for name, digest in digests.items():
        old = max((old for old in NAMES[kind] if name.startswith(old)), key=len, default="")
        found[NAMES[kind].get(old, "") + name.removeprefix(old)] = digest
    return found


@pytest.mark.parametrize("case", recorded() or ["nothing recorded"])
def test_bits_are_as_they_were(current: dict[str, Rounds], case: str) -> None:
    assert len(current[case]) == len(recorded()[case])
    for new, old in zip(current[case], recorded()[case], strict=True):
        assert new["messages"].keys() == old["messages"].keys()
        for which, (length, digests) in old["messages"].items():
            assert new["messages"][which][1] == renamed("messages", digests), which
            assert new["messages"][which][0] <= length + ROOM, which
        assert new["server"] == renamed("server", old["server"])
        for store in ("clients", "models"):
            assert new[store] == {client: renamed("clients", leaves) for client, leaves in old[store].items()}, store
        assert new["metrics"] == old["metrics"]
