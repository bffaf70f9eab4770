"""Reports of runs with a schedule: tasks, staleness, idle slots, work in vain, the timeline and its charts."""

import json
import random
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gossamer import FleetLinks, fedavg, simulate
from gossamer.core.availability import SECOND
from gossamer.core.specs import parse
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.parts.schedules import SCHEDULES
from gossamer.runs.report import curves, page, plots, tables, timeline, virtual_time
from gossamer.runs.report.curves import figure
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.timeline import FOLDED, OUTCOMES, Task, task_counts, tasks_of
from gossamer.runs.report.virtual_time import MARKS, ROWS, SHOWN, rows_of, windows
from gossamer.runs.trackers import numbers
from gossamer.tasks.data import Split
from gossamer.tasks.data.partition import offsets
from gossamer.tasks.metrics import TAKEN
from gossamer.testing import tiny_task
from helpers.curves import extents, xdata
from helpers.scheduled import about, buffered, counted, rounds_with_deadline

DEADLINE, BUFFERED = rounds_with_deadline(30, evaluated=2), buffered(30)
ABOUT, ABOUT_BUFFERED = about("deadline:20s", 12, 4, 30), about("fedbuff:buffer=3,concurrency=6", 12, 6, 30)
PLAIN = [
    {name: value for name, value in record.items() if name not in ("time", "tasks", "spent_in_vain")}
    for record in DEADLINE
]


def rendered(about: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The page of a run; one that is not well-formed fails here."""
    index = np.arange(about["task"]["clients"])
    split = Split(index, offsets(np.ones_like(index)), index, offsets(np.ones_like(index)))
    text = page.render("run", about, records, split, None)
    ElementTree.fromstring(text)
    return text


# The summary.


@pytest.mark.parametrize(("info", "records"), [(ABOUT, DEADLINE), (ABOUT_BUFFERED, BUFFERED)])
def test_a_summary_counts_tasks_staleness_idle_slots_and_work_in_vain(info: Any, records: Any) -> None:
    summary = summarise(info, records)
    assert summary["schedule"] == info["options"]["schedule"]
    assert summary["time"] == records[-1]["time"] == pytest.approx(summary["delay"])
    assert {outcome: n for outcome, n in summary["tasks"].items() if n} == counted(records)
    busy, vain, stale = 0, 0, []
    for record in records:
        columns = record["tasks"]
        for start, end, outcome, version in zip(
            *(columns[name] for name in ("start", "end", "outcome", "version")), strict=True
        ):
            busy += end - start
            vain += 0 if outcome == "folded" else end - start
            stale += [record["round"] - 1 - version] if outcome == "folded" else []
    assert summary["idle_share"] == pytest.approx(1 - busy / 1e9 / (info["slots"] * summary["time"]))
    assert summary["spent_in_vain"]["seconds_share"] == pytest.approx(vain / busy)
    assert summary["spent_in_vain"]["joules"] == pytest.approx(sum(r["spent_in_vain"]["joules"] for r in records))
    found = summary["staleness"]
    assert (found["mean"], found["median"]) == (pytest.approx(statistics.fmean(stale)), statistics.median(stale))
    assert [stale.count(value) for value in range(max(stale) + 1)] == found["histogram"]
    assert summary["energy"]["idle"] == pytest.approx(sum(record["energy"]["idle"] for record in records))
    assert summary["joules"] == pytest.approx(sum(summary["energy"].values()))
    json.dumps(summary, allow_nan=False)


def test_the_two_schedules_differ_as_they_should() -> None:
    late, buffer = summarise(ABOUT, DEADLINE), summarise(ABOUT_BUFFERED, BUFFERED)
    assert late["tasks"]["cancelled"] > 0 < late["tasks"]["lost"]
    assert (late["staleness"]["max"], buffer["tasks"]["cancelled"]) == (0, 0)
    assert buffer["staleness"]["max"] > 0
    assert buffer["idle_share"] < 0.1 < late["idle_share"]


def test_a_run_without_a_schedule_has_none_of_it_and_looks_as_before() -> None:
    plain = {**ABOUT, "options": {name: v for name, v in ABOUT["options"].items() if name != "schedule"}}
    summary = summarise(plain, PLAIN)
    for name in ("schedule", "time", "tasks", "staleness", "idle_share", "spent_in_vain"):
        assert summary[name] is None
    said = tables.full(Path("run"), plain, PLAIN, "finished") + tables.side_by_side(["a"], [summary])
    assert not any(word in said for word in ("virtual", "staleness", "idle of", "in vain", "schedule"))
    assert "Virtual time" not in rendered(plain, PLAIN)
    assert task_counts(PLAIN[0]) == {}


def test_a_scheduled_run_before_its_first_round_can_be_shown() -> None:
    summary = summarise(ABOUT, [])
    assert dict(tables.facts(summary))["schedule"] == "deadline:20s"
    assert "Virtual time" not in rendered(ABOUT, [])


def test_a_round_in_which_no_task_ended_is_no_problem() -> None:
    empty = [{**DEADLINE[0], "tasks": {name: [] for name in DEADLINE[0]["tasks"]}, "clients": []}]
    summary = summarise(ABOUT, empty)
    assert (summary["idle_share"], summary["staleness"]) == (1.0, None)
    assert dict(tables.facts(summary))["tasks"] == "none has ended"
    assert "Virtual time" not in rendered(ABOUT, empty)


def test_new_entries_are_reserved_names() -> None:
    assert {*summarise(ABOUT, DEADLINE), *DEADLINE[0]} - {
        "accuracy", "personal_accuracy", "worst_tenth_accuracy"
    } <= TAKEN  # fmt: skip


@pytest.mark.parametrize("schedule", ["sync", "deadline:1s,over=1.5", "fedbuff:buffer=2,concurrency=3"])
def test_records_of_a_simulation_are_shown_alike(schedule: str, tmp_path: Path) -> None:
    fleet = Fleet(tuple(Device(f"d{n}", 1, None, 2e6 / (n + 1), up=1e5, idle_power=0.1) for n in range(5)))
    chosen = parse(schedule, SCHEDULES, "schedule")
    result = simulate(fedavg(epochs=1), tiny_task(), rounds=4, per_round=3, schedule=chosen, channel=FleetLinks(fleet))
    summary, tasks = result.summary(), list(tasks_of(result.metrics))
    assert sum(summary["tasks"].values()) == len(tasks) > 0
    assert 0 <= summary["idle_share"] < 1
    ends = {r["round"]: round(r["time"] * SECOND) for r in result.metrics}
    groups = timeline.thirds(tasks, {} if result.about["refills"] else ends)
    waiting = sum(group.seconds["waiting"] for group in groups)
    if schedule.startswith("fedbuff"):
        assert waiting == 0
    else:
        assert waiting == pytest.approx(summary["idle_share"] * result.about["slots"] * summary["time"], rel=1e-6)
    assert summary["energy"]["idle"] == pytest.approx(0.1 * waiting, rel=1e-6)
    assert "Who trained when" in result.report(tmp_path / "report.html").read_text()


# Text.


def test_show_has_the_lines_of_a_schedule() -> None:
    summary = summarise(ABOUT, DEADLINE)
    facts = dict(tables.facts(summary))
    tasks = summary["tasks"]
    assert facts["schedule"] == "deadline:20s"
    assert facts["virtual time"] == "8:51, 17.69 s per round"
    assert facts["tasks"] == f"{tasks['folded']} folded, {tasks['cancelled']} cancelled, {tasks['lost']} lost"
    assert facts["staleness"].startswith("mean 0, median 0, largest 0")
    assert facts["idle"] == f"{100 * summary['idle_share']:.2f} % of the time of training slots"
    assert f"({100 * summary['spent_in_vain']['seconds_share']:.2f} %)" in facts["spent in vain"]
    assert "J idle" in facts["energy"]
    assert "delay" not in facts


def test_compare_has_columns_of_time_staleness_and_idle_slots_and_names_the_schedule() -> None:
    summaries = [summarise(ABOUT, DEADLINE), summarise(ABOUT_BUFFERED, BUFFERED), summarise(ABOUT, PLAIN)]
    head, _, late, buffer, plain = tables.side_by_side(["late", "buffer", "plain"], summaries).splitlines()
    assert "virtual time  staleness" in head
    assert "8:51" in late
    assert "3:02" in buffer
    assert plain.split()[-1] == "–"
    assert "schedule" in tables.differences(summaries[:2])


def test_progress_shows_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(30) as progress:
        progress(DEADLINE[0])
    assert f"virtual time {DEADLINE[0]['time']:.1f} s" in capsys.readouterr().err


def test_trackers_and_frames_get_time_and_counts() -> None:
    found, row = numbers(DEADLINE[0]), curves.numbers(DEADLINE[0])
    assert found["time"] == row["time"] == DEADLINE[0]["time"]
    wanted = DEADLINE[0]["tasks"]["outcome"].count("folded")
    assert (found["tasks/folded"], row["tasks.folded"]) == (wanted, wanted)
    assert found["spent_in_vain/seconds"] == DEADLINE[0]["spent_in_vain"]["seconds"]
    assert not any(isinstance(value, list) for value in row.values())


# Curves.


def test_curves_are_by_virtual_time_in_a_unit_that_suits() -> None:
    *_, joules, time = figure(["late", "buffer"], [DEADLINE, BUFFERED]).axes
    assert time.get_xlabel() == "virtual time so far (min)"
    np.testing.assert_allclose(xdata(time, 1), [record["time"] / 60 for record in BUFFERED])
    np.testing.assert_allclose(xdata(joules, 1), np.cumsum([record["joules"] for record in BUFFERED]))
    *_, time = figure(["plain"], [PLAIN]).axes
    assert time.get_xlabel() == "time for computing and sending so far (s)"


def test_a_plot_is_by_virtual_time_too() -> None:
    axes = curves.metric_figure(BUFFERED, ["accuracy"], "time").axes[0]
    assert axes.get_xlabel() == "virtual time so far (min)"
    np.testing.assert_allclose(xdata(axes), [record["time"] / 60 for record in BUFFERED])


# The page.


def test_the_page_shows_timeline_staleness_speeds_outcomes_and_costs_of_levels() -> None:
    text = rendered(ABOUT, DEADLINE)
    tree = ElementTree.fromstring(text)
    titles = [svg.get("aria-label") for svg in tree.iter("svg")]
    for wanted in (
        "Accuracy (%) by energy",
        "Accuracy (%) by virtual time",
        "Who trained when",
        "Busy and idle by speed of clients",
        "Staleness of aggregated updates",
        "Tasks that ended, by outcome",
    ):
        assert wanted in titles
    assert "accuracy=0.7" in text
    assert "first evaluated round" in text
    assert not {"script", "link", "img"} & {element.tag for element in tree.iter()}
    assert text == rendered(ABOUT, DEADLINE)


def test_every_outcome_has_a_colour_of_its_own() -> None:
    assert {FOLDED, *MARKS} == set(OUTCOMES)
    used = [*virtual_time.PHASES.values(), *MARKS.values()]
    assert len(set(used)) == len(used)


def made(clients: int, each: int, seed: int = 0) -> list[Task]:
    """Tasks of clients one after the other; those of a higher number take longer."""
    draw, tasks = random.Random(seed), []
    for client in range(clients):
        now = 0
        for number in range(each):
            end = now + SECOND * (client + 1) + draw.randrange(SECOND // 10)
            tasks.append(Task(number + 1, client, number, now, now + 1, end - 1, end, "folded", 1.0))
            now = end
    return tasks


@pytest.mark.parametrize("clients", [1, ROWS, ROWS + 1, 333])
def test_a_timeline_has_clients_of_all_speeds(clients: int) -> None:
    shown, known = rows_of(made(clients, 2))
    assert (known, len(shown)) == (clients, min(clients, ROWS))
    assert (shown[0], shown[-1]) == (0, clients - 1)
    assert shown == sorted(set(shown)), "the fastest first, and none twice"


def test_a_timeline_of_many_tasks_shows_the_start_and_the_end() -> None:
    few, many = made(10, 5), made(10, 500)
    assert [window.tasks for window in windows(few)] == [few]
    first, last = windows(many)
    assert first.begin == 0
    assert last.end == max(task.end for task in many)
    assert first.end - first.begin == last.end - last.begin
    assert first.end <= last.begin
    for window in (first, last):
        assert window.tasks == [task for task in many if task.start < window.end and task.end > window.begin]
    assert len(first.tasks) + len(last.tasks) <= SHOWN + 4 * 10


def test_bars_of_a_timeline_are_the_phases_of_tasks() -> None:
    whole = Task(1, 0, 0, 0, 2 * SECOND, 5 * SECOND, 9 * SECOND, "folded", 1.0)
    cut = Task(1, 1, 0, 0, 3 * SECOND, None, 6 * SECOND, "cancelled", 1.0)
    (axes,) = virtual_time.gantt_figure([0, 1], windows([whole, cut]), [9 * SECOND]).axes
    spans = {each.get_gid(): extents(each, 0) for each in axes.collections if each.get_gid()}
    assert spans["download-0"] == [(0, 2), (0, 3)]
    assert spans["computing-0"] == [(2, 5), (3, 6)], "what never ended takes the rest of the task"
    assert spans["upload-0"] == [(5, 9)]
    assert spans["cancelled-0"] == [(0, 6)]
    tips = [
        title.text for title in ElementTree.fromstring(virtual_time.gantt([whole, cut], [9 * SECOND])).iter("title")
    ]
    assert "client 0, from the model of round 0, 9 s: aggregated in round 1" in tips
    assert "client 1, from the model of round 0, 6 s: cancelled in round 1" in tips


def test_a_page_of_many_tasks_stays_small() -> None:
    records = rounds_with_deadline(500, clients=300, slots=200)
    assert sum(counted(records).values()) == 100_000
    assert len(virtual_time.section(about("deadline:20s", 300, 200, 500), records, ())) < 1_000_000


# Speeds.


def test_thirds_are_by_the_median_of_whole_tasks_and_their_time_adds_up() -> None:
    tasks, ends = list(tasks_of(DEADLINE)), {r["round"]: round(r["time"] * SECOND) for r in DEADLINE}
    groups = timeline.thirds(tasks, ends)
    assert [group.clients for group in groups] == [4, 4, 4]
    assert [group.median for group in groups] == sorted(group.median for group in groups)
    assert sum(group.tasks for group in groups) == len(tasks)
    total = sum(sum(group.seconds.values()) for group in groups)
    assert total == pytest.approx(4 * DEADLINE[-1]["time"]), "all slots are filled, and wait for the end of the round"
    waiting = sum(group.seconds["waiting"] for group in groups)
    assert waiting / total == pytest.approx(summarise(ABOUT, DEADLINE)["idle_share"])
    assert groups[0].shares["waiting"] > groups[2].shares["waiting"]
    assert sum(groups[0].shares.values()) == pytest.approx(1)


def test_where_slots_are_filled_at_once_nobody_waits() -> None:
    tasks = list(tasks_of(BUFFERED))
    groups = timeline.thirds(tasks, {})
    assert [group.seconds["waiting"] for group in groups] == [0, 0, 0]
    assert groups[0].staleness < groups[2].staleness  # type: ignore[operator]


def test_clients_wait_for_the_end_of_each_exchange() -> None:
    probe = [Task(1, client, 0, 0, 1, 2, (client + 1) * SECOND, "folded", 1.0, 0) for client in range(3)]
    train = [Task(1, client, 0, 3 * SECOND, 3 * SECOND, 4 * SECOND, 5 * SECOND, "folded", 1.0, 1) for client in (0, 1)]
    groups = timeline.thirds(probe + train, {1: 6 * SECOND})
    assert [group.seconds["waiting"] for group in groups] == [3, 2, 0]


def test_a_client_whose_tasks_are_all_cut_short_counts_by_them() -> None:
    tasks = [Task(1, 0, 0, 0, 1, 2, 5 * SECOND, "folded", 1.0), Task(1, 1, 0, 0, 1, None, 9 * SECOND, "cancelled", 1.0)]
    tasks.append(Task(2, 0, 1, 0, None, None, 20 * SECOND, "left", 1.0))
    assert timeline.task_seconds(tasks) == {0: 5, 1: 9}
    assert [group.clients for group in timeline.thirds(tasks, {1: 9 * SECOND, 2: 20 * SECOND})] == [1, 1]


# Charts.


def test_stacked_bars_are_on_top_of_each_other() -> None:
    axes = plots.column_figure("x", [0, 1, 2], {"a": [1, 2], "b": [3, 0]}, [0, 1]).axes[0]
    heights = [extents(each, 1) for each in axes.collections]
    assert heights == [[(0, 1), (0, 2)], [(1, 4), (2, 2)]]


def test_outcomes_and_staleness_count_every_task() -> None:
    tasks = list(tasks_of(DEADLINE))
    text = virtual_time.outcomes(tasks, tasks[-1].end) + virtual_time.staleness(list(tasks_of(BUFFERED)))
    tips = [title.text or "" for title in ElementTree.fromstring(f"<div>{text}</div>").iter("title")]
    total = sum(float(tip.split(": ")[1].split(" at ")[0]) for tip in tips)
    assert total == len(tasks) + counted(BUFFERED)["folded"]


def test_keys_of_a_figure_have_the_colours_that_they_are_given() -> None:
    drawn = plots.framed("title", "<svg/>", keys=["a", "b"], colours=[5, 2])
    assert 'class="key k5">a<' in drawn
    assert 'class="key k2">b<' in drawn
