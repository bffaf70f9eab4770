"""Gaussian noise for privacy: its distribution, its tails, and where its bits come from."""

import doctest
import math
import os

import numpy as np
import pytest
import torch

import gossamer.core.random.private
from gossamer.core.random import Key, fold, key, words
from gossamer.core.random.private import BLOCK, _normal, gaussian, words_of

KEY = key(11)
MANY = 200_000


def test_examples_hold() -> None:
    assert doctest.testmod(gossamer.core.random.private).failed == 0


def drawn(secure: bool) -> torch.Tensor:
    return gaussian(KEY, MANY, secure=secure)


@pytest.mark.parametrize("secure", [False, True])
def test_draws_are_standard_normal(secure: bool) -> None:
    x = drawn(secure)
    spread = 5 / math.sqrt(MANY)  # five standard errors; the moments of higher order have larger ones
    for power, moment, error in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert float((x**power).mean()) == pytest.approx(moment, abs=spread * error)
    ordered = np.sort(x.numpy())
    cumulative = 0.5 * (1 + torch.erf(torch.from_numpy(ordered) / math.sqrt(2)).numpy())
    steps = np.arange(MANY + 1) / MANY
    distance = max((steps[1:] - cumulative).max(), (cumulative - steps[:-1]).max())
    assert distance < 2.2 / math.sqrt(MANY)  # Kolmogorov-Smirnov: exceeded with probability 1e-4


@pytest.mark.parametrize("secure", [False, True])
def test_draws_are_independent(secure: bool) -> None:
    x = drawn(secure)
    for lag in (1, 2, 3):
        assert abs(float((x[lag:] * x[:-lag]).mean())) < 5 / math.sqrt(MANY)
        assert abs(float((x[lag:] ** 2 * x[:-lag] ** 2).mean()) - 1) < 5 * math.sqrt(8 / MANY)


def test_a_pair_is_the_transform_of_box_and_muller() -> None:
    drawn = words(KEY, 200)
    unsigned = drawn.numpy().view(np.uint64)
    found = gaussian(KEY, 200).view(-1, 2)
    for (first, second), pair in zip(unsigned.reshape(-1, 2).tolist(), found.tolist(), strict=True):
        radius = math.sqrt(-2 * math.log(((first >> 1) + 0.5) / 2**63))
        angle = (second >> 11) * math.pi / 2**55
        point = [radius * math.cos(angle), radius * math.sin(angle)]
        expected = point[::-1] if second & 1 else point
        signs = [-1 if second & 2 else 1, -1 if second & 4 else 1]
        assert pair == pytest.approx([s * x for s, x in zip(signs, expected, strict=True)], rel=1e-14)


def test_tails_reach_nine_standard_deviations() -> None:
    smallest, largest = torch.tensor([0, 0]), torch.tensor([-1, 0])
    assert float(_normal(smallest)[0]) == pytest.approx(math.sqrt(2 * 64 * math.log(2)), rel=1e-14)
    assert float(_normal(smallest)[0]) > 9.4
    assert _normal(largest).tolist() == [0, 0]
    # In the tail, neighbouring words give different draws: here 2**10 of them beyond 8.5 standard deviations.
    near = torch.stack((torch.arange(2**10) * 2, torch.zeros(2**10, dtype=torch.int64)), 1).reshape(-1)
    assert len(_normal(near)[::2].unique()) == 2**10
    assert float(_normal(near)[::2].min()) > 8.5


def test_bits_follow_from_the_key_and_not_from_the_length() -> None:
    whole = gaussian(KEY, BLOCK + 5)
    for n in (0, 1, 2, 7, BLOCK, BLOCK + 1):
        assert torch.equal(gaussian(KEY, n), whole[:n])
    assert not torch.equal(gaussian(fold(KEY, 1), 5), whole[:5])
    assert torch.equal(gaussian(KEY, 9, dtype=torch.float32), whole[:9].float())


def test_secure_draws_are_half_of_four_draws_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = words(KEY, 16)
    monkeypatch.setattr(os, "urandom", lambda n: stream[: n // 8].numpy().tobytes())
    assert torch.equal(words_of(Key(0, 0), 16, True), stream)
    four = gaussian(KEY, 16).view(4, 4)
    assert torch.equal(gaussian(Key(0, 0), 3, secure=True), ((four[0] + four[1] + four[2] + four[3]) * 0.5)[:3])


def test_secure_draws_do_not_repeat() -> None:
    assert not torch.equal(gaussian(KEY, 8, secure=True), gaussian(KEY, 8, secure=True))
    assert torch.equal(words_of(KEY, 5, False, start=2), words(KEY, 7)[2:])
    assert len(words_of(KEY, 0, True)) == 0
