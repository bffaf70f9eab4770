"""Random directions: their moments, the same bits however they are drawn, and sums in a stated order."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core.random import draws, key, tensor
from gossamer.core.random.directions import (
    BITS,
    DIRECTION_KINDS,
    TOGETHER,
    DirectionKind,
    combine,
    direction,
    directions,
    project,
    together,
)

KEY = tensor(key(3))


@pytest.mark.parametrize("kind", DIRECTION_KINDS)
def test_entries_have_mean_0_and_variance_1_and_are_independent(kind: DirectionKind) -> None:
    z = torch.stack([direction(kind, KEY, torch.tensor(j), 4000, 1) for j in range(50)]).double()
    assert abs(z.mean()) < 4 / 4000**0.5 / 50**0.5
    assert abs(z.square().mean() - 1) < 4 * 2**0.5 / 4000**0.5 / 50**0.5
    products = (z @ z.T / 4000) - torch.diag(z.square().mean(1))
    assert products.abs().max() < 5 / 4000**0.5
    other = direction(kind, KEY, torch.tensor(0), 4000, 2).double()
    assert abs((z @ other / 4000).abs().max()) < 5 / 4000**0.5


def test_signs_are_the_bits_of_one_draw() -> None:
    bits = (draws(KEY, torch.tensor(1), 7, layer=3) * 2**BITS).long()
    for place in range(BITS):
        expected = [1.0 if value >> place & 1 else -1.0 for value in bits.tolist()]
        assert direction("rademacher", KEY, torch.tensor(BITS + place), 7, 3).tolist() == expected


def test_normal_numbers_have_the_stated_range_and_quantiles() -> None:
    z = direction("gauss", KEY, torch.tensor(0), 200_000, 0).double()
    for q in (0.01, 0.2, 0.5, 0.9, 0.999):
        expected = torch.special.ndtri(torch.tensor(q, dtype=torch.float64))
        share = (z < expected).double().mean()
        assert abs(share - q) < 5 * (q * (1 - q) / len(z)) ** 0.5
    assert z.abs().max() < 5.5


@pytest.mark.parametrize("kind", DIRECTION_KINDS)
def test_stacked_and_shared_draws_have_the_same_bits(kind: DirectionKind) -> None:
    numbers = torch.arange(30)
    alone = torch.stack([direction(kind, KEY, j, 9, 4) for j in numbers])
    stacked = torch.vmap(lambda k, j: direction(kind, k, j, 9, 4))(KEY.expand(30, 2), numbers)
    shared = torch.stack([z for _, z in directions(kind, KEY, [True] * 30, [(4, 9)])])
    assert torch.equal(stacked, alone)
    assert torch.equal(shared, alone)


@pytest.mark.parametrize("kind", DIRECTION_KINDS)
@settings(max_examples=25, deadline=None)
@given(scalars=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=60), n=st.integers(1, 9))
def test_a_sum_is_taken_in_the_order_of_the_directions(kind: DirectionKind, scalars: list[float], n: int) -> None:
    total = torch.zeros(n)
    for number, scalar in enumerate(scalars):
        term = direction(kind, KEY, torch.tensor(number), n, 2) * torch.tensor(scalar)
        total = total + term if scalar else total
    other, found = combine(kind, KEY, torch.tensor(scalars), [(5, 4), (2, n)])
    assert torch.equal(found, total)
    assert torch.equal(other, combine(kind, KEY, torch.tensor(scalars), [(5, 4)])[0])


@pytest.mark.parametrize("sizes", [[], [0], [5, 0, 7], [TOGETHER], [TOGETHER, 1], [1, TOGETHER + 1, 1, 2]])
def test_tensors_are_drawn_together_as_far_as_there_is_room(sizes: list[int]) -> None:
    groups = [sizes[group] for group in together(sizes)]
    assert [size for group in groups for size in group] == sizes
    assert all(len(group) == 1 or sum(group) <= TOGETHER for group in groups)
    assert all(sum(one) + other[0] > TOGETHER for one, other in pairwise(groups))


@pytest.mark.parametrize("kind", DIRECTION_KINDS)
def test_projections_are_inner_products(kind: DirectionKind) -> None:
    x = torch.linspace(-1, 1, 31, dtype=torch.float64)
    expected = [float(direction(kind, KEY, torch.tensor(j), 31, 0).double() @ x) for j in range(26)]
    assert project(kind, KEY, x, 26, 0).tolist() == pytest.approx(expected, abs=1e-12)
