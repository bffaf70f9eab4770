r"""Secret sharing over a prime field (Shamir, Communications of the ACM, 1979), in plain integers, and its proof.

A secret is an element of the field of p = 2^128 - 159 elements, so that it and each share take 16 bytes. A polynomial f
of degree below t, the number of needed shares, is given by its values at 0, ..., t - 1. The secret is f(0), and all
other values are random. Member i of m holds f(i), for i from 1 to m: all points are small and the same in every round,
so that the numbers below depend on t and m alone:

    f(x) = sum_j f(j) prod_{l != j} (x - l) / (j - l),  j, l = 0, ..., t - 1           ``spread``
    f(0) = sum_i f(i) prod_{j != i} j / (j - i),        i, j among the members that answered       ``Known``

If members lie, shares do not lie on one polynomial of degree below t. They are then a word of a Reed-Solomon code with
errors. ``decoded`` finds the polynomial of r shares if at most (r - t) / 2 of them are wrong (Gao, A new algorithm for
decoding Reed-Solomon codes, 2003).

**Verifiable dealing** of two secrets (``deal``): each member sees that its shares are right, and all see one dealer who
lies. In the style of Baghery, Pi: A Unified Framework for Computational Verifiable Secret Sharing, ASIACRYPT 2023
(https://eprint.iacr.org/2023/1669), with hashes. A dealer has polynomials f_1 and f_2 of degree below t, whose values
at 0 are its secrets, and a random one g. For each member i, it publishes

    A_i = H(1, i, f_1(i)),  B_i = H(2, i, f_2(i)),  G_i = H(3, i, g(i)),

from which d = H(all of them) follows, and the polynomial z = g + d f_1 + d^2 f_2, by its values at 0, ..., t - 1.
Member i receives f_1(i), f_2(i) and g(i) in a sealed box, and checks the hashes and that z(i) is the sum. Then, but for
a chance of about 2 / p per hash that a dealer tries, the values of all members that found no fault lie on polynomials
of degree below t. Since g is random, z says nothing about f_1 and f_2. A share has 128 bits that nobody can guess, so
its hash says nothing either, and shows later whether a member reveals what it was given.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from gossamer.parts.secure.primitives import LABEL, PUBLIC, SEED, TAG

PRIME = (1 << 128) - 159
"""The largest prime below 2^128."""

SIZE = 16
"""The number of bytes of an element."""


def element(data: bytes) -> int | None:
    """Return the element of 16 bytes; none if they are not below the prime."""
    value = int.from_bytes(data, "little")
    return value if value < PRIME else None


def packed(values: Sequence[int]) -> bytes:
    """Return elements as bytes."""
    return b"".join(value.to_bytes(SIZE, "little") for value in values)


def elements(data: bytes) -> list[int] | None:
    """Return the elements of bytes; none if one is not below the prime."""
    found = [element(data[at : at + SIZE]) for at in range(0, len(data), SIZE)]
    return None if None in found else [value for value in found if value is not None]


def drawn(count: int) -> list[int]:
    """Return uniform elements from the operating system."""
    found: list[int] = []
    while len(found) < count:  # one draw in 2^120 is refused
        data = os.urandom(SIZE * (count - len(found)))
        found += [value for at in range(0, len(data), SIZE) if (value := element(data[at : at + SIZE])) is not None]
    return found


def spread(values: Sequence[int], members: int) -> list[int]:
    """Return the values at 1, ..., ``members`` of the polynomial with these values at 0, 1, 2, ...

    >>> spread([5, 7], 4)  # 5 + 2 x
    [7, 9, 11, 13]
    """
    return [*values[1 : members + 1], *(sum(map(mul, row, values)) % PRIME for row in _rows(len(values), members))]


@lru_cache(maxsize=64)
def _rows(known: int, members: int) -> list[list[int]]:
    """Return, for each point from ``known`` to ``members``, the coefficients of the values at 0, ..., known - 1."""
    weights = [_weight(j, 0, known - 1) for j in range(known)]
    rows = []
    for x in range(known, members + 1):
        product = 1
        for other in range(known):
            product = product * (x - other) % PRIME
        rows.append([product * weights[j] * _inverse(x - j) % PRIME for j in range(known)])
    return rows


def _weight(at: int, first: int, last: int) -> int:
    """Return 1 / prod_{l != at} (at - l) over l = first, ..., last."""
    product = _factorial(at - first) * _factorial(last - at)
    return pow(-product if (last - at) % 2 else product, -1, PRIME)


@lru_cache(maxsize=4096)
def _factorial(number: int) -> int:
    product = 1
    for factor in range(2, number + 1):
        product = product * factor % PRIME
    return product


@lru_cache(maxsize=8192)
def _inverse(number: int) -> int:
    return pow(number, -1, PRIME)


@lru_cache(maxsize=64)
def _weights(members: int) -> list[int]:
    return [_weight(at, 1, members) for at in range(1, members + 1)]


class Known:
    """What follows from which members' shares are known: the coefficients of the secret, and a test of the shares.

    Owners with the same points share one of these, since only the shares differ.

    Args:
        points: the points of the shares, ascending
        needed: the number of shares that determine a polynomial
        members: the number of all points
    """

    def __init__(self, points: Sequence[int], needed: int, members: int) -> None:
        self.points, self.needed = tuple(points), needed
        there = set(points)
        absent = [point for point in range(1, members + 1) if point not in there]
        weights, every, product = _weights(members), [], 1
        for point in points:
            weight = weights[point - 1]
            for other in absent:
                weight = weight * (point - other) % PRIME
            every.append(weight)
            product = -product * point % PRIME
        self.at_zero = [
            product * weight * _inverse(-point) % PRIME for point, weight in zip(points, every, strict=True)
        ]
        # Shares on one polynomial f satisfy sum_i w_i q(i) f(i) = 0 for every q of degree below r - t. One random q
        # finds others but for a chance of 1 / p.
        check = drawn(max(0, len(points) - needed))
        self.parity = [weight * _evaluated(check, point) % PRIME for point, weight in zip(points, every, strict=True)]

    def secret(self, shares: Sequence[int]) -> int | None:
        """Return the secret of shares in the order of the points; none if they are not on one polynomial."""
        if sum(map(mul, self.parity, shares)) % PRIME:
            return None
        return int(sum(map(mul, self.at_zero, shares)) % PRIME)


def _evaluated(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def decoded(shares: Mapping[int, int], needed: int) -> tuple[int, list[int]] | None:
    """Return the secret of shares by point, and the points of the wrong ones; none if too many are wrong.

    >>> decoded({1: 7, 2: 9, 3: 12, 4: 13}, 2)  # 5 + 2 x, but at 3
    (5, [3])
    """
    points = list(shares)
    modulus = [1]
    for point in points:
        modulus = _added([0, *modulus], [-point * c % PRIME for c in modulus])
    # Gao: the remainder of degree below (r + t) / 2 in Euclid's algorithm, divided by its cofactor, is the polynomial.
    low, high, one, other = _interpolated(shares), modulus, [1], [0]
    while 2 * (len(low) - 1) >= len(points) + needed and any(low):
        quotient, rest = _divided(high, low)
        high, low = low, rest
        one, other = _added(other, [-c % PRIME for c in _multiplied(quotient, one)]), one
    found, rest = _divided(low, one)
    if any(rest) or len(found) > needed:
        return None
    wrong = [point for point, share in shares.items() if _evaluated(found, point) != share]
    return (found[0], wrong) if 2 * len(wrong) <= len(points) - needed else None


def _interpolated(shares: Mapping[int, int]) -> list[int]:
    """Return the coefficients of the polynomial through all shares, by Newton's divided differences."""
    points, table = list(shares), list(shares.values())
    for step in range(1, len(points)):
        for at in range(len(points) - 1, step - 1, -1):
            table[at] = (table[at] - table[at - 1]) * _inverse(points[at] - points[at - step]) % PRIME
    found = [0]
    for point, value in zip(reversed(points), reversed(table), strict=True):
        found = _added(_added([0, *found], [-point * c % PRIME for c in found]), [value])
    return found


def _trimmed(polynomial: list[int]) -> list[int]:
    while len(polynomial) > 1 and not polynomial[-1]:
        polynomial.pop()
    return polynomial


def _added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    head = [(a + b) % PRIME for a, b in zip(long, short, strict=False)]
    return _trimmed([*head, *long[len(short) :]])


def _multiplied(one: Sequence[int], other: Sequence[int]) -> list[int]:
    found = [0] * (len(one) + len(other) - 1)
    for at, a in enumerate(one):
        for to, b in enumerate(other):
            found[at + to] = (found[at + to] + a * b) % PRIME
    return _trimmed(found)


def _divided(one: Sequence[int], other: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return quotient and remainder of two polynomials; the second is not zero."""
    rest, lead = list(one), pow(other[-1], -1, PRIME)
    quotient = [0] * max(1, len(one) - len(other) + 1)
    for at in range(len(one) - len(other), -1, -1):
        factor = quotient[at] = rest[at + len(other) - 1] * lead % PRIME
        for to, c in enumerate(other):
            rest[at + to] = (rest[at + to] - factor * c) % PRIME
    return _trimmed(quotient), _trimmed(rest[: max(1, len(other) - 1)])


SELF_SEED, KEY_SEED, BLIND = 1, 2, 3
"""The numbers of the polynomials: of the seed of the self mask, of the seed of the key for masks, and g."""
BOX = 3 * SEED + TAG
"""The number of bytes of the sealed values of a member."""
HASHES = 3 * PUBLIC
"""The number of bytes of the hashes of a member."""


class Dealing(NamedTuple):
    """What a dealer publishes, and what it tells each member.

    Args:
        hashes: A_i, B_i and G_i of each member, in order
        line: the values of z at 0, ..., t - 1
        plain: the three values of each member
    """

    hashes: bytes
    line: bytes
    plain: list[bytes]


def deal(context: bytes, self_seed: bytes, key_seed: bytes, needed: int, members: int) -> Dealing:
    """Return a dealing of two secrets. ``context`` names the dealer and the round."""
    seeds = (int.from_bytes(seed, "little") for seed in (self_seed, key_seed))
    one, two = ([seed, *drawn(needed - 1)] for seed in seeds)
    blind = drawn(needed)
    values = [[packed([value]) for value in spread(each, members)] for each in (one, two, blind)]
    plain = [a + b + g for a, b, g in zip(*values, strict=True)]
    hashes = b"".join(
        hashed(context, which, point, value)
        for point, row in enumerate(zip(*values, strict=True), start=1)
        for which, value in enumerate(row, start=1)
    )
    d = challenge(context, hashes)
    line = [(g + d * (a + d * b)) % PRIME for a, b, g in zip(one, two, blind, strict=True)]
    return Dealing(hashes, packed(line), plain)


def hashed(context: bytes, which: int, point: int, value: bytes) -> bytes:
    """Return the hash that commits a dealer to a value of one of its polynomials."""
    return hashlib.sha256(LABEL + context + bytes([which]) + point.to_bytes(4, "little") + value).digest()


def challenge(context: bytes, hashes: bytes) -> int:
    """Return d, which a dealer cannot know before it has chosen all values."""
    return int.from_bytes(hashlib.sha512(LABEL + context + hashes).digest(), "little") % PRIME


def fits(context: bytes, point: int, plain: bytes, hashes: bytes, d: int, z: int) -> bool:
    """Return whether a member finds no fault with its three values."""
    values = [plain[at : at + SEED] for at in range(0, 3 * SEED, SEED)]
    if hashes != b"".join(hashed(context, which, point, value) for which, value in enumerate(values, start=1)):
        return False
    found = elements(plain)
    return found is not None and (found[2] + d * (found[0] + d * found[1]) - z) % PRIME == 0
