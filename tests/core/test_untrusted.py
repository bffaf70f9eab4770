"""What is refused before anything is used, and what becomes of a text from another machine."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.errors import PayloadError
from gossamer.core.untrusted import (
    LARGEST,
    LONGEST,
    MOST_SAMPLES,
    ReadArrays,
    check_samples,
    check_values,
    largest,
    shown,
    under,
)


@given(st.text(max_size=400), st.integers(10, 300))
def test_a_text_is_printable_and_short(text: str, longest: int) -> None:
    found = shown(text, longest)
    assert len(found) <= longest
    assert found.isprintable()
    if text.isprintable() and len(text) <= longest:
        assert found == text


def test_control_characters_are_visible() -> None:
    assert shown("a\nb\x1b[31m\x00\u202e") == r"a\nb\x1b[31m\x00\u202e"
    assert shown("x" * (LONGEST + 1)) == "x" * (LONGEST - 3) + "..."


@pytest.mark.parametrize("samples", [0.0, -1.0, 0.5, 1e300, 3.5e38, 2.0**62, MOST_SAMPLES + 1.0])
def test_samples_that_nobody_has(samples: float) -> None:
    with pytest.raises(PayloadError, match="the number of samples must be"):
        check_samples(samples)


def test_samples_that_somebody_may_have() -> None:
    check_samples(1.0)
    check_samples(float(MOST_SAMPLES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [2 * LARGEST, -2 * LARGEST, 3e38])
def test_a_finite_value_that_is_far_too_large_is_named(dtype: torch.dtype, value: float) -> None:
    arrays = {"fine": torch.ones(3), "bad": torch.tensor([1.0, value]).to(dtype)}
    with pytest.raises(PayloadError, match=r"'bad' holds values above 1.13e\+15, which are far too large"):
        check_values(arrays)


def test_codecs_refuse_what_is_not_finite() -> None:
    check_values(
        {"a": torch.tensor([math.inf]), "b": torch.tensor([math.nan]), "c": torch.tensor([7]), "d": torch.ones(0)}
    )
    check_values({"a": torch.tensor([LARGEST, -LARGEST])})


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=9))
def test_the_largest_magnitude(values: list[float]) -> None:
    assert largest([torch.tensor(values)]) == max(map(abs, values), default=0.0)


def test_the_sum_of_the_largest_uploads_is_finite() -> None:
    """As the documentation of ``LARGEST`` says: 2**16 clients with the most samples, scaled up by 2**20."""
    most = torch.finfo(torch.float32).max
    assert most > 2**16 * MOST_SAMPLES * 2**20 * LARGEST


def test_arrays_that_nobody_reads_are_refused() -> None:
    one = torch.ones(1)
    arrays = ReadArrays({"a": one, "rest.a": one, "rest.b": one})
    assert arrays["a"] is one
    rest = under(arrays, "rest.", ["rest.a", "rest.b"])
    assert rest.get("a") is one
    assert rest.get("c") is None
    with pytest.raises(PayloadError, match=r"unexpected array 'rest\.b'"):
        arrays.check()
    assert [name for name, _ in rest.items()] == ["a", "b"]
    arrays.check()
    assert under({"rest.a": one}, "rest.", ["rest.a"]) == {"a": one}
