"""The small language of splits, channels, schedules and flags' values."""

from dataclasses import dataclass
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.errors import ConfigError
from gossamer.core.specs import nearest, parse, read, spec, texts, unknown, usage, written
from gossamer.parts.channels import CHANNELS, Lossy, Perfect, Wireless
from gossamer.parts.solvers import LR_SCHEDULES, Constant, Cosine, Exponential, Steps
from gossamer.tasks.data import SPLITS, Dirichlet, DirichletClient, Iid, Labels, Natural, Shards, Slices

rates = st.floats(0, 1, exclude_min=True)
counts = st.integers(1, 10**9)
alphas = st.floats(0, 1e300, exclude_min=True)

SCHEDULED = st.one_of(
    st.just(Constant()),
    st.just(Cosine()),
    st.builds(Exponential, rates),
    st.builds(Steps, st.lists(st.integers(0, 10**6), max_size=5).map(tuple), rates),
)
CARRIED = st.one_of(st.just(Perfect()), st.builds(Lossy, st.floats(0, 1)))
DEALT = st.one_of(
    st.builds(Iid, counts),
    st.builds(Natural, counts),
    st.builds(Dirichlet, alphas, counts),
    st.builds(DirichletClient, alphas, counts),
    st.builds(Labels, counts, counts),
    st.builds(Shards, counts, counts),
    st.builds(Slices, counts, counts),
)


@given(SCHEDULED)
def test_a_schedule_is_read_back_as_it_was_written(schedule: Any) -> None:
    assert parse(spec(schedule, LR_SCHEDULES), LR_SCHEDULES, "schedule") == schedule


@given(CARRIED)
def test_a_channel_is_read_back_as_it_was_written(channel: Any) -> None:
    assert parse(spec(channel, CHANNELS), CHANNELS, "channel") == channel


@given(DEALT)
def test_a_split_is_read_back_as_it_was_written(rule: Any) -> None:
    assert parse(spec(rule, SPLITS), SPLITS, "split") == rule


@pytest.mark.parametrize("name", [*SPLITS, *CHANNELS, *LR_SCHEDULES])
def test_every_rule_shows_its_syntax(name: str) -> None:
    cls = {**SPLITS, **CHANNELS, **LR_SCHEDULES}[name]
    assert usage(name, cls).startswith(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dirichlet:0.3", Dirichlet(0.3)),
        ("dirichlet:0.3,10", Dirichlet(0.3, 10)),
        ("dirichlet:0.3,min_samples=10", Dirichlet(0.3, 10)),
        ("dirichlet:min_samples=10,alpha=0.3", Dirichlet(0.3, 10)),
        ("iid", Iid()),
    ],
)
def test_fields_come_in_order_or_by_name(text: str, value: Any) -> None:
    assert parse(text, SPLITS, "split") == value


def test_several_rounds_are_joined_by_plus() -> None:
    assert parse("steps:150+250,0.1", LR_SCHEDULES, "schedule") == Steps((150, 250), 0.1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dirchlet:0.3", "unknown split 'dirchlet': did you mean dirichlet? known: dirichlet, dirichlet-client, iid"),
        ("dirichlet", "split 'dirichlet': a value is missing: write it as dirichlet:ALPHA[,min_samples=1]"),
        ("dirichlet:x", "split 'dirichlet:x': alpha must be a number, got 'x'"),
        ("dirichlet:0", "split 'dirichlet:0': alpha must be a positive number, got 0"),
        ("dirichlet:1,2,3", "'3' does not fit: write it as dirichlet:ALPHA[,min_samples=1]"),
        ("dirichlet:1,leest=2", "'leest=2' does not fit"),
        ("dirichlet:1,alpha=2", "'alpha=2' does not fit"),
        ("labels:1.5", "k must be a whole number, got '1.5'"),
        ("", "unknown split ''"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text, SPLITS, "split")
    assert reason in str(refused.value)


def test_every_mistake_in_a_spec_is_listed() -> None:
    with pytest.raises(ConfigError) as refused:
        parse("dirichlet:x,min_samples=y,more=3", SPLITS, "split")
    assert len(refused.value.mistakes) == 3


@dataclass(frozen=True)
class Unheard:
    volume: int = 3


@pytest.mark.parametrize("value", ["plain", "a,b", "a=b", 'a"b', '"', ",=", "fleet=a,b"])
def test_a_value_may_have_any_sign_in_it(value: str) -> None:
    assert texts(f"3,{written('seed', value)}", Wireless) == [("fleet", "3"), ("seed", value)]


def test_a_value_without_a_name_is_written_as_python_shows_it() -> None:
    assert spec(Unheard(), CHANNELS) == "Unheard(volume=3)"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("-1e-3", float, -0.001),
        ("none", Optional[int], None),  # noqa: UP045
        ("3", int | None, 3),
        ("yes", bool, True),
        ("0", bool, False),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("none", Literal["a"] | None, None),
        ("1,2", tuple[int, ...], (1, 2)),
        ("1+2", tuple[int, ...], (1, 2)),
        ("a,b", str, "a,b"),
        ("3", Any, 3),
        ("0.5", Any, 0.5),
        ("half", Any, "half"),
    ],
)
def test_a_value_is_read_by_its_type(text: str, kind: Any, value: Any) -> None:
    found = read(text, kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("x", int, "a whole number"),
        ("1.5", int, "a whole number"),
        ("x", float, "a number"),
        ("maybe", bool, "true or false"),
        ("c", Literal["b", "a"], "one of a, b"),
        ("3", Literal[1, 2], "one of 1, 2"),
        ("x", int | None, "a whole number or none"),
        ("x", dict, "a dict, which cannot be written on the command line"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(text: str, kind: Any, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        read(text, kind)
    assert str(refused.value) == reason


def test_only_a_near_name_is_suggested() -> None:
    flags = ["--epochs", "--rounds", "--per-round"]
    assert nearest("--epoch", flags) == "--epochs"
    assert nearest("--bogus", flags) is None
    assert unknown("flag", "--bogus", flags) == "unknown flag '--bogus': known: --epochs, --per-round, --rounds"
