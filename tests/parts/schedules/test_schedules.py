"""Schedules: how many clients start, how many updates an aggregation takes, and what a stale update counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.specs import parse, spec
from gossamer.parts.schedules import SCHEDULES, Deadline, FedAsync, FedBuff, Staleness, Synchronous


def schedule(text: str) -> Any:
    return parse(text, SCHEDULES, "schedule")


@pytest.mark.parametrize(
    ("text", "slots", "goal", "refills", "keeps_late"),
    [
        ("sync", 10, None, False, False),
        ("deadline:60s", 10, None, False, False),
        ("deadline:60s,over=1.3", 13, 10, False, False),
        ("deadline:60s,over=1.01", 11, 10, False, False),
        ("deadline:60s,late=fold", 10, None, False, True),
        ("fedbuff", 10, 10, True, True),
        ("fedbuff:buffer=3,concurrency=40", 40, 3, True, True),
        ("fedasync", 10, 1, True, True),
        ("fedasync:concurrency=4", 4, 1, True, True),
    ],
)
def test_numbers_of_clients(text: str, slots: int, goal: int | None, refills: bool, keeps_late: bool) -> None:
    made = schedule(text)
    assert (made.slots(10), made.goal(10), made.refills, made.keeps_late) == (slots, goal, refills, keeps_late)


def test_a_deadline_has_nanoseconds() -> None:
    assert schedule("deadline:1.5min").deadline == 90 * 10**9
    assert all(schedule(text).deadline is None for text in ("sync", "fedbuff", "fedasync"))


@given(st.integers(1, 100), st.integers(0, 100))
def test_over_selection_is_rounded_up_but_for_rounding_errors(cohort: int, extra: int) -> None:
    over = (cohort + extra) / cohort
    assert Deadline(schedule("deadline:1s").after, over).slots(cohort) == cohort + extra


@given(st.integers(0, 50))
def test_factors_are_those_of_the_papers(staleness: int) -> None:
    assert Synchronous().factor(staleness) == 1
    assert FedBuff().factor(staleness) == pytest.approx(1 / (1 + staleness) ** 0.5)
    assert FedBuff(staleness=Staleness(0)).factor(staleness) == 1
    assert FedAsync().factor(staleness) == pytest.approx(0.6 / (1 + staleness) ** 0.5)
    hinge = schedule("fedasync:mix=1,staleness=hinge/10/4").factor(staleness)
    assert hinge == pytest.approx(1 if staleness <= 4 else 1 / (10 * (staleness - 4) + 1))
    assert (FedBuff(max_staleness=3).factor(staleness) is None) == (staleness > 3)


@pytest.mark.parametrize(
    "text",
    [
        "sync",
        "deadline:90s,over=1.3,late=fold",
        "fedbuff:buffer=3,concurrency=40,staleness=hinge/10/4,max_staleness=5",
        "fedasync:mix=0.3,staleness=1",
    ],
)
def test_a_schedule_is_read_back_from_its_text(text: str) -> None:
    made = schedule(text)
    assert schedule(spec(made, SCHEDULES)) == made
