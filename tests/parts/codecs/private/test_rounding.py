"""Clipping and conditional rounding: norms are bounded, and rounding is unbiased where nothing is drawn again."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core.random import Key, key, uniform
from gossamer.parts.codecs import distributed_noise as rounding
from gossamer.parts.codecs.distributed_noise import norm_bound, rounded
from gossamer.parts.codecs.private import clipped

VECTORS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(lambda x: torch.tensor(x, dtype=torch.float64))


@given(VECTORS, st.floats(1e-3, 1e3))
def test_clipping_bounds_the_norm_and_keeps_the_direction(x: torch.Tensor, clip: float) -> None:
    found = clipped(x, clip)
    assert float(found.norm()) <= clip
    if float(x.norm()) < clip * (1 - 1e-9):
        assert torch.equal(found, x)
    elif float(x.norm()) > 0:
        assert torch.allclose(found, x * (clip / x.norm()), rtol=1e-9, atol=1e-12)


def test_the_largest_floats_are_clipped() -> None:
    x = torch.full((3,), torch.finfo(torch.float32).max)
    assert float(clipped(x, 2.0).norm()) == pytest.approx(2)
    assert float(clipped(x.double() * 1e200, 2.0).norm()) <= 2


@given(VECTORS, st.floats(0.1, 300), st.integers(0, 1000))
def test_the_norm_of_rounded_vectors_is_bounded(x: torch.Tensor, clip: float, seed: int) -> None:
    y = clipped(x, clip)
    found = rounded(y, norm_bound(clip, len(y)), key(seed))
    assert float(found.double().norm()) <= norm_bound(clip, len(y))
    assert float((found - y).abs().max()) < 1


def test_the_bound_of_the_paper() -> None:
    assert norm_bound(3.0, 1) == pytest.approx(math.sqrt(9 + 0.25 + 3 + 0.5))
    assert norm_bound(0.0, 10_000) == pytest.approx(math.sqrt(2500 + 50))
    assert norm_bound(1e-9, 1) == pytest.approx(math.sqrt(0.75), rel=1e-6)
    assert norm_bound(1e4, 1) < 1e4 + 1


def test_rounding_is_unbiased_inside_the_bound() -> None:
    y = (uniform(key(1), 50, dtype=torch.float64) - 0.5) * 6
    mean = torch.stack([rounded(y, 1e9, key(seed)) for seed in range(1500)]).double().mean(0)
    assert float((mean - y).abs().max()) < 5 * 0.5 / math.sqrt(1500)


def test_a_vector_that_is_never_short_enough_is_rounded_towards_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Key] = []

    def ones(at: Key, n: int, **more: Any) -> Tensor:
        tried.append(at)
        return torch.ones(n, dtype=torch.float64)

    monkeypatch.setattr(rounding, "uniform", ones)
    found = rounded(torch.tensor([1.7, -1.7, 0.2, 0.0], dtype=torch.float64), 1.5, key(1))
    assert found.tolist() == [1, -1, 0, 0]
    assert len(set(tried)) == rounding.ATTEMPTS
