"""Secret sharing: enough shares give the secret, and up to half of the spare ones may be wrong."""

import random
from itertools import combinations

import pytest

from gossamer.parts.secure import shamir
from gossamer.parts.secure.shamir import PRIME, Known, challenge, deal, decoded, drawn, elements, fits, packed, spread


def test_the_field_has_a_prime_number_of_elements() -> None:
    rest, twos = PRIME - 1, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    for base in range(2, 60):  # Miller and Rabin
        power = pow(base, rest, PRIME)
        assert power in (1, PRIME - 1) or any(pow(power, 1 << step, PRIME) == PRIME - 1 for step in range(1, twos))


def test_only_elements_of_the_field_are_read() -> None:
    assert elements(packed([0, PRIME - 1])) == [0, PRIME - 1]
    assert elements((PRIME).to_bytes(16, "little")) is None


@pytest.mark.parametrize(("needed", "members"), [(1, 1), (2, 3), (3, 5), (4, 6)])
def test_every_set_of_enough_shares_gives_the_secret(needed: int, members: int) -> None:
    values = drawn(needed)
    shares = spread(values, members)
    for count in range(needed, members + 1):
        for points in combinations(range(1, members + 1), count):
            assert Known(points, needed, members).secret([shares[point - 1] for point in points]) == values[0]


def test_shares_that_are_not_on_one_polynomial_have_no_secret() -> None:
    shares = spread(drawn(4), 7)
    for wrong in range(7):
        changed = [share + (at == wrong) for at, share in enumerate(shares)]
        assert Known(range(1, 8), 4, 7).secret(changed) is None


@pytest.mark.parametrize(("needed", "members"), [(2, 4), (4, 6), (7, 10), (14, 20), (67, 100)])
def test_up_to_half_of_the_spare_shares_may_be_wrong(needed: int, members: int) -> None:
    rng = random.Random(needed)
    for _ in range(20 if members <= 20 else 3):
        values = drawn(needed)
        points = sorted(rng.sample(range(1, members + 1), rng.randint(needed, members)))
        shares = {point: spread(values, members)[point - 1] for point in points}
        wrong = sorted(rng.sample(points, rng.randint(0, (len(points) - needed) // 2)))
        changed = {point: drawn(1)[0] if point in wrong else share for point, share in shares.items()}
        assert decoded(changed, needed) == (values[0], wrong)


def test_more_wrong_shares_are_not_decoded_to_another_secret() -> None:
    for _ in range(50):
        values = drawn(4)
        shares = dict(enumerate(spread(values, 8), start=1))
        for point in random.sample(range(1, 9), 3):
            shares[point] = drawn(1)[0]
        assert decoded(shares, 4) is None


def test_polynomials_of_a_lower_degree_are_decoded() -> None:
    assert decoded(dict.fromkeys(range(1, 6), 0), 3) == (0, [])
    assert decoded({1: 0, 2: 0, 3: 5, 4: 0, 5: 0}, 3) == (0, [3])


def test_members_find_no_fault_with_an_honest_dealing_and_one_with_any_change() -> None:
    context, one, two = b"context", packed(drawn(1)), packed(drawn(1))
    dealing = deal(context, one, two, 4, 6)
    d, line = challenge(context, dealing.hashes), elements(dealing.line)
    assert line is not None
    for point, (plain, z) in enumerate(zip(dealing.plain, spread(line, 6), strict=True), start=1):
        hashes = dealing.hashes[96 * (point - 1) : 96 * point]
        assert fits(context, point, plain, hashes, d, z)
        assert not fits(b"another", point, plain, hashes, d, z)
        assert not fits(context, point + 1, plain, hashes, d, z)
        assert not fits(context, point, plain, hashes, d + 1, z)
        for at in (0, 16, 32):
            assert not fits(context, point, plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :], hashes, d, z)
    assert shamir.elements(b"".join(plain[:16] for plain in dealing.plain)) is not None


def test_a_dealing_of_too_high_a_degree_is_found_by_members() -> None:
    """The values lie on polynomials of degree 4, where 3 is the largest: z cannot be one of degree 3."""
    context, one, two = b"context", packed(drawn(1)), packed(drawn(1))
    high = deal(context, one, two, 5, 8)
    d, line = challenge(context, high.hashes), elements(high.line)
    assert line is not None
    short = spread(line[:4], 8)  # what fits a line of degree 3
    fine = [
        fits(context, p, high.plain[p - 1], high.hashes[96 * (p - 1) : 96 * p], d, short[p - 1]) for p in range(1, 9)
    ]
    assert sum(fine) <= 3
