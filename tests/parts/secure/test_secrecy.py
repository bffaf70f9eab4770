"""What the server sees is uniform, apart from the sum; shares below the threshold say nothing.

Secrets are from the operating system, so that these tests differ in every run. They fail by chance once in a million.
"""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor

from gossamer.core.bits import uncodes
from gossamer.core.secure import SumSegment
from gossamer.parts.secure import SecAgg, primitives, shamir
from gossamer.parts.secure.primitives import add_mask
from gossamer.parts.secure.server import SecAggRound
from gossamer.parts.secure.shamir import deal
from helpers.secure_rounds import Rehearsal, values_of

CHANCE = 1e-6
ENTRIES, RUNS = 2000, 12
SEGMENT = [SumSegment(ENTRIES, 1)]  # 3 clients: a ring of 2 bits
BITS = 2


def vectors(*rows: int) -> dict[int, Tensor]:
    """Return the values of clients, the same in all entries."""
    return {client: torch.full((ENTRIES,), value) for client, value in enumerate(rows)}


def uploads(values: dict[int, Tensor]) -> np.ndarray[Any, Any]:
    """Return the masked vectors of many runs: clients by entries of all runs."""
    runs = []
    for _ in range(RUNS):
        sent = Rehearsal(SecAgg(), values, SEGMENT).until("train").answers
        runs.append(np.stack([uncodes(sent["train", client]["masked"], BITS, ENTRIES).numpy() for client in values]))
    return np.concatenate(runs, axis=1)


@pytest.fixture(scope="module")
def seen() -> dict[tuple[int, ...], np.ndarray[Any, Any]]:
    return {rows: uploads(vectors(*rows)) for rows in ((1, 1, 0), (0, 1, 1))}


def test_a_masked_upload_is_uniform(seen: dict[tuple[int, ...], np.ndarray[Any, Any]]) -> None:
    for found in seen.values():
        for client in found:
            assert chisquare(np.bincount(client, minlength=4)).pvalue > CHANCE
    assert chisquare(np.bincount(np.ones(ENTRIES, int), minlength=4)).pvalue < CHANCE  # what the test detects


def test_the_uploads_of_all_clients_are_jointly_uniform(seen: dict[tuple[int, ...], np.ndarray[Any, Any]]) -> None:
    """The self masks hide even the sum, before ``unmask``: all 64 triples are equally likely."""
    for found in seen.values():
        triples = found[0] + 4 * found[1] + 16 * found[2].astype(int)
        assert chisquare(np.bincount(triples, minlength=64)).pvalue > CHANCE


def test_inputs_with_the_same_sum_cannot_be_told_apart(seen: dict[tuple[int, ...], np.ndarray[Any, Any]]) -> None:
    counts = [np.bincount(found[0] + 4 * found[1] + 16 * found[2].astype(int), minlength=64) for found in seen.values()]
    assert chi2_contingency(np.stack(counts)).pvalue > CHANCE


def without_self_masks(rows: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the counts of what the server knows after ``unmask``: vectors without self masks, as pairs."""
    pairs, total = np.zeros(16, int), sum(rows)
    for _ in range(RUNS):
        done = Rehearsal(SecAgg(), vectors(*rows), SEGMENT).until("unmask")
        server = done.server
        assert isinstance(server, SecAggRound)
        found = []
        for client in done.values:
            lanes = [uncodes(done.answers["train", client]["masked"], BITS, ENTRIES).numpy().copy()]
            ((key, sign),) = server._mask_keys(client)  # places in the list are the numbers of the clients here
            add_mask(lanes, key, sign)
            found.append(lanes[0] & 3)
        assert set(np.sum(found, axis=0) & 3) == {total}
        pairs += np.bincount(found[0] + 4 * found[1], minlength=16)
    return pairs


def test_after_unmasking_the_uploads_are_uniform_given_their_sum() -> None:
    counts = [without_self_masks(rows) for rows in ((1, 1, 0), (0, 1, 1))]
    for pairs in counts:
        assert chisquare(pairs).pvalue > CHANCE
    assert chi2_contingency(np.stack(counts)).pvalue > CHANCE


def test_masks_of_two_rounds_have_nothing_in_common() -> None:
    first, second = (uploads(vectors(1, 0, 1))[0] for _ in range(2))
    assert chi2_contingency(np.histogram2d(first, second, bins=4)[0]).pvalue > CHANCE


@pytest.mark.parametrize("members", list(combinations(range(1, 6), 2)))
def test_shares_below_the_threshold_fit_every_secret(members: tuple[int, ...]) -> None:
    """With 2 of 3 needed shares, each candidate has one polynomial: the shares say nothing about the secret."""
    shares = shamir.spread(shamir.drawn(3), 5)
    for candidate in (0, shamir.PRIME - 1, *shamir.drawn(1)):
        points = {0: candidate, **{member: shares[member - 1] for member in members}}
        coefficients = shamir._interpolated(points)
        assert len(coefficients) <= 3
        assert all(shamir._evaluated(coefficients, at) == value for at, value in points.items())


def test_shares_below_the_threshold_have_the_same_distribution_for_all_secrets() -> None:
    low = []
    for secret in (0, shamir.PRIME - 1):
        drawn = [shamir.packed(shamir.spread([secret, *shamir.drawn(2)], 3)[:2]) for _ in range(400)]
        low.append(np.bincount(np.frombuffer(b"".join(drawn), np.uint8), minlength=256))
        assert chisquare(low[-1]).pvalue > CHANCE
    assert chi2_contingency(np.stack(low)).pvalue > CHANCE


def test_what_a_dealer_publishes_says_nothing_about_its_secrets() -> None:
    """The line z is uniform for all secrets; the hashes are of values with 128 random bits each."""
    found = []
    for seed in (bytes(16), bytes([1]) + bytes(15)):
        lines = b"".join(deal(b"", seed, seed, 3, 5).line for _ in range(300))
        found.append(np.bincount(np.frombuffer(lines, np.uint8), minlength=256))
        assert chisquare(found[-1]).pvalue > CHANCE
    assert chi2_contingency(np.stack(found)).pvalue > CHANCE


def test_a_server_with_shares_below_the_threshold_reconstructs_a_wrong_seed() -> None:
    segments = [SumSegment(50, 1)]
    done = Rehearsal(SecAgg(), values_of(segments, range(6)), segments).until("unmask")  # 4 of 6 are needed
    server = done.server
    assert isinstance(server, SecAggRound)
    held = server._shares[0]
    seed = shamir.Known(range(1, 7), 4, 6).secret([held[point] for point in range(1, 7)])
    for count in (1, 2, 3):
        for chosen in combinations(held, count):
            assert shamir.Known(chosen, count, 6).secret([held[point] for point in chosen]) != seed
    for chosen in combinations(held, 4):
        assert shamir.Known(chosen, 4, 6).secret([held[point] for point in chosen]) == seed


def test_the_server_alone_cannot_read_shares() -> None:
    segments = [SumSegment(5, 1)]
    done = Rehearsal(SecAgg(), values_of(segments, range(4)), segments).until("check")
    sealed = done.answers["shares", 0]["sealed"].numpy().tobytes()
    for client in (1, 2, 3):
        assert done.scratch[client]["shares"].numpy().tobytes()[:16] not in sealed
    one, two = (primitives.private_key(primitives.fresh(), b"", "share") for _ in range(2))
    guess = primitives.agree(one, primitives.public_bytes(two))
    assert primitives.unseal(guess, done.scratch[0]["listed"].numpy().tobytes(), 0, 1, sealed[:64]) is None
