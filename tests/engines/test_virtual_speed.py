"""The benchmark of the virtual clock runs at a small size. Times are not checked."""

import importlib

import pytest

from helpers.paths import ROOT


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    script = importlib.import_module("virtual_time")
    script.main(["--rounds", "1", "--repeats", "1", "--seconds", "0.1"])
    *synchronous, events = capsys.readouterr().out.splitlines()
    assert all("without a schedule" in line for line in synchronous)
    assert "per minute" in events


def test_events_are_counted_and_tasks_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    found, tasks, spent = importlib.import_module("virtual_time").events(0.2)
    assert found > 2 * tasks > 0
    assert spent >= 0.2
