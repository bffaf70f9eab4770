"""The campaign of kills tries every method with client memory, and finds bytes that differ."""

import random
from collections import Counter

import pytest

from fuzz import kills


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_method_with_memory_is_killed() -> None:
    assert set(kills.with_memory()) == set(kills.MEMORY)


def test_a_run_that_ends_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"files": {"run.json": b"honest"}, "records": []}
    found = {"files": {"run.json": b"other"}, "records": []}

    class Ended:
        exitcode = 0

        def join(self, seconds: float | None = None) -> None:
            pass

    monkeypatch.setattr(kills, "whole", lambda name, executor: (expected, 1.0))
    monkeypatch.setattr(kills, "started", lambda name, executor, out: Ended())
    monkeypatch.setattr(kills, "contents", lambda out: found)
    with pytest.raises(AssertionError, match=r"other bytes: run.json"):
        kills.group(0)(random.Random(0), Counter())
