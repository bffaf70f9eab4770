"""Sums of whole numbers as bytes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core.errors import PayloadError
from gossamer.core.random import key, uniform
from gossamer.parts.downlinks.replay import LARGEST, pack, unpack


@given(st.integers(0, 400), st.integers(1, LARGEST), st.integers(0, 99))
def test_sums_come_back(size: int, limit: int, seed: int) -> None:
    total = (uniform(key(seed), size, dtype=torch.float64) ** 3 * (limit + 1)).long()
    assert torch.equal(unpack(pack(total, limit), size, limit), total)


@pytest.mark.parametrize("clients", [1, 10, 255])
def test_sums_of_masks_take_their_entropy(clients: int) -> None:
    total = (uniform(key(1), clients * 20_000).view(clients, -1) < 0.3).sum(0)
    shares = [math.comb(clients, k) * 0.3**k * 0.7 ** (clients - k) for k in range(clients + 1)]
    entropy = -sum(share * math.log2(share) for share in shares if share > 1e-12)
    bits = 8 * sum(array.numel() for array in pack(total, clients).values()) / len(total)
    assert bits < entropy * 1.02 + 16 * (clients + 20) / len(total)


def test_other_payloads_are_refused() -> None:
    good, large = pack(torch.tensor([0, 2, 1] * 50), 2), pack(torch.full((150,), 300), 511)
    for wrong in ({}, {"low": good["low"][:-2]}, {"low": good["low"].float()}, {**good, "more": good["low"]}):
        with pytest.raises(PayloadError):
            unpack(wrong, 150, 2)
    with pytest.raises(PayloadError, match="expected sums up to 280 alone"):
        unpack(large, 150, 280)
