"""Entropy codes: read as described, near the entropy, the same for ever, and refused where damaged."""

import doctest
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.bits import bits
from gossamer.core.entropy import decode, encode, expect_symbols, shorter
from gossamer.core.errors import PayloadError
from gossamer.core.random import fold, key, uniform
from gossamer.core.wire import unpack
from helpers.paths import TESTS

steady = settings(deadline=None, derandomize=True)
bases = st.sampled_from([2, 3, 4, 5, 8, 16, 32, 128, 256])
lists = bases.flatmap(lambda base: st.tuples(st.just(base), st.lists(st.integers(0, base - 1), max_size=60)))


def as_bytes(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def drawn(base: int, count: int, skew: float = 3.0) -> Tensor:
    """Symbols of which small ones are frequent."""
    return (uniform(fold(key(5), base, count), count) ** skew * base).to(torch.uint8)


def least_bits(symbols: Tensor, base: int) -> float:
    """The entropy of the histogram, times the number of symbols."""
    counts = torch.bincount(symbols, minlength=base).double()
    shares = counts[counts > 0] / len(symbols)
    return float(-(shares * shares.log2()).sum()) * len(symbols)


def slow(coded: Tensor, base: int, count: int) -> list[int]:
    """Decode letter by letter, as the module describes it."""
    group = next(g for g in range(8, 0, -1) if base**g <= 256)
    letters = -(-count // group)
    lanes = max(1, min(letters // 512, math.isqrt(letters))) if letters else 0
    raw = bytes(coded.tolist())
    numbers = [int.from_bytes(raw[at : at + 2], "little") for at in range(0, len(raw), 2)]
    others, rest = numbers[: base - 1], numbers[base - 1 :]
    states = [rest[2 * lane] + (rest[2 * lane + 1] << 16) for lane in range(lanes)]
    words = iter(rest[2 * lanes :])
    shares = [65535 - sum(others), *others]
    alphabet = [[letter // base**digit % base for digit in range(group)] for letter in range(base**group)]
    found: list[int] = []
    table = frequencies(shares, alphabet)
    for number in range(letters):
        state = states[number % lanes]
        slot, start, letter = state % 65536, 0, 0
        while slot >= start + table[letter]:
            start, letter = start + table[letter], letter + 1
        state = table[letter] * (state >> 16) + slot - start
        states[number % lanes] = state if state >= 65536 else state << 16 | next(words)
        found += alphabet[letter]
    assert states == [65536] * lanes
    assert next(words, None) is None
    return found[:count]


def frequencies(shares: list[int], alphabet: list[list[int]]) -> list[int]:
    possible = [all(shares[symbol] for symbol in letter) for letter in alphabet]
    found = []
    for letter, occurs in zip(alphabet, possible, strict=True):
        chance = 1 << 30
        for symbol in letter:
            chance = chance * shares[symbol] // 65535
        found.append((chance * (65536 - sum(possible)) >> 30) + 1 if occurs else 0)
    found[found.index(max(found))] += 65536 - sum(found)
    return found


def test_the_example_in_the_module_holds() -> None:
    result = doctest.testmod(entropy, extraglobs={"torch": torch})
    assert (result.attempted, result.failed) == (1, 0)


@steady
@given(lists)
def test_symbols_come_back_as_described(given: tuple[int, list[int]]) -> None:
    base, symbols = given
    coded = encode(torch.tensor(symbols, dtype=torch.uint8), base)
    assert decode(coded, base, len(symbols)).tolist() == symbols
    assert slow(coded, base, len(symbols)) == symbols


@pytest.mark.parametrize(("base", "count"), [(2, 8 * 1100 + 3), (3, 5 * 1700 + 2), (16, 2 * 1024)])
def test_several_lanes_are_read_as_described(base: int, count: int) -> None:
    symbols = drawn(base, count)
    assert slow(encode(symbols, base), base, count) == symbols.tolist()


@pytest.mark.parametrize("skew", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("base", [2, 3, 4, 8, 16])
def test_a_code_is_within_three_percent_of_the_entropy(base: int, skew: float) -> None:
    symbols = drawn(base, 200_000, skew)
    coded = encode(symbols, base)
    assert torch.equal(decode(coded, base, len(symbols)), symbols)
    assert least_bits(symbols, base) <= 8 * len(coded) <= 1.03 * least_bits(symbols, base) + 800


@pytest.mark.parametrize("symbol", [0, 2])
def test_equal_symbols_take_the_shares_and_the_states_alone(symbol: int) -> None:
    symbols = torch.full((5 * 3000,), symbol, dtype=torch.uint8)
    coded = encode(symbols, 3)
    assert len(coded) == 2 * 2 + 4 * (3000 // 512)
    assert torch.equal(decode(coded, 3, len(symbols)), symbols)


def test_no_symbols_have_no_states() -> None:
    assert decode(encode(torch.zeros(0), 3), 3, 0).tolist() == []


def test_the_shorter_form_is_sent() -> None:
    fair, rare = uniform(key(3), 4000) < 0.5, uniform(key(3), 4000) < 0.01
    assert set(shorter({"mask": bits(fair)}, fair, 2)) == {"mask"}
    sent = shorter({"mask": bits(rare)}, rare, 2)
    assert set(sent) == {"coded"}
    assert torch.equal(expect_symbols(sent, 2, 4000, 500).bool(), rare)
    with pytest.raises(PayloadError, match="'coded' has 42 bytes: expected fewer than 42, as without a code"):
        expect_symbols(sent, 2, 4000, len(sent["coded"]))


def test_golden_codes_are_read_and_written_for_ever() -> None:
    arrays = unpack((TESTS / "golden/entropy/coded.bin").read_bytes()).payload
    assert set(arrays) == {"2", "3", "4"}
    for name, coded in arrays.items():
        base = int(name)
        symbols = golden_symbols(base)
        assert torch.equal(decode(coded, base, len(symbols)), symbols)
        assert torch.equal(encode(symbols, base), coded)


def golden_symbols(base: int) -> Tensor:
    """Several lanes, in closed form: low symbols are frequent."""
    return ((torch.arange(9000) ** 2 % 101) ** 2 * base // 101**2).to(torch.uint8)


def code(shares: list[int], state: int, *words: int) -> Tensor:
    raw = b"".join(number.to_bytes(2, "little") for number in shares) + state.to_bytes(4, "little")
    return as_bytes(*raw, *b"".join(word.to_bytes(2, "little") for word in words))


@pytest.mark.parametrize(
    ("coded", "reason"),
    [
        (as_bytes(), "'coded' has 0 bytes: expected at least 8, and an even number"),
        (as_bytes(*[0] * 9), "'coded' has 9 bytes"),
        (code([0xFFFF, 1], 1 << 16), "the shares of 'coded' exceed one"),
        (code([5, 5], 65535), "'coded' has a state below 65,536"),
        (code([0, 0], 1 << 16, 7), "'coded' is damaged: its states do not end where an encoder begins"),
        (code([0, 0], 1 << 17), "'coded' is damaged"),
        (code([20_000, 20_000], 1 << 16), "'coded' ends before its 3 letters"),
    ],
)
def test_codes_never_written_are_refused(coded: Tensor, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        decode(coded, 3, 12)


def test_other_symbols_in_the_padding_are_refused() -> None:
    twelve, fifteen = torch.zeros(12), torch.tensor([0.0] * 14 + [1.0])
    assert decode(encode(twelve, 3), 3, 12).tolist() == [0] * 12
    with pytest.raises(PayloadError, match="'coded' has other symbols after its 12 symbols"):
        decode(encode(fifteen, 3), 3, 12)


@settings(steady, max_examples=200)
@given(bases, st.integers(0, 2000), st.binary(max_size=64))
def test_any_bytes_are_symbols_or_refused(base: int, count: int, raw: bytes) -> None:
    check(as_bytes(*raw), base, count)


@settings(steady, max_examples=60)
@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 6000), st.data())
def test_altered_codes_are_symbols_or_refused(base: int, count: int, data: st.DataObject) -> None:
    raw = bytearray(encode(drawn(base, count), base).tolist())
    for index in data.draw(st.lists(st.integers(0, 8 * len(raw) - 1), min_size=1, max_size=3)):
        raw[index // 8] ^= 1 << index % 8
    check(as_bytes(*raw[: data.draw(st.integers(0, len(raw)))]), base, count)
    check(as_bytes(*raw), base, count)


def check(coded: Tensor, base: int, count: int) -> None:
    try:
        found = decode(coded, base, count)
    except PayloadError:
        return
    assert (found.dtype, found.shape) == (torch.uint8, (count,))
    assert bool((found < base).all())
