"""Results in scripts and notebooks: one line, plots, tables, pages, models; and progress where somebody looks."""

import io
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer import ConfigError, RunError, Task, fedavg, local, simulate
from gossamer.core.extras import MissingExtraError
from gossamer.engines.result import Result
from gossamer.testing import tiny_task

METHOD = fedavg(lr=0.3, epochs=1, batch=8)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return simulate(METHOD, tiny_task(), rounds=3, eval_every=2, out=tmp_path_factory.mktemp("runs") / "run")


def test_a_result_is_one_line(result: Result) -> None:
    accuracy, sent = f"{100 * result.accuracy:.2f} %", result.summary()["bytes_up"] + result.summary()["bytes_down"]
    told = f"fedavg on custom, 3 of 3 rounds, accuracy {accuracy}, {sent / 1000:.3g} kB exchanged, {result.path}"
    assert repr(result) == f"<Result: {told}>"


def test_the_line_of_a_result_counts_failed_clients() -> None:
    result = simulate(METHOD, tiny_task(), rounds=2, failure_rate=0.5, progress=False)
    failed = sum(len(record["failures"]) for record in result.metrics)
    assert failed > 1
    assert repr(result).endswith(f" exchanged, {failed} failures>")


def test_a_plot_shows_a_metric_by_rounds_bytes_or_seconds(result: Result) -> None:
    evaluated = [record for record in result.metrics if "accuracy" in record]
    assert [record["round"] for record in evaluated] == [2, 3]
    (line,) = result.plot().axes[0].lines
    assert np.array_equal(line.get_xydata(), [(r["round"], r["accuracy"]) for r in evaluated])
    up = [sum(record["bytes_up"].values()) for record in result.metrics]
    first, second = result.plot("accuracy", "loss", by="bytes").axes[0].lines
    assert list(first.get_xdata()) == pytest.approx([sum(up[:2]) / 1e3, sum(up) / 1e3])  # type: ignore[arg-type]
    assert list(second.get_ydata()) == pytest.approx([r["loss"] for r in evaluated])  # type: ignore[arg-type]
    assert result.plot(by="bytes").axes[0].get_xlabel() == "sent by clients so far (kB)"
    assert result.plot(by="seconds")._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="unknown metric 'acuracy': did you mean accuracy"):
        result.plot("acuracy")
    with pytest.raises(ConfigError, match="unknown axis 'hours'"):
        result.plot(by="hours")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the run counts no joules"):
        result.plot(by="joules")


def test_a_saved_plot_holds_all_its_labels(result: Result) -> None:
    figure = result.plot("accuracy", "personal_accuracy", by="bytes")
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].texts] == ["accuracy", "personal_accuracy"]
    axes = figure.axes[0]
    for artist in (figure.legends[0], axes.xaxis.label):
        box = artist.get_window_extent()
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.bbox.x1
    assert axes.get_window_extent().x1 < figure.legends[0].get_window_extent().x0


def test_a_frame_has_one_row_per_round(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = result.frame()
    assert list(frame.index) == [1, 2, 3]
    assert list(frame["accuracy"].dropna()) == [r["accuracy"] for r in result.metrics if "accuracy" in r]
    assert list(frame["bytes_up"]) == [sum(r["bytes_up"].values()) for r in result.metrics]
    assert list(frame["clients"]) == [5, 5, 5]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"this needs pandas: pip install 'gossamer\[frame\]'"):
        result.frame()


def test_a_page_is_written_for_a_folder_and_for_a_run_in_memory(result: Result, tmp_path: Path) -> None:
    assert result.path is not None
    assert result.report() == result.path / "report.html"
    memory = simulate(METHOD, tiny_task(), rounds=1)
    assert "fedavg" in memory.report(tmp_path / "page.html").read_text()
    with pytest.raises(ConfigError, match="kept in memory: name the page"):
        memory.report()


def test_without_a_global_model_the_result_says_what_to_use() -> None:
    result = simulate(local(epochs=1), tiny_task(), rounds=1)
    with pytest.raises(RunError, match=r"^local trains one model per client and no global model: use result\.client_"):
        _ = result.model
    assert isinstance(result.client_model(3), torch.nn.Module)
    with pytest.raises(ConfigError, match="there is no client 5: clients are numbered 0 to 4"):
        result.client_model(5)
    with pytest.raises(ConfigError, match="client must be a whole number, got 'ann': clients have numbers, in the ord"):
        result.client_model("ann")  # type: ignore[arg-type]


def test_a_run_is_opened_again_with_its_models(result: Result) -> None:
    assert result.path is not None
    again = gossamer.load_run(result.path, task=tiny_task())
    assert (repr(again), again.metrics) == (repr(result), result.metrics)
    for mine, theirs in ((again.model, result.model), (again.client_model(3), result.client_model(3))):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    with pytest.raises(
        ConfigError, match=r"its task cannot be built from the folder: add --task FILE\.py:NAME, or in "
    ):
        _ = gossamer.load_run(result.path).model
    with pytest.raises(RunError, match="started with another method"):
        _ = gossamer.load_run(result.path, method=fedavg(lr=0.2), task=tiny_task()).model


def renamed() -> Task:
    """The tiny task with a network of the same shapes under other names."""
    made = tiny_task()
    return replace(made, model=lambda: nn.Sequential(made.model()))


def test_a_network_with_other_tensors_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run"
    simulate(METHOD, tiny_task(), rounds=1, out=path)
    before = (path / "run.json").read_bytes()
    message = "the network has tensors that the run lacks: 0.0.weight, .*; the run has 0.weight, 0.bias, 2.weight"
    with pytest.raises(RunError, match=message):
        _ = gossamer.load_run(path, task=renamed()).model
    with pytest.raises(RunError, match=message):
        gossamer.resume(path, task=renamed(), rounds=3)
    wider = replace(tiny_task(), model=lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)))
    with pytest.raises(RunError, match=r"shapes differ: 0.weight \[9, 6\], not \[8, 6\], 0.bias \[9\], not \[8\], "):
        gossamer.resume(path, task=wider, rounds=3)
    assert (path / "run.json").read_bytes() == before


def test_a_run_is_not_continued_with_another_loss(tmp_path: Path) -> None:
    def own(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * nn.functional.cross_entropy(output, target)

    simulate(METHOD, tiny_task(), rounds=1, out=tmp_path / "run")
    with pytest.raises(RunError, match="another task: loss is own function, was the default"):
        gossamer.resume(tmp_path / "run", task=replace(tiny_task(), loss=own), rounds=2)


# Progress.


class Stream(io.StringIO):
    """Standard error as a pipe or as a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_shows_progress_by_itself(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys, "stderr", terminal := Stream(True))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    simulate(METHOD, tiny_task(), rounds=2)
    assert "2/2" in terminal.getvalue()
    assert "accuracy" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", silent := Stream(True))
    simulate(METHOD, tiny_task(), rounds=1, progress=False)
    assert silent.getvalue() == ""


def test_a_pipe_stays_silent_unless_progress_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(METHOD, tiny_task(), rounds=1)
    assert capsys.readouterr() == ("", "")
    simulate(METHOD, tiny_task(), rounds=2, until={"accuracy": 0}, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("round 1/2  accuracy ")
    assert "stopped: accuracy=0 is reached" in err


def test_a_notebook_shows_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(data["text/plain"])
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython, ipython.display = lambda: shell, types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    simulate(METHOD, tiny_task(), rounds=3)
    assert shown[0].startswith("round 1/3  accuracy ")
    assert shown[-1].startswith("round 3/3  accuracy "), "the last round is shown, however fast the rounds are"
    assert capsys.readouterr() == ("", "")
    before = len(shown)
    simulate(METHOD, tiny_task(), rounds=1, progress=False)
    assert len(shown) == before
