"""What people look at: summaries, tables, curves, the page and the progress of a run."""

import io
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from gossamer import Method, RunError, fedavg, simulate
from gossamer.cli import main
from gossamer.core.extras import MissingExtraError
from gossamer.parts.servers import Robust, TrimmedMean, WeightedMean
from gossamer.runs.records import read_metrics
from gossamer.runs.report import REPORTS, Folder, base, curves, holdings, html, page, plots, tables, text
from gossamer.runs.report.holdings import COLUMNS
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.summary import reasons, summarise
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.data.partition import offsets
from gossamer.tasks.metrics import PREFIXES, TAKEN
from gossamer.tasks.task import Task
from gossamer.testing import tiny_task
from helpers.curves import xdata, ydata

Record = dict[str, Any]


def record(number: int, **changes: Any) -> Record:
    return {
        "round": number,
        "accuracy": 0.1 * number,
        "loss": 1 / number,
        "personal_accuracy": 0.09 * number,
        "worst_tenth_accuracy": 0.05 * number,
        "train_loss": 0.8 / number,
        "bytes_up": {"values": 1_000_000, "overhead": 30},
        "bytes_down": {"values": 2_000_000},
        "flops": 5_000_000,
        "useful_flops": 5_000_000,
        "joules": 0.0,
        "energy": {"computing": 0.0, "sending": changes.get("joules", 0.0)},
        "airtime": 0.0,
        "delay": 0.0,
        "seconds": {"train": 1.5, "evaluate": 0.5},
        "memory_bytes": 400_000_000,
        "clients": [0, 2],
        "failures": [],
        "lost": [],
        "exchanges": [{"sent": 2, "lost": 0, "folded": 2}],
        **changes,
    }


ABOUT: dict[str, Any] = {
    "method": {"view": "Full()", "solver": "SGD(lr=0.1)", "codec": "Dense()"},
    "task": {"data": "digits", "model": "mlp", "split": "iid", "clients": 4},
    "parameters": 12345,
    "options": {"rounds": 5, "per_round": 2, "seed": 7, "executor": "one-by-one"},
    "request": {"method": "fedavg"},
    "machine": {"gossamer": "0.1.0"},
}
RUN = [record(number) for number in range(1, 6)]


def split_of(clients: int, each: int = 3) -> Split:
    index, start = np.arange(clients * each), offsets(np.full(clients, each))
    return Split(index, start, index, start)


def data_of(split: Split, classes: int = 3) -> Data:
    y = torch.arange(len(split.train_index)) % classes
    samples = Samples(torch.zeros(len(y), 2), y)
    return Data("made", samples, samples, classes, "iid", "mlp")


# Summaries.


def test_a_summary_takes_the_last_accuracies_and_sums_the_costs() -> None:
    last = record(5, failures=[{"client": 1, "reason": "x"}], lost=[2])
    del last["accuracy"]
    summary = summarise(ABOUT, [*RUN[:4], last])
    assert (summary["accuracy"], summary["evaluated_round"], summary["rounds"]) == (0.4, 4, 5)
    assert (summary["bytes_up"], summary["bytes_down"]) == (5_000_150, 10_000_000)
    assert (summary["flops"], summary["seconds"]) == (25_000_000, 10.0)
    assert (summary["failures"], summary["lost"], summary["per_round"]) == (1, 1, 2)


def test_a_summary_before_the_first_round_knows_what_it_can_know() -> None:
    summary = summarise(ABOUT, [])
    assert (summary["accuracy"], summary["rounds"], summary["bytes_up"], summary["per_round"]) == (None, 0, 0, 2)
    assert "–" in tables.closing(summary)


def test_a_summary_holds_finite_numbers_only() -> None:
    summary = summarise(ABOUT, [record(1, joules=math.inf, loss=None)])
    assert summary["joules"] is None
    assert summary["loss"] is None
    json.dumps(summary, allow_nan=False)
    assert "–" in tables.closing(summary)


def test_reasons_come_most_frequent_first_with_round_and_client() -> None:
    fail = [{"client": 1, "reason": "a"}, {"client": 2, "reason": "b"}]
    metrics = [record(1, failures=fail), record(2, failures=fail[1:])]
    assert reasons(metrics) == [("b", [(1, 2), (2, 2)]), ("a", [(1, 1)])]


# Text and tables.


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_400, "999 kB"), (999_600, "1.00 MB"), (5e12, "5.00 TB")],
)
def test_sizes_have_three_figures(count: float, said: str) -> None:
    assert text.size(count) == said


def test_small_amounts_have_no_unit() -> None:
    assert (text.amount(0), text.amount(12), text.amount(8.45e9)) == ("0 ", "12 ", "8.45 G")


def test_numbers_stand_to_the_right_and_flags_to_the_left() -> None:
    drawn = text.table(("flag", "n"), [("--mu", "-1"), ("--lambda", "10")]).splitlines()
    assert drawn[2:] == ["--mu      -1", "--lambda  10"]


def test_the_last_column_is_broken_to_the_width_of_the_terminal() -> None:
    drawn = text.table(("name", "meaning"), [("a", "word " * 20)], width=40)
    assert max(map(len, drawn.splitlines())) <= 40
    assert drawn.count("word") == 20
    assert max(map(len, text.pairs([("a", "word " * 20)], width=40).splitlines())) <= 40


def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["rich", *(name for name in sys.modules if name.startswith("rich."))]:
        monkeypatch.setitem(sys.modules, name, None)


def test_tables_are_the_same_with_and_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("--mu", "-1", "a [bold] word, " * 12), ("--lambda", "10", "–"), ("x", "–", "")]
    laid_out = text.table(("flag", "n", "meaning"), rows, 60), text.pairs([(a, b) for a, _, b in rows], 60)
    without_rich(monkeypatch)
    assert (text.table(("flag", "n", "meaning"), rows, 60), text.pairs([(a, b) for a, _, b in rows], 60)) == laid_out
    assert "[bold]" in laid_out[0]


def test_a_table_that_goes_to_a_file_has_a_bounded_width() -> None:
    drawn = text.table(("a", "meaning"), [("1", "word " * 200)])
    assert max(map(len, drawn.splitlines())) <= text.PIPED


def test_a_run_in_full_names_its_parts_its_bytes_and_why_clients_failed() -> None:
    metrics = [*RUN, record(6, failures=[{"client": 3, "reason": "sensor broken"}])]
    said = tables.full(Path("runs/x"), ABOUT, metrics, "interrupted")
    for wanted in ("runs/x (interrupted)", "SGD(lr=0.1)", "values 6.00 MB, overhead 180 B", "train 9.0 s"):
        assert wanted in said
    assert "failed 1 time: sensor broken" in said


ROBUST = "Robust(rule=Bucketing(size=2, rule=TrimmedMean(share=0.2)), mean=Mean(weights='samples'))"


@pytest.mark.parametrize(
    ("server", "asked", "shown"),
    [
        (ROBUST, "bucketing:2/trimmed-mean:0.2", "Bucketing(size=2, rule=TrimmedMean(share=0.2))"),
        (ROBUST, None, "Bucketing(size=2, rule=TrimmedMean(share=0.2))"),
        ("Mean(weights='samples')", None, None),
        ("Mean(weights='samples')", "mean", None),
        ("Mine(beta=0.9)", "mine.py:Mine", "Mine(beta=0.9)"),
        ("Robust(rule=<nonsense>", "mine.py:Mine", "Robust(rule=<nonsense>"),
    ],
)
def test_a_server_that_replaces_that_of_the_recipe_is_named(server: str, asked: str | None, shown: str | None) -> None:
    about = {**ABOUT, "method": {"server": server}, "request": {"method": "fedavg", "server": asked}}
    summary = summarise(about, RUN)
    assert summary["server"] == shown
    assert dict(tables.facts(summary)).get("server") == shown
    assert (f"· server: {shown}" in words(rendered(about, RUN))) == bool(shown)


def test_the_rule_of_a_run_from_python_is_named() -> None:
    method = fedavg(epochs=1)
    method = method.with_parts(server=Robust(TrimmedMean(0.4), method.server))
    assert simulate(method, tiny_task(), rounds=1).summary()["server"] == "TrimmedMean(share=0.4)"
    assert simulate(fedavg(epochs=1), tiny_task(), rounds=1).summary()["server"] is None


def test_no_metric_may_have_the_name_of_another_entry() -> None:
    scored = {f"{prefix}accuracy" for prefix in ("", *PREFIXES)}
    assert {*summarise(ABOUT, RUN), *RUN[0]} - scored <= TAKEN


def test_data_and_network_of_the_user_are_called_custom() -> None:
    summary = {**summarise(ABOUT, RUN), "data": "custom", "model": "custom", "split": "by client", "parameters": 82}
    assert tables.task(summary) == "custom data, custom network (82 parameters), by client"


def test_runs_side_by_side_show_joules_where_there_are_any() -> None:
    plain, costly = summarise(ABOUT, RUN), summarise(ABOUT, [record(1, joules=2.5)])
    assert "joules" not in tables.side_by_side(["a"], [plain])
    assert "joules" not in tables.closing(plain)
    assert dict(tables.facts(costly))["joules"] == "2.5"
    assert "2.5" in tables.side_by_side(["a", "b"], [plain, costly])
    assert tables.differences([plain, costly]) == ["rounds"]


# Curves.


def test_curves_show_accuracy_against_rounds_and_against_bytes() -> None:
    left, right = curves.figure(["a", "b"], [RUN, RUN[:3]]).axes
    assert [xdata(left, line).tolist() for line in range(2)] == [[1, 2, 3, 4, 5], [1, 2, 3]]
    np.testing.assert_allclose(xdata(right), np.arange(1, 6) * 1.00003)
    np.testing.assert_allclose(ydata(right), [10, 20, 30, 40, 50])
    assert right.get_xscale() == "linear"


def test_runs_that_send_far_less_are_seen_on_a_logarithmic_scale() -> None:
    thin = [record(number, bytes_up={"bits": 31_000}) for number in range(1, 6)]
    assert curves.figure(["a", "b"], [RUN, thin]).axes[1].get_xscale() == "log"


def test_a_run_that_sends_nothing_is_a_level() -> None:
    silent = [record(number, bytes_up={}) for number in range(1, 4)]
    right = curves.figure(["alone"], [silent]).axes[1]
    assert ydata(right).tolist() == pytest.approx([30, 30])
    assert "nothing is uploaded" in right.get_xlabel()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_curves_are_drawn_whatever_runs_are_called(tmp_path: Path, ending: str) -> None:
    names = ["_hidden", "$x^2", "a<b>&"]
    picture = curves.figure(names, [RUN, [], [record(1)]])
    assert [label.get_text() for label in picture.legends[0].get_texts()] == ["_hidden", r"\$x^2", "a<b>&"]
    curves.draw(names, [RUN, [], [record(1)]], tmp_path / f"picture.{ending}")
    assert [file.name for file in tmp_path.iterdir()] == [f"picture.{ending}"]


# The page.


def rendered(about: dict[str, Any], metrics: list[Record], clients: int = 4, data: bool = True) -> ElementTree.Element:
    """A page, read back as XML: a page that is not well formed fails here."""
    split = split_of(clients)
    return ElementTree.fromstring(page.render("my-run", about, metrics, split, data_of(split) if data else None))


def words(element: ElementTree.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def test_a_page_shows_numbers_curves_costs_split_and_every_part() -> None:
    tree = rendered(ABOUT, RUN)
    said = words(tree)
    for wanted in ("50.00 %", "45.00 %", "25.00 %", "5.00 MB", "10.0 MB", "25.0 MFLOP", "seed 7", "my-run"):
        assert wanted in said
    for wanted in ("train", "evaluate", "overhead", "No client failed.", *ABOUT["method"].values()):
        assert wanted in said
    titles = [svg.get("aria-label") for svg in tree.iter("svg")]
    assert titles == ["Accuracy (%)", "Accuracy (%) by upload", "Loss", "samples by client and class"]


def test_a_page_needs_nothing_from_anywhere() -> None:
    tree = rendered(ABOUT, RUN)
    assert not {"script", "link", "img", "iframe", "object"} & {element.tag for element in tree.iter()}
    assert not any("src" in element.attrib for element in tree.iter())
    links = [str(element.get("href")) for element in tree.iter() if "href" in element.attrib]
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    marks = {f"#{element.get('id')}" for element in tree.iter() if "id" in element.attrib}
    assert {link for link in links if link.startswith("#")} <= marks, "every reference is within the page"
    assert not re.search(r"url\(|@import|https?:", page.render("my-run", ABOUT, RUN, split_of(4), None))


def test_the_same_run_gives_the_same_page() -> None:
    first, again = (page.render("my-run", ABOUT, RUN, split_of(4), data_of(split_of(4))) for _ in range(2))
    assert first == again


def test_colours_of_charts_are_those_of_the_page() -> None:
    drawn = chart("title", "round", [Series("a", [(1, 2.0)]), Series("b", [(1, 3.0)])])
    assert "var(--k0)" in drawn
    assert "var(--k1)" in drawn
    style = (html.TEMPLATES / "style.css").read_text()
    assert [name for name in plots.VARIABLES.values() if f"{name[4:-1]}:" not in style] == []
    assert not set(plots.VARIABLES) & set(re.findall(r"#[0-9a-f]{6}", drawn))


def test_whatever_a_user_typed_is_escaped() -> None:
    nasty = "<script>alert('x')</script> & \"co\""
    about = {
        **ABOUT,
        "method": {"codec": nasty},
        "request": {"method": nasty},
        "options": {**ABOUT["options"], nasty: 1},
    }
    metrics = [record(1, failures=[{"client": 1, "reason": nasty}], bytes_up={nasty: 10}, seconds={nasty: 1.0})]
    tree = rendered(about, metrics)
    assert not list(tree.iter("script"))
    assert words(tree).count(nasty) >= 5


def test_a_page_says_why_and_where_clients_failed() -> None:
    broken = [{"client": client, "reason": "sensor broken"} for client in range(12)]
    tree = rendered(ABOUT, [record(1, failures=broken), record(2, failures=broken[:1], lost=[3, 4])])
    said = words(tree)
    assert "13 times sensor broken clients 0, 1, 2, 3, 4, 5, 6, 7 and others; rounds 1 to 2" in said
    assert "Lost messages: 2, none of them compensated." in said


@pytest.mark.parametrize("metrics", [[], [record(1)], [record(1, accuracy=None, loss=None, train_loss=None)]])
def test_a_page_can_be_made_at_any_time(metrics: list[Record]) -> None:
    assert "my-run" in words(rendered(ABOUT, metrics))


def test_energy_is_shown_where_a_channel_counts_it() -> None:
    assert "2.5 J" in words(rendered(ABOUT, [record(1, joules=2.5)]))


def test_a_run_from_python_gets_its_page_too(tmp_path: Path) -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    task = Task.of(lambda: torch.nn.Linear(3, 2), (x, y), (x, y), clients=4)
    simulate(fedavg(epochs=1), task, rounds=2, out=tmp_path / "run")
    report = page.write(Folder(tmp_path / "run", 5))
    assert ElementTree.fromstring(report.read_text()).tag == "html"
    assert page.write(Folder(tmp_path / "run", 5, task.data)).read_text() != "", "it can be written again"


def axes_of(figure: Any) -> list[Any]:
    """The axes of a figure, whose artists are of kinds that only the reader knows."""
    return list(figure.axes)


@pytest.mark.parametrize("clients", [1, 7, COLUMNS, COLUMNS + 1, 1234])
def test_a_split_is_drawn_in_two_hundred_columns_at_most(clients: int) -> None:
    split = split_of(clients)
    bars, cells = axes_of(holdings.figure(split, data_of(split)))
    columns = -(-clients // -(-clients // COLUMNS))
    assert len(bars.patches) == columns
    (mesh,) = cells.collections
    assert mesh.get_array().shape == (3, columns)
    np.testing.assert_allclose(mesh.get_array().sum(axis=0), [bar.get_height() for bar in bars.patches])
    drawn = ElementTree.fromstring(holdings.holdings(split, data_of(split)))
    assert drawn.get("aria-label") == holdings.TITLE


def test_without_the_data_a_split_shows_sizes_alone() -> None:
    (bars,) = axes_of(holdings.figure(split_of(5), None))
    assert [bar.get_height() for bar in bars.patches] == [3] * 5


@pytest.mark.parametrize("values", [[0.0], [0.3, 0.31], [2.0, 2.0], [12345.0, -3.0], [1e-9, 2e-9]])
def test_a_chart_holds_every_point_of_every_series(values: list[float]) -> None:
    points = [(float(number), value) for number, value in enumerate(values)]
    (axes,) = axes_of(plots.line_figure("round", [Series("a", points), Series("b", points[:1])]))
    assert [list(zip(*line.get_data(), strict=True)) for line in axes.lines] == [points, points[:1]]
    assert axes.get_ylim()[0] <= min(values) <= max(values) <= axes.get_ylim()[1]
    assert axes.get_xlabel() == "round"
    assert len(axes.get_yticks()) <= 9


def test_a_chart_names_its_series_and_the_values_of_its_points() -> None:
    tree = ElementTree.fromstring(chart("<b> & c", "round", [Series("a<b", [(1, 0.25), (2, 0.5)]), Series("$x", [])]))
    (svg,) = tree.iter("svg")
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "<b> & c")
    assert [key.text for key in tree.iter("span")] == ["a<b", "$x"]
    assert [title.text for title in tree.iter("title")] == ["a<b: 0.25 at 1", "a<b: 0.5 at 2"]
    assert "round" in [text.text for text in tree.iter("text")]


def test_of_a_long_series_points_are_not_marked() -> None:
    line = Series("a", [(number, 0.5) for number in range(plots.MARKED + 1)])
    assert "<title>" not in chart("title", "round", [line])


def test_a_chart_without_points_is_left_out_and_one_point_is_enough() -> None:
    assert chart("title", "round", [Series("a", [])]) == ""
    assert "a: 0 at 0" in chart("title", "round", [Series("a", [(0, 0)])])


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"this needs matplotlib: pip install 'gossamer\[plot\]'") as caught:
        chart("title", "round", [Series("a", [(0, 0)])])
    assert isinstance(caught.value, ImportError)


# Progress.


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_in_a_terminal_progress_is_a_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(5) as progress:
        for one in RUN:
            progress({**one, "failures": [{"client": 0, "reason": "x"}]} if one["round"] == 2 else one)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("round 1/5  accuracy 10.00 %  loss 1  up 1.00 MB  down 2.00 MB  ")
    assert re.search(r"MB  [\d.]+ s  left [\d.]+ s$", lines[0])
    assert "failed" not in lines[0]
    assert all("  failed so far 1  " in line for line in lines[1:]), "the sum of all rounds"


def test_many_rounds_make_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1000) as progress:
        for number in range(1, 1001):
            progress(record(number))
    assert len(capsys.readouterr().err.splitlines()) == 50


def test_rounds_between_evaluations_show_what_was_seen_last(capsys: pytest.CaptureFixture[str]) -> None:
    unseen = {name: value for name, value in record(1).items() if name not in ("accuracy", "loss")}
    with Progress(3) as progress:
        progress(unseen)
        progress(record(2))
        progress({**unseen, "round": 3})
    lines = capsys.readouterr().err.splitlines()
    assert "accuracy –  loss –" in lines[0]
    assert "accuracy 20.00 %" in lines[1]
    assert "accuracy 20.00 %" in lines[2]


def test_a_resumed_run_counts_what_was_sent_before(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(5, RUN[:4]) as progress:
        progress(RUN[4])
    assert "up 5.00 MB  down 10.0 MB" in capsys.readouterr().err


STATUS = "accuracy 50.00 %  loss 0.2  up 5.00 MB  down 10.0 MB"


@pytest.mark.parametrize(
    ("columns", "line"),
    [("120", rf"round 5/5 ━+ {STATUS} \d:\d\d:\d\d left 0.0 s"), ("80", rf"round 5/5 {STATUS} left 0.0 s")],
)
def test_in_a_terminal_progress_is_one_live_line(columns: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    with Progress(5) as progress:
        for one in RUN:
            progress(one)
    plain = re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue())
    last = plain.rstrip("\n").rpartition("\r")[2]
    assert plain.count("\n") == 1
    assert re.fullmatch(line, last.rstrip())


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with Progress(2) as progress:
        progress(record(1))
        progress(record(2))
    assert screen.getvalue().startswith("round 1/2  accuracy 10.00 %")


# Figures of parts.

OWN = """
from dataclasses import dataclass
from gossamer.parts.servers import WeightedMean

@dataclass(frozen=True)
class Counting(WeightedMean):
    def finish(self, state, acc, clock):
        return self.moved(state, acc)

    def measure(self, state, acc):
        return {"counts": {"folded": 4 if acc.weight else 0, "by name": {"a": 1}}}
"""

TOLD = """
from gossamer.runs.report import Report, reports

@reports("counts")
class Counts(Report):
    title = "Who was <counted>"

    def rows(self, summary):
        return [("counted", f"{summary['folded']} of them")]

    def details(self, folder):
        return {"clients": folder.clients}, ["counted in", f"{folder.clients} clients"]

    def picture(self, folder, records):
        return f"<p>drawn of {len(records)} records</p>"
"""


@pytest.fixture
def own_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gossamer.runs.report.base.REPORTS", dict(REPORTS))
    return tmp_path


ASKED = ["run", "fedavg", "--clients", "4", "--rounds", "2", "--executor", "one-by-one"]


def test_figures_of_a_part_of_ones_own_are_shown_wherever_those_of_the_library_are(
    own_reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own.py").write_text(OWN)
    assert main([*ASKED, "--server", "own.py:Counting", "--out", "run"]) == 0
    assert main(["show", "run"]) == 0
    assert "\ncounts folded      4\n" in capsys.readouterr().out
    assert main(["show", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == {"counts": {"folded": 4, "by name": {"a": 1}}}
    assert main([*ASKED, "--out", "plain"]) == 0
    capsys.readouterr()
    assert main(["compare", "plain", "run"]) == 0
    head, _, plain, counted = capsys.readouterr().out.splitlines()[:4]
    assert head.endswith("  counts folded")
    assert (plain.split()[-1], counted.split()[-1]) == ("–", "4")
    assert 'aria-label="counts folded"' in Path("run/report.html").read_text()


def test_a_report_in_a_file_that_is_named_is_used(own_reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN + TOLD)
    assert main([*ASKED, "--server", "own.py:Counting", "--out", "run"]) == 0
    base.REPORTS.pop("counts")  # as in another process
    for name in [name for name in sys.modules if name.startswith("gossamer_user_own")]:
        del sys.modules[name]
    capsys.readouterr()
    assert main(["show", "run"]) == 0
    assert "\ncounts folded      4\n" in capsys.readouterr().out, "the file that the run names is not executed"
    assert main(["show", "run", "--reports", "own.py"]) == 0
    said = capsys.readouterr().out
    assert "\ncounted            4 of them\n" in said
    assert "\ncounted in\n  4 clients\n" in said
    assert main(["show", "run", "--json", "--reports", "own.py"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["counts"]["clients"] == 4
    page_ = Path("run/report.html").read_text()
    assert "<p>drawn of 2 records</p>" in page_
    assert "Who was &lt;counted&gt;" in page_


def test_shares_are_in_percent_in_tables_and_on_the_page() -> None:
    records = [record(number, figures={"clipped": 0.125 * number, "clipped_length": 0.5}) for number in (1, 2)]
    summary = base.summaries_of(records, 4)
    assert base.rows_of(summary) == [("clipped", "25.00 %"), ("clipped_length", "50.00 %")]
    assert base.cells_of(summary) == {"clipped": "25.00 %", "clipped_length": "50.00 %"}
    (drawn, _) = [each for report in base.reports_of(records) for each in report.charts(records)]
    assert "clipped (%)" in drawn
    assert "clipped: 12.5 at 1" in drawn


def test_where_the_file_of_a_report_has_changed_the_default_shows_its_figures(
    own_reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own.py").write_text(OWN + TOLD)
    assert main([*ASKED, "--server", "own.py:Counting", "--out", "run"]) == 0
    base.REPORTS.pop("counts")
    Path("own.py").write_text("raise RuntimeError")
    capsys.readouterr()
    assert main(["show", "run"]) == 0
    assert "\ncounts folded      4\n" in capsys.readouterr().out


def measuring(figures: Any) -> Method:
    """FedAvg whose server measures this."""

    @dataclass(frozen=True)
    class Odd(WeightedMean):
        def finish(self, state: Any, acc: Any, clock: Any) -> Any:
            return self.moved(state, acc)

        def measure(self, state: Any, acc: Any) -> Any:
            return figures

    return fedavg(epochs=1).with_parts(server=Odd())


def test_figures_are_kept_as_plain_numbers(tmp_path: Path) -> None:
    odd = {"norm": torch.tensor(1.5), "many": {"a": np.float64(2), "b": math.inf, 3: [torch.arange(2), True]}}
    result = simulate(measuring(odd), tiny_task(), rounds=1, out=tmp_path / "run")
    wanted = {"norm": 1.5, "many": {"a": 2.0, "b": None, "3": [[0, 1], True]}}
    assert read_metrics(tmp_path / "run")[0]["figures"] == result.metrics[0]["figures"] == wanted
    rows = dict(tables.facts(result.summary()))
    assert (rows["norm"], rows["many a"]) == ("1.5", "2")


def test_a_figure_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(RunError, match=r"the figure sizes\.a that a part measures must be a number"):
        simulate(measuring({"sizes": {"a": object()}}), tiny_task(), rounds=1)


@pytest.mark.parametrize("member", ["summary", "rows", "cells", "charts", "details", "picture"])
def test_a_report_that_fails_says_so_and_hides_nothing_else(
    member: str, own_reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise KeyError("<oops>")

    base.REPORTS["odd"] = type("Failing", (base.Report,), {member: fail})("odd")
    simulate(measuring({"odd": {"a": 1}}), tiny_task(), rounds=1, out="run")
    assert main(["show", "run"]) == 0
    said = capsys.readouterr().out
    assert ("its report fails in rows: KeyError: '<oops>'" in said) == (member == "rows")
    assert ("odd a" in said) == (member != "rows")
    assert ("odd: its report fails in details: KeyError" in said) == (member == "details")
    assert main(["compare", "run"]) == 0
    assert ("its report fails in cells" in capsys.readouterr().out) == (member in ("rows", "cells"))  # made of rows
    assert main(["show", "run", "--html"]) == 0
    written = Path("run/report.html").read_text()
    for drawn in ("charts", "picture"):
        assert (f"odd: its report fails in {drawn}: KeyError: &#39;&lt;oops&gt;&#39;" in written) == (member == drawn)
