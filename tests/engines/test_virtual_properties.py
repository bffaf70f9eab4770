"""Properties of the virtual clock, for devices and schedules that are drawn at random."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core.availability import SECOND
from gossamer.core.schedule import Schedule
from gossamer.fleet.units import Duration
from gossamer.parts.schedules import Deadline, FedAsync, FedBuff, Staleness, Synchronous
from helpers.event_reference import Array, Problem, Reference, Rules
from helpers.stub_run import StubRun
from helpers.toy_devices import Scripted

ROUNDS = 6
HORIZON = 60
"""Seconds after which drawn clients stay, so that no run lacks clients."""


class NoTraining(Problem):
    """A problem whose models do not change."""

    def trained(self, client: int, version: int, weight: Array, bias: Array) -> tuple[Array, Array]:
        return weight, bias


@st.composite
def scripts(draw: st.DrawFn, clients: int) -> Scripted:
    """Devices with short times and intervals of whole seconds, so that many events happen at the same time."""
    lengths = st.integers(0, 4)
    seconds = tuple((draw(lengths), draw(lengths), draw(lengths)) for _ in range(clients))
    intervals = tuple(draw(intervals_of()) for _ in range(clients))
    lost = draw(st.sets(st.integers(0, clients - 1), max_size=clients // 2))
    return Scripted(seconds, intervals, draw(st.booleans()), tuple(sorted(lost)))


@st.composite
def intervals_of(draw: st.DrawFn) -> tuple[tuple[float, float | None], ...]:
    times = sorted(draw(st.sets(st.integers(0, HORIZON - 1), max_size=10)))
    pairs = list(zip(times[::2], times[1::2], strict=False))
    return (*pairs, (HORIZON, None))


@st.composite
def schedules(draw: st.DrawFn, cohort: int, clients: int) -> tuple[Schedule, Rules]:
    """A schedule, and the same in words."""
    kind = draw(st.sampled_from(["sync", "deadline", "fedbuff", "fedasync"]))
    if kind == "sync":
        return Synchronous(), Rules(cohort)
    if kind == "deadline":
        length, extra = draw(st.integers(1, 8)), draw(st.integers(0, min(2, clients - cohort)))
        fold = draw(st.booleans())
        rules = Rules(cohort + extra, cohort if extra else None, length * SECOND, keeps=fold)
        over = (cohort + extra) / cohort
        return Deadline(Duration.of_text(f"{length}s"), over, "fold" if fold else "drop"), rules
    most, slots = draw(st.none() | st.integers(0, 2)), draw(st.integers(1, clients))
    size = draw(st.integers(1, clients + 1)) if kind == "fedbuff" else 1

    def factor(staleness: int) -> float | None:
        return None if most is not None and staleness > most else 1.0

    rules = Rules(slots, size, refills=True, keeps=True, factor=factor)
    if kind == "fedasync":
        return FedAsync(concurrency=slots, staleness=Staleness(0), max_staleness=most), rules
    return FedBuff(size, concurrency=slots, staleness=Staleness(0), max_staleness=most), rules


Case = tuple[int, int, Scripted, Schedule, Rules]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    clients = draw(st.integers(1, 6))
    cohort = draw(st.integers(1, clients))
    return clients, cohort, draw(scripts(clients)), *draw(schedules(cohort, clients))


def records(case: Case) -> tuple[StubRun, list[dict[str, Any]]]:
    clients, cohort, devices, schedule, _ = case
    run = StubRun(clients, cohort, schedule, devices, ROUNDS)
    return run, [run.round() for _ in range(ROUNDS)]


@settings(max_examples=200)
@given(cases())
def test_events_are_those_of_the_reference(case: Case) -> None:
    clients, _, devices, _, rules = case
    one = np.zeros((1, 1)), np.zeros(1, np.int64)
    problem = NoTraining([one] * clients, np.zeros((1, 1)), np.zeros(1), 1.0, 1, 1, 100)
    expected = Reference(problem, rules, devices, ROUNDS).run()
    _, found = records(case)
    for record, ours in zip(found, expected, strict=True):
        columns = ours.columns()
        assert {name: record["tasks"][name] for name in columns} == columns
        assert record["time"] == ours.time / SECOND
        assert dict.fromkeys(ours.energy, 0.0) | record["energy"] == pytest.approx(ours.energy, abs=1e-9)
        assert sum(record["tasks"]["joules"]) == pytest.approx(sum(ours.energy.values()) - ours.energy["idle"])


@settings(max_examples=100)
@given(cases())
def test_clients_and_slots_are_used_once(case: Case) -> None:
    clients, _, devices, _, rules = case
    run, found = records(case)
    times = [record["time"] for record in found]
    assert times == sorted(times), "the clock goes back"
    spans = []
    for number, record in enumerate(found):
        tasks = record["tasks"]
        assert max(Counter(tasks["client"]).values(), default=0) <= 1
        assert max(tasks["end"], default=0) <= record["time"] * SECOND
        assert all(version <= number for version in tasks["version"])
        assert tasks["outcome"].count("folded") <= (rules.goal or clients)
        spans += list(zip(tasks["start"], tasks["end"], tasks["client"], strict=True))
    spans += [(flight.start, 2**62, flight.client) for flight in run.dispatcher.flights.values()]
    for client in range(clients):
        mine = sorted(span[:2] for span in spans if span[2] == client)
        assert all(before[1] <= after[0] for before, after in pairwise(mine)), "two tasks of a client at once"
        there = devices.availability(client)
        assert all(there.interval(start).start <= start for start, _ in mine), "a client starts while it is away"
    changes = sorted((time, step) for start, end, _ in spans for time, step in ((start, 1), (end, -1)))
    busy = 0
    for _, step in changes:
        busy += step
        assert busy <= rules.slots
