"""When clients are available: intervals in any order of queries, shares, closed forms, and trace files."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import ConfigError
from gossamer.core.availability import FOREVER, NEVER_AGAIN, SECOND, Availability, Interval
from gossamer.core.random import fold, key
from gossamer.fleet.availability import AvailabilityModel, read_model
from gossamer.fleet.fleet import Device, Fleet
from gossamer.fleet.links import RateTrace
from gossamer.fleet.units import DAY, HOUR, TimeOfDay
from helpers.paths import ROOT

MODELS = [
    "always",
    "markov:on=10min,off=30min",
    "markov:on=1ns,off=1ns",
    "daily:from=22h,to=7h,zone=UTC+2",
    "daily:from=8h,to=17h,zones=-11+0+5.5+14,jitter=2h",
    "daily:from=0h,to=23h,jitter=29min",
    "trace",
    "trace,clients=number",
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text(
        "client,start,end,repeat\n"
        "0,0,10,100\n0,20,30,100\n0,90,100,100\n"  # over the end of the period
        "1,5,10,60\n1,10,12,60\n"  # one interval
        "2,0,7,7\n"  # always
        "3,50,60,\n3,0,1.5,\n"  # once
    )
    return path


def model(text: str, trace: Path) -> AvailabilityModel:
    return read_model(text.replace("trace", f"trace:{trace}"))


def intervals(found: Availability, until: int, most: int = 200) -> list[Interval]:
    """The intervals from the start on, one after the other."""
    at = 0
    listed: list[Interval] = []
    while at < until and len(listed) < most:
        listed.append(found.interval(at))
        at = listed[-1].end
    return listed


# The page.


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    blocks = (ROOT / "docs/availability.md").read_text().split("```")[1::2]
    fleet, rates, times = (
        next(block.split("\n", 1)[1] for block in blocks if sign in block)
        for sign in ("[[device]]", "bits_per_second", "client,start,end")
    )
    for name, content in (("fleet.toml", fleet), ("rates.csv", rates), ("times.csv", times)):
        (tmp_path / name).write_text(content)
    phone, sensor = Fleet.read(tmp_path / "fleet.toml").devices
    assert phone.half_batch == 4
    assert sensor.on_leave == "pause"
    assert RateTrace.read(tmp_path / "rates.csv").sending(15_000_000, 0) == 75
    client = read_model(f"trace:{tmp_path / 'times.csv'}").of_client(0, key(0))
    assert client.interval(3600 * SECOND) == (7200 * SECOND, 9000 * SECOND)


# All models.


@pytest.mark.parametrize("text", MODELS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_intervals_are_disjoint_and_the_same_for_any_order_of_queries(text: str, data: Any, trace: Path) -> None:
    span = 10**3 if "1ns" in text else 10 * DAY
    client, seed = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 99))
    asked = data.draw(st.lists(st.integers(0, span), min_size=1, max_size=30))
    made = model(text, trace)
    one, other = (made.of_client(client, key(seed)) for _ in range(2))
    listed = intervals(one, span)
    assert all(0 <= interval.start < interval.end <= FOREVER for interval in listed if interval != NEVER_AGAIN)
    assert all(a.end < b.start for a, b in pairwise(listed)), "there is a pause between them"
    for at in asked:
        found = other.interval(at)
        assert found.end > at
        first = next((interval for interval in listed if interval.end > at), None)
        assert first is None or found == first
        assert found == one.interval(at)


@pytest.mark.parametrize("text", MODELS)
def test_a_model_is_written_as_it_is_read(text: str, trace: Path, tmp_path: Path) -> None:
    made = model(text, trace)
    assert read_model(made.to_text()) == made
    fleet = Fleet((Device("phone", 1, None, 1e9, availability=made, on_leave="pause"),))
    for folder in (tmp_path, trace.parent):
        fleet.write(folder / "fleet.toml")
        assert Fleet.read(folder / "fleet.toml") == fleet
    if "trace" in text:
        assert "trace:file=trace.csv" in (trace.parent / "fleet.toml").read_text(), "relative where it is beside"


@pytest.mark.parametrize("text", MODELS)
def test_the_end_of_time_is_never_reached(text: str, trace: Path) -> None:
    found = model(text, trace).of_client(0, key(0))
    assert found.interval(FOREVER - 1 if text == "always" else FOREVER).end == FOREVER


# Markov.


def test_the_share_of_time_and_the_first_state_are_those_of_the_process() -> None:
    """2000 clients over 20 mean cycles: within four standard errors."""
    made = read_model("markov:on=10min,off=30min")
    span, share, starts = 800 * 60 * SECOND, 0.0, 0
    for client in range(2000):
        listed = intervals(made.of_client(client, fold(key(3), client)), span)
        share += sum(min(end, span) - min(start, span) for start, end in listed) / span / 2000
        starts += listed[0].start == 0
    # The variance of a client's share is about 2 p^2 q^2 (on + off) / span, for p = 1/4.
    assert abs(share - 0.25) < 4 * math.sqrt(2 * 0.25**2 * 0.75**2 * 40 / 800 / 2000)
    assert abs(starts / 2000 - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000)


def test_on_and_off_times_are_exponential() -> None:
    """The largest distance from the distribution, of n draws, passes 1.63 / sqrt(n) once in a hundred times."""
    listed = intervals(read_model("markov:on=10min,off=30min").of_client(0, key(5)), FOREVER, most=3000)
    on = [end - start for start, end in listed[1:]]
    off = [b.start - a.end for a, b in pairwise(listed)]
    for times, mean in ((on, 600 * SECOND), (off, 1800 * SECOND)):
        ranked = sorted(1 - math.exp(-time / mean) for time in times)
        assert max(abs(x - (i + 0.5) / len(ranked)) for i, x in enumerate(ranked)) < 1.63 / math.sqrt(len(ranked))


# Day and night.


@given(
    start=st.integers(0, 23),
    length=st.integers(1, 23),
    zone=st.integers(-12, 14),
    at=st.integers(0, 20 * DAY),
)
def test_a_client_is_there_by_its_own_clock(start: int, length: int, zone: int, at: int) -> None:
    end = (start + length) % 24
    found = read_model(f"daily:from={start}h,to={end}h,zone=UTC{zone:+}").of_client(0, key(0)).interval(at)
    local = (at + zone * HOUR) % DAY / HOUR
    here = (local - start) % 24 < length
    assert here == (found.start <= at < found.end)
    if found.start > 0:
        assert found.end - found.start == length * HOUR
        assert (found.start + zone * HOUR) % DAY == start * HOUR


def test_zones_are_drawn_evenly_and_kept() -> None:
    made = read_model("daily:from=22h,to=7h,zones=-5+0+8")
    found = [made.of_client(0, key(seed)).interval(3 * DAY).end // HOUR % 24 for seed in range(600)]
    counts = {end: found.count(end) for end in {*found}}
    assert counts.keys() == {12, 7, 23}, "7:00 in each zone"
    assert all(abs(count - 200) < 4 * math.sqrt(600 / 3 * 2 / 3) for count in counts.values())


def test_jitter_moves_every_start_and_end_evenly() -> None:
    made = read_model("daily:from=22h,to=7h,jitter=30min")
    listed = intervals(made.of_client(0, key(1)), 400 * DAY, most=400)[1:]
    for moved in (
        [start % DAY - 22 * HOUR for start, _ in listed],
        [end % DAY - 7 * HOUR for _, end in listed],
    ):
        ranked = sorted((x / HOUR + 0.5) for x in moved)
        assert 0 <= ranked[0] < ranked[-1] <= 1
        assert max(abs(x - (i + 0.5) / len(ranked)) for i, x in enumerate(ranked)) < 1.63 / math.sqrt(len(ranked))


def test_times_of_the_day() -> None:
    assert TimeOfDay.of_text("6:30").nanoseconds == 6.5 * HOUR
    assert TimeOfDay.of_text("0h").nanoseconds == 0
    for text in ("24h", "25:00", "noon", "-1h"):
        with pytest.raises(ValueError, match="a time of the day"):
            TimeOfDay.of_text(text)


# Traces.


def test_the_lines_of_a_trace(trace: Path) -> None:
    made = read_model(f"trace:{trace}")
    zero, one, two, three = (made.of_client(client, key(0)) for client in range(4))
    second = SECOND
    assert zero.interval(0) == (0, 10 * second)
    assert zero.interval(10 * second) == (20 * second, 30 * second)
    assert zero.interval(30 * second) == zero.interval(105 * second) == (90 * second, 110 * second)
    assert one.interval(0) == (5 * second, 12 * second)
    assert one.interval(12 * second) == (65 * second, 72 * second)
    assert two.interval(123) == (0, FOREVER)
    assert three.interval(0) == (0, 1.5 * second)
    assert three.interval(2 * second) == (50 * second, 60 * second)
    assert three.interval(60 * second) == NEVER_AGAIN


def test_clients_of_a_trace_are_dealt_in_turn_or_by_number(trace: Path) -> None:
    turn, number = read_model(f"trace:{trace}"), read_model(f"trace:{trace},clients=number")
    assert turn.of_client(5, key(0)) == turn.of_client(1, key(0)) == number.of_client(1, key(0))
    assert number.of_client(5, key(0)).interval(0) == NEVER_AGAIN


def test_json_lines_and_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"client": "b", "start": 1, "end": 2, "model": "x"}\n\n{"end": 4, "client": "a", "start": 3, "repeat": 10}\n'
    )
    made = read_model(f"trace:{path}")
    assert made.of_client(0, key(0)).interval(0) == (SECOND, 2 * SECOND), "the order of the file"
    assert made.of_client(1, key(0)).interval(5 * SECOND) == (13 * SECOND, 14 * SECOND)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "has no lines"),
        ("client,start,end\n0,5,3\n", "line 2: end must be after start, got 5 to 3"),
        ("0,0,5\n0,4,6\n", "line 2: client 0 is available already: its times must not overlap"),
        ("0,-1,5\n", "line 1: start must be seconds, at least 0, got '-1'"),
        ("0,0,inf\n", "line 1: end must be seconds, at least 0, got 'inf'"),
        ("0,0\n", "line 1: end must be seconds, at least 0, got None"),
        ("client,start,end,repeat\n0,0,5,4\n", "line 2: end must not be after repeat, got 5 and 4"),
        ("client,start,end,repeat\n0,0,5,9\n0,6,7,8\n", "line 3: client 0 has two values of repeat"),
        ('{"client": 1, "start": 0, "end": 1}\n{"client": }\n', "line 2: is not JSON"),
        ('{"client": null, "start": 0, "end": 1}\n', "line 1: client must be a name or a number"),
        ('{"client": 1, "start": true, "end": 1}\n', "line 1: start must be seconds"),
        ("0,0,5\n" + "1" * 200_000 + ",0,5\n", "line 2: is not CSV"),
        (b"\xff\xfe", "is not a text in UTF-8"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(content: str | bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as error:
        read_model(f"trace:{path}")
    assert reason in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sometimes", "unknown availability 'sometimes'"),
        ("markov:on=10min", "a value is missing"),
        ("markov:on=0s,off=1h", "on must be a positive time"),
        ("daily:from=22h", "a value is missing: write it as daily:from=TIME,to=TIME"),
        ("daily:from=7h,to=7h", "end must differ from the start"),
        ("daily:from=7h,to=9h,jitter=1h", "jitter must be less than half"),
        ("daily:from=7h,to=9h,zone=Paris", "zones must be a time zone such as UTC+2"),
        ("daily:from=7h,to=9h,zone=UTC+20", "must be from -14 to 14"),
        ("trace:nowhere.csv", "nowhere.csv cannot be read"),
        ("trace:nowhere.csv,clients=all", "clients must be one of number, turn"),
    ],
)
def test_a_wrong_model_is_refused_in_the_fleet_file(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f'[[device]]\nname = "a"\nclients = 1\nflops = 1e9\navailability = "{text}"\n')
    with pytest.raises(ConfigError) as error:
        Fleet.read(path)
    assert str(error.value).startswith(f"{path}: device 1 (a): availability: ")
    assert reason in str(error.value)
