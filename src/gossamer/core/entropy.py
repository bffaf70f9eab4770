"""Entropy coding of symbols: close to the entropy of their histogram, which is part of the code.

Range variant of asymmetric numeral systems (rANS; Duda, 2013, https://arxiv.org/abs/1311.2540) with interleaved states
(Giesen, 2014, https://arxiv.org/abs/1402.3392), in NumPy alone. All numbers are integers, so a code is the same on
every machine. Symbols are numbers below ``base``. As many of them as fit one byte form a letter: five for base 3, eight
for base 2. A code has three parts, in little-endian bytes:

    shares    base - 1 numbers of 16 bits: the share of each symbol but the first, in units of 1/65535
    states    one number of 32 bits per lane: where the decoder starts
    words     numbers of 16 bits, in the order in which the decoder reads them

The letter ``i`` belongs to lane ``i % lanes``, and all lanes advance together. A lane has 512 letters or more, and adds
two bytes to the entropy. The frequency of a letter, in units of 1/65536, is the product of the shares of its symbols,
rounded down in every step, plus one; the most frequent letter gets the rest. Symbols that are missing to fill the last
letter are those of the largest share.

A decoder reads at most one word per letter, and every lane must end in the state in which its encoder began. So the
work is bounded by the number of symbols, which the receiver knows, and most damaged codes are refused.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect

Array = npt.NDArray[Any]

NAME = "coded"
"""The name of the array of a payload that has a code in place of packed symbols."""
UNIT = 0xFFFF  # the sum of the shares
STEPS = 512  # letters per lane, at least
FIRST = 1 << 16  # the state in which an encoder begins; the states of a decoder are never below


def shorter(plain: Payload, symbols: Tensor, base: int) -> Payload:
    """Return the code of the symbols as a payload if it is shorter than ``plain``, else ``plain``.

    >>> shorter({"bits": torch.zeros(125, dtype=torch.uint8)}, torch.zeros(1000), 2)["coded"].numel()
    6
    """
    coded = encode(symbols, base)
    return {NAME: coded} if len(coded) < sum(array.nbytes for array in plain.values()) else plain


def expect_symbols(payload: Payload, base: int, count: int, plain: int) -> Tensor:
    """Return ``count`` symbols from a payload of ``shorter``, as uint8. ``plain`` is the length of the plain form."""
    coded = expect(payload, NAME, torch.uint8, None)
    if len(coded) >= plain:
        raise PayloadError(f"{NAME!r} has {len(coded):,} bytes: expected fewer than {plain:,}, as without a code")
    return decode(coded, base, count)


def encode(symbols: Tensor, base: int) -> Tensor:
    """Return the code of numbers below ``base``, as bytes on the device of the symbols."""
    digits = symbols.cpu().to(torch.uint8).numpy()
    shares = _shares(np.bincount(digits, minlength=base))
    letters = _letters(digits, base, int(shares.argmax()))
    states, words = _push(letters, _frequencies(shares, base))
    parts = [shares[1:].astype("<u2"), states.astype("<u4"), words.astype("<u2")]
    return torch.from_numpy(np.concatenate([part.view(np.uint8) for part in parts])).to(symbols.device)


def decode(coded: Tensor, base: int, count: int) -> Tensor:
    """Return the ``count`` symbols of a code, as uint8. Raise ``PayloadError`` for other bytes than those of a code."""
    group = _group(base)
    letters = -(-count // group)
    head, body = 2 * (base - 1), 4 * _lanes(letters)
    raw = coded.cpu().numpy()
    if len(raw) < head + body or len(raw) % 2:
        raise PayloadError(f"{NAME!r} has {len(raw):,} bytes: expected at least {head + body:,}, and an even number")
    shares = _all_shares(raw[:head].view("<u2"))
    states, words = raw[head : head + body].view("<u4"), raw[head + body :].view("<u2")
    found = _pop(states.astype(np.uint32), words.astype(np.uint32), letters, _frequencies(shares, base))
    digits = np.take(_digits(base), found, axis=0).reshape(-1)
    if (digits[count:] != shares.argmax()).any():
        raise PayloadError(f"{NAME!r} has other symbols after its {count:,} symbols")
    return torch.from_numpy(digits[:count]).to(coded.device)


# Letters


def _group(base: int) -> int:
    """Return the number of symbols per letter: as many as fit one byte."""
    group = 1
    while base ** (group + 1) <= 256:
        group += 1
    return group


def _lanes(letters: int) -> int:
    return max(1, min(letters // STEPS, math.isqrt(letters))) if letters else 0


def _letters(digits: Array, base: int, filler: int) -> Array:
    """Return the letters of the symbols; the first symbol of a letter is its lowest digit."""
    group = _group(base)
    full = np.full(-(-len(digits) // group) * group, filler, np.uint8)
    full[: len(digits)] = digits
    columns = full.reshape(-1, group).T
    letters: Array = columns[-1]
    for column in columns[-2::-1]:
        letters = letters * np.uint8(base) + column
    return letters


def _digits(base: int) -> Array:
    """Return the symbols of each letter, one row per letter."""
    letters = np.arange(base ** _group(base)).reshape(-1, 1)
    return (letters // base ** np.arange(_group(base)) % base).astype(np.uint8)


# The model


def _shares(counts: Array) -> Array:
    """Return the share of each symbol. Symbols that occur have a share; the most frequent one gets the rest."""
    shares = counts * UNIT // max(1, int(counts.sum()))
    shares = np.where(counts > 0, np.maximum(shares, 1), 0)
    shares[counts.argmax()] += UNIT - shares.sum()
    return shares


def _all_shares(others: Array) -> Array:
    """Return the shares of all symbols, given those of all but the first."""
    first = UNIT - int(others.sum(dtype=np.int64))
    if first < 0:
        raise PayloadError(f"the shares of {NAME!r} exceed one")
    return np.concatenate([[first], others.astype(np.int64)])


def _frequencies(shares: Array, base: int) -> Array:
    """Return the frequency of each letter. Their sum is 65536."""
    chances = np.full(1, 1 << 30)
    for _ in range(_group(base)):
        chances = (shares.reshape(-1, 1) * chances // UNIT).reshape(-1)
    possible = (shares > 0)[_digits(base)].all(1)
    frequencies = np.where(possible, (chances * (FIRST - int(possible.sum())) >> 30) + 1, 0)
    frequencies[frequencies.argmax()] += FIRST - frequencies.sum()
    return frequencies.astype(np.uint32)


# Interleaved states


def _push(letters: Array, frequencies: Array) -> tuple[Array, Array]:
    """Return the states of the lanes and the words, after all letters from the last to the first."""
    lanes = _lanes(len(letters))
    states, words = np.full(lanes, FIRST, np.uint32), list[Array]()
    sizes, starts = frequencies[letters], _starts(frequencies)[letters]
    for at in reversed(range(0, len(letters), max(1, lanes))):
        size, start = sizes[at : at + lanes], starts[at : at + lanes]
        state = states[: len(size)]
        full = state >> 16 >= size
        words.append(state[full])
        np.right_shift(state, 16, out=state, where=full)
        quotient, rest = np.divmod(state, size)
        state[:] = (quotient << 16) + rest + start
    return states, np.concatenate([np.empty(0, np.uint32), *reversed(words)])


def _pop(states: Array, words: Array, count: int, frequencies: Array) -> Array:
    """Return the letters of the lanes in these states."""
    if (states < FIRST).any():
        raise PayloadError(f"{NAME!r} has a state below {FIRST:,}")
    owner = np.repeat(np.arange(len(frequencies), dtype=np.uint8), frequencies)  # of each of 65536 slots
    sizes = frequencies[owner]
    offsets = np.arange(FIRST, dtype=np.uint32) - _starts(frequencies)[owner]
    slots, read = np.empty(count, np.uint32), 0
    for at in range(0, count, max(1, len(states))):
        slot = slots[at : at + len(states)]
        state = states[: len(slot)]
        np.bitwise_and(state, 0xFFFF, out=slot)
        state[:] = sizes.take(slot) * (state >> 16) + offsets.take(slot)
        low = state < FIRST
        end = read + int(np.count_nonzero(low))
        if end > len(words):
            raise PayloadError(f"{NAME!r} ends before its {count:,} letters")
        state[low] = state[low] << 16 | words[read:end]
        read = end
    if read < len(words) or (states != FIRST).any():
        raise PayloadError(f"{NAME!r} is damaged: its states do not end where an encoder begins")
    return owner[slots]


def _starts(frequencies: Array) -> Array:
    """Return the first slot of each letter."""
    return (np.cumsum(frequencies) - frequencies).astype(np.uint32)
