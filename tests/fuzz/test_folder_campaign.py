"""The campaign of damaged run folders finds nothing in a small sample, and finds a promise that is broken."""

import random
import shutil
from collections import Counter

import pytest

from fuzz import folders
from gossamer.runs import records
from gossamer.runs.records import Lines, read_lines

NAME = "perm"
"""A run whose folder has files of every kind."""


def test_no_damaged_folder_breaks_a_promise() -> None:
    counts = Counter[str]()
    folders.group(sorted(folders.RUNS).index(NAME))(random.Random(2), counts)
    assert counts["refused"]
    assert counts.total() == folders.EACH > counts["refused"]


def test_an_edit_that_nobody_notices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here lines are read without a look at their digests, as before they had some."""
    made = folders.base(NAME)
    run = folders.home() / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(made.path, run)
    folders.edit_metrics(random.Random(1), run, run)

    def careless(data: bytes, start: str) -> Lines:
        honest = read_lines((made.path / "metrics.jsonl").read_bytes(), start)
        for record in honest.records:
            record["accuracy"] = 0.99
        return honest

    assert folders.look(made, run, "show RUN --json") == "refused"
    monkeypatch.setattr(records, "read_lines", careless)
    with pytest.raises(AssertionError, match="figures differ silently"):
        folders.look(made, run, "show RUN --json")
