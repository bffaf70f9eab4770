"""Property tests draw the same examples every time. No test has a time limit or downloads anything."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from gossamer.cli import trust
from gossamer.engines.executors import kept
from gossamer.tasks.data import locate

settings.register_profile("gossamer", deadline=None, derandomize=True)
settings.load_profile("gossamer")
torch.set_num_threads(1)  # tests run side by side, one core each


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reproductions without stored cells: results, pages and run folders are in the returned folder."""
    from reproduce.common import store

    monkeypatch.setattr(store, "PAGES", tmp_path)
    monkeypatch.setattr(store, "CELLS", tmp_path / "cells")
    monkeypatch.setattr(store, "RUNS", tmp_path / "runs")
    return tmp_path


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "fetch", lambda folder, remotes: "not downloaded")
    monkeypatch.delenv(locate.VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def own_programs(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that tests compile, and files that they trust, are not kept with those of the user."""
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path_factory.getbasetemp() / "config"))
