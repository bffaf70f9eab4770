r"""Verifiable dealing of two secrets: each member sees that its shares are right, and all see one dealer who lies.

In the style of Baghery, Pi: A Unified Framework for Computational Verifiable Secret Sharing, ASIACRYPT 2023
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
from typing import NamedTuple

from gossamer.parts.secure import shamir
from gossamer.parts.secure.primitives import LABEL, PUBLIC, SEED, TAG
from gossamer.parts.secure.shamir import PRIME

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
    one, two = ([seed, *shamir.drawn(needed - 1)] for seed in seeds)
    blind = shamir.drawn(needed)
    values = [[shamir.packed([value]) for value in shamir.spread(each, members)] for each in (one, two, blind)]
    plain = [a + b + g for a, b, g in zip(*values, strict=True)]
    hashes = b"".join(
        hashed(context, which, point, value)
        for point, row in enumerate(zip(*values, strict=True), start=1)
        for which, value in enumerate(row, start=1)
    )
    d = challenge(context, hashes)
    line = [(g + d * (a + d * b)) % PRIME for a, b, g in zip(one, two, blind, strict=True)]
    return Dealing(hashes, shamir.packed(line), plain)


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
    found = shamir.elements(plain)
    return found is not None and (found[2] + d * (found[0] + d * found[1]) - z) % PRIME == 0
