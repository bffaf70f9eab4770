"""Messages, states and metrics of every method equal the recorded ones, bit for bit.

Labels that are folded into keys are part of the format: if one changes, so do the digests.
"""

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from helpers.paths import TESTS
from helpers.recorder import ROOTS

RECORD = TESTS / f"recorded/torch-{torch.__version__.partition('+')[0]}.json"
ANY_CPU = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""Variables that torch and MKL read as they are loaded; with them all CPUs round alike."""

WITH_ROOTS = {"fedpm", "klms", "fedrolex", "heterofl"}
"""Cases that take square roots, in Adam or for a norm."""

Rounds = list[dict[str, Any]]


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rounds]:
    if not RECORD.exists():
        pytest.skip(f"nothing was recorded with torch {torch.__version__}: other releases may round otherwise")
    file = tmp_path_factory.mktemp("recorded") / "now.json"
    command = [sys.executable, str(TESTS / "helpers/recorder.py"), str(file)]
    subprocess.run(command, check=True, env={**os.environ, **ANY_CPU})
    found: dict[str, Rounds] = json.loads(file.read_text())
    return found


def recorded() -> dict[str, Rounds]:
    found: dict[str, Rounds] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found


@pytest.mark.parametrize("case", [case for case in recorded() if case != ROOTS] or ["nothing recorded"])
def test_bits_are_as_they_were(current: dict[str, Rounds], case: str) -> None:
    if case in WITH_ROOTS and current[ROOTS] != recorded()[ROOTS]:
        pytest.skip("this CPU rounds square roots otherwise than the one of the record")
    assert len(current[case]) == len(recorded()[case])
    for new, old in zip(current[case], recorded()[case], strict=True):
        for what in ("messages", "server", "clients", "models"):
            assert new[what] == old[what], what
        assert numbers(new["metrics"]) == pytest.approx(numbers(old["metrics"]), rel=1e-12, nan_ok=True)


def numbers(metrics: dict[str, float | None]) -> list[float]:
    """All metrics, in the order of names; NumPy adds in an order that depends on the CPU."""
    return [math.nan if (value := metrics[name]) is None else value for name in sorted(metrics)]
