"""Bits, trits and positions as bytes, compared with slow and obvious versions."""

import doctest
import math
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import indices as positions
from gossamer.core.bits import bits, codes, expect_bits, expect_codes, expect_trits, trits, unbits, uncodes, untrits
from gossamer.core.errors import PayloadError
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Payload
from gossamer.core.wire import Message, pack, unpack
from gossamer.parts.codecs import scale

steady = settings(deadline=None, derandomize=True)
flags = st.lists(st.booleans(), max_size=70)
signs = st.lists(st.sampled_from([-1, 0, 1]), max_size=40)


def as_bytes(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def as_mask(values: list[bool]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


@pytest.mark.parametrize("module", [packing, positions, scale])
def test_examples_in_the_modules_hold(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


# Bits


@steady
@given(flags)
def test_bits_are_those_of_one_large_number(values: list[bool]) -> None:
    number = sum(1 << index for index, value in enumerate(values) if value)
    wanted = number.to_bytes(-(-len(values) // 8), "little")
    assert bytes(bits(as_mask(values)).tolist()) == wanted


@steady
@given(flags)
def test_bits_come_back(values: list[bool]) -> None:
    packed = bits(as_mask(values))
    assert unbits(packed, len(values)).tolist() == values
    assert expect_bits({"mask": packed}, "mask", len(values)).tolist() == values


@pytest.mark.parametrize(
    ("packed", "count", "reason"),
    [
        (as_bytes(0, 0), 8, "expected 1 uint8 values named 'mask', got 2"),
        (as_bytes(), 1, "expected 1 uint8 values named 'mask', got 0"),
        (as_bytes(0).to(torch.int8), 8, "got 1 int8 values"),
        (as_bytes(0b1000), 3, "'mask' has ones after its 3 bits"),
    ],
)
def test_bits_never_written_are_refused(packed: Tensor, count: int, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        expect_bits({"mask": packed}, "mask", count)


# Codes of a few bits


@steady
@given(st.integers(1, 8).flatmap(lambda w: st.tuples(st.just(w), st.lists(st.integers(0, 2**w - 1), max_size=40))))
def test_codes_are_digits_of_one_large_number_and_come_back(given: tuple[int, list[int]]) -> None:
    width, values = given
    number = sum(value << index * width for index, value in enumerate(values))
    packed = codes(torch.tensor(values, dtype=torch.uint8), width)
    assert bytes(packed.tolist()) == number.to_bytes(-(-len(values) * width // 8), "little")
    assert uncodes(packed, width, len(values)).tolist() == values
    assert expect_codes({"codes": packed}, "codes", width, len(values)).tolist() == values


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (as_bytes(0), "expected 2 uint8 values named 'codes', got 1"),
        (as_bytes(0, 0x02), "'codes' has ones after its 9 bits"),
    ],
)
def test_codes_never_written_are_refused(packed: Tensor, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        expect_codes({"codes": packed}, "codes", 3, 3)


# Trits


@steady
@given(signs)
def test_trits_are_digits_to_base_three(values: list[int]) -> None:
    groups = [values[start : start + 5] for start in range(0, len(values), 5)]
    wanted = [sum(value % 3 * 3**index for index, value in enumerate(group)) for group in groups]
    assert trits(torch.tensor(values, dtype=torch.int8)).tolist() == wanted


@steady
@given(signs, st.sampled_from([torch.int8, torch.int64]))
def test_trits_come_back(values: list[int], dtype: torch.dtype) -> None:
    packed = trits(torch.tensor(values, dtype=dtype))
    assert packed.dtype == torch.uint8
    assert untrits(packed, len(values)).tolist() == values
    assert expect_trits({"trits": packed}, "trits", len(values)).tolist() == values


def test_every_byte_up_to_242_stands_for_other_trits() -> None:
    packed = torch.arange(243).to(torch.uint8)
    signs = expect_trits({"trits": packed}, "trits", 5 * 243)
    assert signs.dtype == torch.int8
    assert len(set(map(tuple, signs.view(-1, 5).tolist()))) == 243
    assert torch.equal(trits(signs), packed)


@pytest.mark.parametrize(
    ("packed", "count", "reason"),
    [
        (as_bytes(0, 0), 5, "expected 1 uint8 values named 'trits', got 2"),
        (as_bytes(0).to(torch.int16), 5, "got 1 int16 values"),
        (as_bytes(243, 0), 10, "'trits' has a byte above 242, which is not 5 trits"),
        (as_bytes(9), 2, "'trits' has nonzero padding after its 2 trits"),
        (as_bytes(255), 1, "a byte above 242"),
    ],
)
def test_trits_never_written_are_refused(packed: Tensor, count: int, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        expect_trits({"trits": packed}, "trits", count)


# Positions


def size(payload: Payload) -> int:
    return sum(packed.numel() for packed in payload.values())


def fewest_bytes(n: int, k: int) -> float:
    """The bytes that name k of n entries: the logarithm of the number of choices."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2) / 8


def slow_positions(payload: Payload, n: int) -> list[bool]:
    """As the module describes it, bit by bit."""
    if "bitmap" in payload:
        return [bool(payload["bitmap"][i // 8] >> i % 8 & 1) for i in range(n)]
    first, *rest = payload["remainders"].tolist()
    inverted, shift = divmod(first, 128)
    digits = int.from_bytes(bytes(rest), "little")
    found, at, quotient = set(), -1, 0
    for index in range(8 * payload["quotients"].numel()):
        if payload["quotients"][index // 8] >> index % 8 & 1:
            at += 1 + (quotient << shift) + (digits & (1 << shift) - 1)
            found.add(at)
            quotient, digits = 0, digits >> shift
        else:
            quotient += 1
    return [(i in found) != bool(inverted) for i in range(n)]


masks = st.one_of(
    flags.map(as_mask),
    st.builds(
        lambda n, places, inverted: (torch.isin(torch.arange(n), torch.tensor(sorted(places)))) ^ inverted,
        st.integers(0, 3000),
        st.sets(st.integers(0, 2999), max_size=40),
        st.booleans(),
    ),
)


@steady
@given(masks)
def test_positions_come_back_and_are_never_longer_than_a_bitmap(mask: Tensor) -> None:
    payload = positions.pack(mask)
    assert torch.equal(positions.unpack(payload, len(mask)), mask)
    assert torch.equal(positions.unpack_bits(payload, len(mask)), bits(mask))
    assert size(payload) <= -(-len(mask) // 8)


@steady
@given(masks)
def test_positions_are_coded_as_described(mask: Tensor) -> None:
    assert slow_positions(positions.pack(mask), len(mask)) == mask.tolist()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000])
def test_none_and_all_take_a_byte(n: int) -> None:
    for mask in (torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)):
        assert torch.equal(positions.unpack(positions.pack(mask), n), mask)
        assert size(positions.pack(mask)) == 1


def test_no_entries_take_nothing() -> None:
    payload = positions.pack(torch.zeros(0, dtype=torch.bool))
    assert size(payload) == 0
    assert len(positions.unpack(payload, 0)) == 0


DENSITIES = [1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.37, 0.4, 0.5, 0.6, 0.63, 0.8, 0.9, 0.99, 0.9999]


@pytest.mark.parametrize("density", DENSITIES)
def test_random_positions_take_at_most_5_percent_more_than_they_must(density: float) -> None:
    mask = uniform(fold(key(1), "positions"), 400_000) < density
    payload = positions.pack(mask)
    assert torch.equal(positions.unpack(payload, len(mask)), mask)
    assert size(payload) <= 1.05 * fewest_bytes(len(mask), positions.marked(mask))
    assert ("bitmap" in payload) == (0.38 < density < 0.62)


def test_clustered_positions_take_less_than_random_ones() -> None:
    mask = torch.zeros(100_000, dtype=torch.bool)
    mask[5000:8000] = True
    assert size(positions.pack(mask)) < 0.5 * fewest_bytes(100_000, 3000)


@pytest.mark.parametrize("density", [0.4, 0.1, 0.01, 0.002])
def test_the_shift_is_the_best_for_random_gaps(density: float) -> None:
    gaps = (uniform(key(2), 5000) < density).nonzero().view(-1).diff() - 1
    zeros = [int((gaps >> shift).sum()) for shift in range(20)]
    best = int(np.argmin([len(gaps) * shift + sum for shift, sum in enumerate(zeros)]))
    assert positions._shift(gaps, zeros[0]) == (best, zeros[best])


def test_the_search_for_a_shift_goes_on_below_the_first_few() -> None:
    gaps = torch.tensor([100_000] + [0] * 10)  # the mean gap is large, but most gaps are best coded in unary
    assert positions._shift(gaps, 100_000)[0] == min(
        range(18), key=lambda shift: (len(gaps) * shift + int((gaps >> shift).sum()), -shift)
    )


def coded(shift: int, quotients: list[int], *remainders: int) -> Payload:
    return {"quotients": as_bytes(*quotients), "remainders": as_bytes(shift, *remainders)}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, "expected a mask as 'bitmap', or as 'quotients' and 'remainders', got an empty payload"),
        ({"quotients": as_bytes(1)}, "expected a mask as 'bitmap', .* got 'quotients'"),
        ({"bitmap": as_bytes(0)}, "expected 25 uint8 values named 'bitmap', got 1"),
        (coded(0, [1]) | {"quotients": torch.ones(1)}, "got 1 float32 values"),
        (coded(0, [1]) | {"quotients": as_bytes(1).view(1, 1)}, "in 2 dimensions"),
        ({"quotients": as_bytes(), "remainders": as_bytes()}, "'remainders' has 0 bytes: expected at least 1"),
        (coded(0, [255] * 24), "fewer than a bitmap"),
        (coded(9, [1], 0, 0), "'remainders' has 9 bits per gap, more than 200 entries need"),
        (coded(0, [1, 0]), "'quotients' must not end in a zero byte"),
        (coded(0, [255] * 13), "'quotients' has 104 gaps, more than half of 200 entries"),
        (coded(4, [3], 0, 0), "expected 1 uint8 values named 'remainders', got 2"),
        (coded(4, [1], 0x10), "'remainders' has ones after its 4 bits"),
        (coded(8, [1], 200), "the gaps exceed the 200 entries"),
        (coded(8, [2], 0), "the gaps exceed"),
        (coded(7, [3], 100, 50), "the gaps exceed"),
    ],
)
def test_positions_never_written_are_refused(payload: Payload, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        positions.unpack(payload, 200)


def test_the_last_position_is_not_refused() -> None:
    assert positions.unpack(coded(8, [1], 199), 200).nonzero().tolist() == [[199]]


@settings(steady, max_examples=300)
@given(st.integers(0, 300), st.binary(max_size=20), st.binary(max_size=20))
def test_any_bytes_are_positions_or_refused(n: int, quotients: bytes, remainders: bytes) -> None:
    payload = {"quotients": as_bytes(*quotients), "remainders": as_bytes(*remainders)}
    try:
        mask = positions.unpack(payload, n)
    except PayloadError:
        return
    assert (mask.dtype, mask.shape) == (torch.bool, (n,))
    assert slow_positions(payload, n) == mask.tolist()


@steady
@given(masks, st.data())
def test_altered_positions_do_no_harm(mask: Tensor, data: st.DataObject) -> None:
    payload = positions.pack(mask)
    name = data.draw(st.sampled_from(sorted(payload)))
    raw = bytearray(payload[name].tolist())
    for index in data.draw(st.lists(st.integers(0, 8 * len(raw) - 1), max_size=3)) if raw else []:
        raw[index // 8] ^= 1 << index % 8
    altered = payload | {name: as_bytes(*raw[: data.draw(st.integers(0, len(raw)))])}
    try:
        found = positions.unpack(unpack(pack(Message("up", 0, 0, 0, 1.0, altered))).payload, len(mask))
    except PayloadError:
        return
    assert slow_positions(altered, len(mask)) == found.tolist()


def test_values_are_spread_in_order() -> None:
    mask = torch.tensor([False, True, True, False, True])
    assert positions.spread(torch.tensor([3.0, -1.0, 2.0]), mask).tolist() == [0, 3, -1, 0, 2]
    assert positions.marked(mask) == 3


# Any device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n", [0, 1, 5, 8, 100_003])
@pytest.mark.parametrize("density", [0.001, 0.03, 0.5, 0.9])
def test_a_gpu_packs_the_same_bytes(n: int, density: float) -> None:
    noise = uniform(fold(key(3), "gpu"), n)
    mask, signs = noise < density, (noise * 3).to(torch.int8) - 1
    assert torch.equal(bits(mask.cuda()).cpu(), bits(mask))
    assert torch.equal(unbits(bits(mask).cuda(), n).cpu(), mask)
    numbers = (noise * 8).to(torch.uint8)
    assert torch.equal(codes(numbers.cuda(), 3).cpu(), codes(numbers, 3))
    assert torch.equal(uncodes(codes(numbers, 3).cuda(), 3, n).cpu(), numbers)
    assert torch.equal(trits(signs.cuda()).cpu(), trits(signs))
    assert torch.equal(untrits(trits(signs).cuda(), n).cpu(), signs)
    here, there = positions.pack(mask), positions.pack(mask.cuda())
    assert {name: packed.tolist() for name, packed in here.items()} == {
        name: packed.tolist() for name, packed in there.items()
    }
    assert torch.equal(positions.unpack(there, n).cpu(), mask)
