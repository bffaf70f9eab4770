"""Property tests draw the same examples every time; no test watches the clock or asks the internet for anything."""

import importlib
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from gossamer.tasks.data import locate as places

settings.register_profile("gossamer", deadline=None, derandomize=True)
settings.load_profile("gossamer")
torch.set_num_threads(1)  # tests run side by side, one core each


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cells of reproductions at all; whoever asks for it has found these scripts."""
    cells = importlib.import_module("cells")
    monkeypatch.setattr(cells, "CELLS", tmp_path / "cells")
    monkeypatch.setattr(cells, "UNDER_WAY", tmp_path / "runs")
    (tmp_path / "cells").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "fetch", lambda folder, remotes: "not downloaded")
    monkeypatch.delenv(places.VARIABLE, raising=False)
