"""The benchmark of the virtual clock runs at a small size. Times are not checked."""

import importlib

import pytest

from helpers.paths import ROOT
from helpers.tasks import batch_norm_task


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    script = importlib.import_module("virtual_time")
    assert min(script.overhead(1, 1, 1, batch_norm_task(10))) > 0
    found, tasks, spent = script.events(0.1)
    assert found > 2 * tasks > 0
    assert spent >= 0.1
