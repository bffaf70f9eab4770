"""A fixture of the tests of views."""

import os
from typing import Any

import pytest


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs through a Flower grid in this process, without waiting."""
    pytest.importorskip("flwr")
    from gossamer.engines.flower import fleet
    from helpers import flower_runs

    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(fleet, "POLL", 0.001)
    return flower_runs
