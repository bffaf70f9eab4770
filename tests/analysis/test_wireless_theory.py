"""What is proved of training over links that lose messages: sums over all sets, the printed formulas, and a run."""

import doctest
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.analysis.theory import (
    CORRECTIONS,
    WirelessSetting,
    absence,
    gradient_bound,
    participation,
    participation_printed,
    received_mean,
    reconstruction_error,
)
from gossamer.core.errors import ConfigError
from helpers.markdown import parsed
from helpers.narrow import present
from reproduce.common import store
from reproduce.wireless import bound as script

Drawn = list[tuple[int, float]]
Arrivals = tuple[int, ...]

SETTING = WirelessSetting(
    smoothness=3.0,
    gradient=2.0,
    weights=1.5,
    sizes=(5, 3, 8),
    outages=(0.1, 0.7, 0.4),
    ratios=(0.2, 0.0, 0.6),
    measurements=40,
    reconstruction=1.2,
    isometry=0.3,
    coefficient=0.5,
)


def sets(outages: Sequence[float]) -> Iterator[tuple[Arrivals, float]]:
    """Every set of devices whose messages may arrive, with its probability."""
    for arrived in itertools.product((0, 1), repeat=len(outages)):
        yield arrived, math.prod(1 - q if a else q for a, q in zip(arrived, outages, strict=True))


def apart(sizes: Sequence[int], arrived: Arrivals) -> float:
    """The sum over devices of (1/K - a / X)^2, for one set."""
    counted = sum(k * a for k, a in zip(sizes, arrived, strict=True))
    return sum((1 / sum(sizes) - (a / counted if counted else 0)) ** 2 for a in arrived)


def expected(outages: Sequence[float], value: Callable[[Arrivals], float]) -> float:
    return math.fsum(chance * value(arrived) for arrived, chance in sets(outages))


# Participation.


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=7))
def test_expectations_are_sums_over_all_sets(drawn: Drawn) -> None:
    sizes, outages = [k for k, _ in drawn], [q for _, q in drawn]
    marks = [math.cos(u) for u in range(len(sizes))]

    def share(arrived: Arrivals) -> float:
        counted = sum(k * a for k, a in zip(sizes, arrived, strict=True))
        return sum(m * k * a for m, k, a in zip(marks, sizes, arrived, strict=True)) / counted if counted else 0

    def missing(arrived: Arrivals) -> float:
        return 4 * (1 - sum(k * a for k, a in zip(sizes, arrived, strict=True)) / sum(sizes)) ** 2

    near: dict[str, Any] = {"rel": 1e-9, "abs": 1e-12}
    assert participation(sizes, outages) == pytest.approx(expected(outages, lambda a: apart(sizes, a)), **near)
    assert received_mean(sizes, outages, marks) == pytest.approx(expected(outages, share), **near)
    assert absence(sizes, outages) == pytest.approx(expected(outages, missing), **near)


def test_twelve_devices_too() -> None:
    sizes, outages = [7 + 11 * u % 13 for u in range(12)], [u / 11 for u in range(12)]
    assert participation(sizes, outages) == pytest.approx(expected(outages, lambda a: apart(sizes, a)), rel=1e-9)


def test_a_tiny_outage_keeps_its_digits() -> None:
    sizes, q = [3, 4, 5], 1e-12
    one = sum(apart(sizes, tuple(int(u != lost) for u in range(3))) for lost in range(3))
    assert participation(sizes, [q] * 3) == pytest.approx(q * one, rel=1e-9)


def test_hundreds_of_devices_agree_with_a_binomial() -> None:
    devices, q = 300, 0.3

    def chance(n: int) -> float:
        return math.comb(devices, n) * (1 - q) ** n * q ** (devices - n)

    wanted = (
        sum(chance(n) * ((devices - n) + n * (1 - devices / n) ** 2) for n in range(1, devices)) / (7 * devices) ** 2
    )
    assert participation([7] * devices, [q] * devices) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("sizes", [(4,), (1, 2), (9, 1, 1, 30)])
def test_nobody_and_everybody(sizes: tuple[int, ...]) -> None:
    devices, total = len(sizes), sum(sizes)
    all_, none = [0.0] * devices, [1.0] * devices
    assert participation(sizes, all_) == absence(sizes, all_) == 0
    assert participation(sizes, none) == pytest.approx(devices / total**2)
    assert absence(sizes, none) == pytest.approx(4)
    assert received_mean(sizes, none, [1.0] * devices) == 0
    assert received_mean(sizes, all_, [1.0] * devices) == pytest.approx(1)
    assert participation_printed(sizes, all_) == pytest.approx((2**devices - 2) / total**2)
    assert participation_printed(sizes, none) == pytest.approx((2**devices - 1) / total**2)


def test_as_printed_it_grows_with_the_number_of_sets() -> None:
    found = [participation_printed([10] * devices, [0.5] * devices) * (10 * devices) ** 2 for devices in (4, 8, 12)]
    assert [value / 2**devices for value, devices in zip(found, (4, 8, 12), strict=True)] == pytest.approx(
        [1] * 3, abs=0.5
    )
    true = [participation([10] * devices, [0.5] * devices) * (10 * devices) ** 2 for devices in (4, 8, 12)]
    assert max(true) < 20


def test_as_printed_symbol_for_symbol() -> None:
    sizes, (p, q), total = (2, 3), (0.25, 0.5), 5
    wanted = (1 / total - 0.75 * 0.5 / 2) ** 2 + (1 / total - 0.25 * 0.5 / 3) ** 2 + (1 / total - 0.75 * 0.5 / 5) ** 2
    assert participation_printed(sizes, (p, q)) == pytest.approx(wanted)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=8), st.data())
def test_absence_rises_with_every_outage(drawn: Drawn, data: st.DataObject) -> None:
    sizes, outages = [k for k, _ in drawn], [q for _, q in drawn]
    worse = list(outages)
    u = data.draw(st.integers(0, len(sizes) - 1))
    worse[u] = data.draw(st.floats(outages[u], 1))
    assert absence(sizes, worse) >= absence(sizes, outages) - 1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=8), st.data())
def test_among_equals_participation_rises_with_every_outage(outages: list[float], data: st.DataObject) -> None:
    def given_some(q: list[float]) -> float:
        nobody = math.prod(q)
        return (participation([3] * len(q), q) - nobody / len(q) / 9) / (1 - nobody)

    u = data.draw(st.integers(0, len(outages) - 1))
    worse = [max(q, data.draw(st.floats(q, 0.999))) if v == u else q for v, q in enumerate(outages)]
    assert given_some(worse) >= given_some(outages) - 1e-9


def test_a_round_of_one_small_device_is_worse_than_none() -> None:
    assert participation((1, 99), (0.0, 1.0)) > 1000 * participation((1, 99), (1.0, 1.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=2, max_size=7))
def test_where_some_message_arrives_absence_is_the_smaller_bound(drawn: Drawn) -> None:
    sizes, outages = [k for k, _ in drawn], [0.0, *(q for _, q in drawn[1:])]
    assert absence(sizes, outages) <= sum(k * k for k in sizes) * participation(sizes, outages) * (1 + 1e-9) + 1e-12


# The bounds.


def printed(s: WirelessSetting, rounds: int, eta: float, gap: float) -> dict[str, float]:
    """Theorem 1 as it is printed, symbol for symbol."""
    k, c, d1, g, big_s = s.samples, s.reconstruction, s.isometry + 1, s.gradient, s.measurements
    subsets = participation_printed(s.sizes, s.outages)
    return {
        "start": 2 / (eta * rounds) * gap,
        "pruning": 2 * s.smoothness**2 * s.weights**2 * sum(s.ratios),
        "noise": 2 * g**2 / k,
        "signs": 12 * c**2,
        "measuring": 12 * d1 * c**2 * g**2 / (big_s * k),
        "retained signs": 12 * c**2 * sum(s.outages),
        "retained measuring": 12 * d1 * c**2 * g**2 * sum(s.outages) / (big_s * k),
        "step": s.smoothness * eta * g**2 / k,
        "participation": 2 * k * g**2 * subsets,
    }


def test_bounds_are_as_printed() -> None:
    wanted = printed(SETTING, 30, 0.1, 2.5)
    assert gradient_bound(SETTING, 30, 0.1, 2.5) == pytest.approx(wanted)
    lemma = reconstruction_error(SETTING)
    assert lemma == pytest.approx({name: wanted[name] / 2 for name in lemma})


MEAN_WEIGHT = received_mean(SETTING.sizes, SETTING.outages, SETTING.outages)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("mean", {"noise": 16, "measuring": 16, "retained measuring": 16, "step": 16, "participation": 98 / 16}),
        ("scale", {"signs": 4 / 16, "retained signs": 4 / 16}),
        ("coefficient", {"retained signs": 0.25, "retained measuring": 0.25}),
        (
            "received",
            {
                "retained signs": MEAN_WEIGHT / 1.2,
                "retained measuring": MEAN_WEIGHT / 1.2,
                "pruning": received_mean(SETTING.sizes, SETTING.outages, SETTING.ratios) / 0.8,
            },
        ),
        ("triangle", {"pruning": 2, "participation": 2}),
        (
            "participation",
            {
                "participation": participation(SETTING.sizes, SETTING.outages)
                / participation_printed(SETTING.sizes, SETTING.outages)
            },
        ),
        (
            "absence",
            {
                "participation": absence(SETTING.sizes, SETTING.outages)
                / participation_printed(SETTING.sizes, SETTING.outages)
                / 16
            },
        ),
        ("full", {"noise": 0}),
        ("step", {"step": 0}),
    ],
)
def test_a_correction_changes_its_terms_alone(name: str, factors: dict[str, float]) -> None:
    before, after = (gradient_bound(SETTING, 30, 0.1, 2.5, corrected) for corrected in ((), (name,)))
    assert after == pytest.approx({term: value * factors.get(term, 1) for term, value in before.items()})


def test_stale_gradients_are_a_separate_term() -> None:
    after = gradient_bound(SETTING, 30, 0.1, 2.5, ("stale", "mean", "coefficient"))
    assert after["stale"] == pytest.approx(6 * 0.25 * 4 * 1.2)


def test_where_nothing_is_measured_retained_or_lost_gradient_descent_is_left() -> None:
    plain = replace(SETTING, outages=(0.0,) * 3, ratios=(0.0,) * 3, reconstruction=0.0, coefficient=0.0)
    terms = gradient_bound(plain, 30, 0.1, 2.5, CORRECTIONS)
    assert {name: term for name, term in terms.items() if term} == pytest.approx({"start": 2 * 2.5 / (0.1 * 30)})


def test_with_mean_alone_the_bound_is_vacuous() -> None:
    assert gradient_bound(SETTING, 30, 0.1, 2.5, ("mean",))["noise"] > SETTING.gradient**2


def test_hundreds_of_devices_are_fine_unless_as_printed() -> None:
    devices = replace(SETTING, sizes=(5,) * 200, outages=(0.3,) * 200, ratios=(0.5,) * 200)
    assert gradient_bound(devices, 30, 0.1, 2.5, CORRECTIONS)["pruning"] == pytest.approx(4 * 9 * 2.25 * 0.5)
    with pytest.raises(ConfigError, match="200 devices have too many sets, at most 12"):
        gradient_bound(devices, 30, 0.1, 2.5)


@pytest.mark.parametrize("corrected", [(), CORRECTIONS, ("mean", "participation")])
@pytest.mark.parametrize(
    ("field", "ascending"),
    [
        ("gradient", (1.0, 2.0, 5.0)),
        ("weights", (1.0, 2.0, 5.0)),
        ("ratios", ((0.0, 0.0, 0.0), (0.2, 0.1, 0.5), (1.0, 1.0, 1.0))),
        ("measurements", (1000, 100, 10)),
        ("reconstruction", (0.0, 1.0, 2.0)),
    ],
)
def test_bounds_rise_with_what_is_harder(corrected: tuple[str, ...], field: str, ascending: tuple[float, ...]) -> None:
    totals = [
        sum(gradient_bound(replace(SETTING, **cast(Any, {field: v})), 30, 0.1, 2.5, corrected).values())
        for v in ascending
    ]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: participation([1, 2], [0.5]), "2 devices have sizes, but 1 outages"),
        (lambda: participation([], []), "one entry for each device"),
        (lambda: participation([0], [0.5]), "sizes must be integers of at least 1, got 0"),
        (lambda: absence(cast(Any, [1.5]), [0.5]), "sizes must be integers of at least 1, got 1.5"),
        (lambda: participation([1], [1.5]), r"outages must be in \[0, 1\], got 1.5"),
        (lambda: received_mean([1], [0.5], []), "1 devices, but 0 marks"),
        (lambda: participation_printed([1] * 13, [0.5] * 13), "13 devices have too many sets"),
        (lambda: replace(SETTING, gradient=0.0), "gradient must be a positive number, got 0.0"),
        (lambda: replace(SETTING, reconstruction=-1.0), "reconstruction must be zero or a positive number"),
        (lambda: replace(SETTING, isometry=1.0), r"isometry must be in \[0, 1\), got 1.0"),
        (lambda: replace(SETTING, ratios=(0.5,)), "3 devices have sizes, but 1 ratios"),
        (lambda: replace(SETTING, ratios=(0.5, 0.1, 2.0)), r"ratios must be in \[0, 1\], got .*2.0"),
        (lambda: gradient_bound(SETTING, 0, 0.1, 1.0), "rounds must be at least 1, got 0"),
        (lambda: gradient_bound(SETTING, 1, 0.0, 1.0), "rate must be positive, got 0.0"),
        (lambda: gradient_bound(SETTING, 1, 0.1, -1.0), "gap must not be negative, got -1.0"),
        (lambda: gradient_bound(SETTING, 1, 0.1, 1.0, ("means",)), "did you mean mean"),
        (lambda: gradient_bound(SETTING, 1, 0.5, 1.0, ("step",)), "rate must be at most 0.333, got 0.5"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        call()


def test_every_correction_is_explained() -> None:
    text = present(importlib.import_module("gossamer.analysis.theory.wireless").__doc__)
    assert [name for name in CORRECTIONS if f"\n    {name} " not in text] == []


def test_examples_in_the_module_hold() -> None:
    found = doctest.testmod(import_module("gossamer.analysis.theory.wireless"))
    assert (found.failed, found.attempted > 0) == (0, True)


# A run.


@pytest.mark.slow
def test_measured_runs_stay_below_the_corrected_bound(empty: Path) -> None:
    for sent in ("dense", "signs"):
        rows = [script.measured(sent, outage, rounds=6, seeds=1) for outage in (0.0, 0.5)]
        for row in rows:
            assert all(0 < mean < bound for mean, bound in zip(row["mean"], script.bounds(row), strict=True))
        assert rows[0]["mean"][-1] < rows[0]["mean"][0]
        assert script.bounds(rows[1])[-1] > script.bounds(rows[0])[-1]
        script.draw(rows)
        assert "outage 0.5" in (store.PAGES / script.PLOT).read_text() or sent == "signs"
        assert [row["outage"] for row in parsed(script.table(rows))] == ["0", "0.5"]


def test_with_signs_every_term_of_the_corrected_bound_counts() -> None:
    sensed = script.PROBLEM.sensed()
    assert sensed["reconstruction"] > 1 > sensed["isometry"] > 0
    setting = script.setting({"sent": "signs", "outage": 0.5, "longest": 5.0})
    terms = gradient_bound(setting, 100, script.PROBLEM.rate, script.PROBLEM.gap, CORRECTIONS)
    assert {name for name, term in terms.items() if not term} == {"noise", "step"}
