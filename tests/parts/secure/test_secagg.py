"""Secure sums equal plain sums, whoever is lost up to the threshold; above it, a round is refused."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.secure import SumSegment, TooFewClientsError, rings_of
from gossamer.core.types import Payload
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.primitives import packed_size
from gossamer.parts.secure.server import SEEN, SeenKeys
from helpers.secure_rounds import MODELS, PEOPLE, TOPIC, Rehearsal, values_of

PHASES = ("keys", "shares", "check", "train", "consent", "unmask")
SEGMENTS = [SumSegment(100, 1), SumSegment(0, 9), SumSegment(7, 255), SumSegment(5, 70_000), SumSegment(3, 0)]
SPARSE = SecAgg(neighbours=16, threshold=0.51, colluding=0.0)  # 9 of 17, 4 of 8: any 4 of 20 may be lost
TEN = [3, 4, 8, 15, 16, 23, 42, 108, 1000, 2**33]


def check(protocol: SecAgg, clients: list[int], lost: dict[str, list[int]], segments: Any = SEGMENTS) -> None:
    done = Rehearsal(protocol, values_of(segments, clients), segments, lost)
    assert torch.equal(done.total(), done.plain())
    assert done.server.summed == sorted(set(clients) - {c for phase in PHASES[:4] for c in lost.get(phase, ())})


@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_client_does_not_stop_a_round(phase: str) -> None:
    check(SecAgg(), TEN, {phase: [4, 42, 2**33]})  # 7 of 10 are needed


@pytest.mark.parametrize("protocol", [SecAgg(), SPARSE], ids=["default", "sparse"])
def test_clients_lost_in_all_phases(protocol: SecAgg) -> None:
    check(
        protocol,
        list(range(20)),
        {"keys": [0], "shares": [7], "check": [19], "train": [3], "consent": [4], "unmask": [11]},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "phase", "lost"),
    [*product([SecAgg()], PHASES, range(7)), *product([SPARSE], PHASES, range(5))],
)
def test_20_clients_with_0_to_6_lost_in_each_phase(protocol: SecAgg, phase: str, lost: int) -> None:
    check(protocol, list(range(20)), {phase: list(range(lost, 3 * lost, 2))})


@pytest.mark.slow
def test_a_graph_of_a_hundred_clients_that_was_chosen() -> None:
    lost = {"keys": [1, 2], "shares": [30, 31], "train": [50, 51, 52], "unmask": [70, 80, 99]}
    check(SecAgg(), list(range(130)), lost)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_sums_are_exact(data: st.DataObject) -> None:
    clients = data.draw(st.lists(st.integers(0, 1 << 40), min_size=3, max_size=7, unique=True))
    limits = st.integers(0, (2**32 - 1) // len(clients))
    segments = data.draw(st.lists(st.builds(SumSegment, st.integers(0, 20), limits), max_size=4))
    rules = SecAgg().rules(len(clients))
    spare = len(clients) - max(rules.needed, rules.fewest)
    fates = data.draw(st.dictionaries(st.sampled_from(clients), st.sampled_from(PHASES), max_size=spare))
    check(SecAgg(), clients, {phase: [c for c in fates if fates[c] == phase] for phase in PHASES}, segments)


@pytest.mark.parametrize(
    ("values", "kind"), [([0, 1, 1], torch.bool), ([0, 5, 9], torch.float32), ([9, 9, 0], torch.int16)]
)
def test_values_may_have_any_type(values: list[int], kind: torch.dtype) -> None:
    done = Rehearsal(SecAgg(), dict.fromkeys(range(3), torch.tensor(values).to(kind)), [SumSegment(3, 9)])
    assert done.total().tolist() == [3 * value for value in values]


@pytest.mark.parametrize("values", [[-1, 0], [0, 10], [0, float("nan")], [1], [[0, 1]]])
def test_values_outside_their_segment_are_refused(values: list[Any]) -> None:
    done = Rehearsal(SecAgg(), dict.fromkeys(range(3), torch.tensor(values)), [SumSegment(2, 9)])
    with pytest.raises(PayloadError, match="values to sum"):
        done.until("train")


@pytest.mark.parametrize("phase", PHASES)
def test_a_round_above_the_threshold_is_refused(phase: str) -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, TEN), SEGMENTS, {phase: TEN[:4]})
    with pytest.raises(TooFewClientsError, match=f"6 of .* phase {phase!r}; 7 are needed: lower SecAgg.threshold"):
        done.total()


def ring_of(done: Rehearsal) -> list[int]:
    """Return the clients in the order of the ring, once the list is known."""
    server: Any = done.server
    return [server.clients[at] for at in server.graph.ring]


def test_a_client_without_enough_neighbours_is_not_asked_further() -> None:
    protocol = SecAgg(neighbours=6, threshold=0.55, colluding=0.0)  # 4 of 7, 11 of 20, 2 of 3 consecutive ones
    done = Rehearsal(protocol, values_of(SEGMENTS, range(20)), SEGMENTS).until("keys")
    assert done.server.open_phase("shares") == list(range(20))
    ring = ring_of(done)
    # Without these, the first one has 2 neighbours, and so have those beside it then.
    for client in set(range(20)) - {ring[-3], ring[-2], ring[2], ring[3]}:
        done.server.accept(client, done.reply("shares", client, done.server.request(client)))
    assert ring[0] not in done.server.open_phase("check")


def test_a_neighbourhood_that_is_lost_after_training_ends_the_round() -> None:
    protocol = SecAgg(neighbours=4, threshold=0.6, colluding=0.0)
    done = Rehearsal(protocol, values_of(SEGMENTS, range(12)), SEGMENTS).until("check")
    done.lost = {"train": ring_of(done)[:3]}
    with pytest.raises(TooFewClientsError, match=r"of the 5 clients with shares of client \d+ answered in the phase"):
        done.rest("train", "consent", "unmask")


def test_survivors_that_would_be_cut_off_end_the_round() -> None:
    protocol = SecAgg(neighbours=8, threshold=0.51, colluding=0.0)
    done = Rehearsal(protocol, values_of(SEGMENTS, range(20)), SEGMENTS).until("keys")
    done.phase("shares")
    done.lost = {"check": [ring_of(done)[at] for at in (0, 2, 3, 4)]}
    done.phase("check")
    with pytest.raises(
        TooFewClientsError, match="1 of 4 consecutive clients survive, 2 are needed: a group is cut off"
    ):
        done.server.open_phase("train")


def test_the_bytes_of_each_phase() -> None:
    clients, neighbours, needed = 12, 11, 8
    segments = [SumSegment(1000, 1)]
    done = Rehearsal(SecAgg(), values_of(segments, range(clients)), segments, {"train": [3]}).until("unmask")

    def size(payload: Payload) -> int:
        return sum(array.nbytes for array in payload.values())

    down = {phase: size(done.requests[phase, 7]) for phase in PHASES}
    up = {phase: size(done.answers[phase, 7]) for phase in PHASES}
    some, flags = 2, 2  # bytes of a bit per neighbour, and per client
    assert down == {
        "keys": 16 + 32,
        "shares": (8 + 3 * 32 + 96) * clients,
        "check": some + (64 + 96 + 32) * neighbours,
        "train": flags,
        "consent": 2 * flags + 32 + 64 * 11,
        "unmask": flags + 64 * needed,
    }
    assert up == {
        "keys": 3 * 32 + 96,
        "shares": 64 * neighbours + 96 * clients + 16 * needed,
        "check": some,
        "train": 4 * 125 + 32 + 64,
        "consent": 64,
        "unmask": 16 * clients + 16,
    }


@pytest.mark.parametrize("bits", range(1, 33))
def test_a_masked_vector_has_the_bits_of_its_ring(bits: int) -> None:
    segments = [SumSegment(13, (2**bits - 1) // 3)]
    (ring,) = rings_of(segments, 3)
    done = Rehearsal(SecAgg(), values_of(segments, range(3)), segments)
    assert torch.equal(done.total(), done.plain())
    assert done.answers["train", 0]["masked"].numel() == packed_size([ring]) == -(-13 * ring.bits // 8)


def test_rings_above_32_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 32 bits: 3 values up to 2,147,483,648 need 33 bits; use fewer"):
        SecAgg().begin(range(3), [SumSegment(1, 2**31)], TOPIC, PEOPLE, MODELS)


def test_two_rounds_have_other_keys_and_another_graph() -> None:
    protocol, values = SecAgg(neighbours=10), values_of(SEGMENTS, range(20))
    one, two = (Rehearsal(protocol, values, SEGMENTS).until("shares") for _ in range(2))
    assert ring_of(one) != ring_of(two)
    for name in ("mask_key", "share_key", "sign_key"):
        assert not torch.equal(one.answers["keys", 0][name], two.answers["keys", 0][name])
    assert not torch.equal(one.requests["keys", 0]["nonce"], two.requests["keys", 0]["nonce"])


def test_keys_of_an_earlier_round_and_of_another_client_are_refused() -> None:
    earlier = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS).until("keys").answers
    later = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS)
    later.server.open_phase("keys")
    with pytest.raises(PayloadError, match="the keys of client 2 are not signed with its key on the roster"):
        later.server.accept(2, earlier["keys", 2])
    answer = later.reply("keys", 0, later.server.request(0))
    later.server.accept(0, answer)
    with pytest.raises(PayloadError, match="the keys of client 1 are not signed"):
        later.server.accept(1, answer)


def test_keys_that_were_seen_before_are_refused_even_if_signed() -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS)
    done.server.open_phase("keys")
    answer = done.reply("keys", 0, done.server.request(0))
    keys = [bytes(answer[f"{name}_key"].tolist()) for name in ("mask", "share", "sign")]
    SEEN.add(keys[1])
    with pytest.raises(PayloadError, match="keys replayed from an earlier round"):
        done.server.accept(0, answer)


def test_the_memory_of_keys_is_bounded() -> None:
    seen = SeenKeys(limit=4)
    for number in range(5):
        seen.add(bytes([number]))
    seen.add(bytes([0]))  # the oldest one was forgotten
    with pytest.raises(PayloadError):
        seen.add(bytes([4]))
    assert SEEN.limit >= 100_000


@pytest.mark.parametrize("name", ["mask_key", "share_key"])
@pytest.mark.parametrize("point", [bytes(32), bytes([1, *bytes(31)])], ids=["zero", "one"])
def test_public_keys_of_low_order_are_refused(name: str, point: bytes) -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS)
    done.server.open_phase("keys")
    answer = done.reply("keys", 0, done.server.request(0))
    low = torch.tensor(list(point), dtype=torch.uint8)
    with pytest.raises(PayloadError, match="low order"):
        done.server.accept(0, answer | {name: low})


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"neighbours": 7}, "SecAgg.neighbours must be an even number of at least 2, or none, got 7"),
        ({"neighbours": 0}, "SecAgg.neighbours must be an even number"),
        ({"threshold": 0.5}, "SecAgg.threshold must be above 1/2 and at most 1, got 0.5"),
        ({"threshold": 1.1}, "SecAgg.threshold"),
        ({"colluding": -0.1}, "SecAgg.colluding must be at least 0 and below 1"),
        ({"colluding": 0.4}, "SecAgg.colluding must be below 2 threshold - 1 = 0.333, got 0.4"),
        ({"dropouts": 0.4}, "SecAgg.dropouts must be at most 1 - threshold = 0.333, got 0.4"),
        ({"min_clients": 2}, "SecAgg.min_clients must be at least 3, got 2"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SecAgg(**fields)
    assert shown in str(refused.value)


def test_cohorts_that_are_not_protected_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a round of 2 clients is not protected: SecAgg.min_clients=3 is the fewest"):
        SecAgg().check_cohort(2)
    with pytest.raises(ConfigError, match=r"SecAgg.neighbours gives a graph of 1,000 clients .* 202 neighbours are"):
        SecAgg(neighbours=20).check_cohort(1000)
    SecAgg(neighbours=20).check_cohort(20)  # complete
    SecAgg().check_cohort(1000)


def test_phases_come_in_order() -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS)
    with pytest.raises(ValueError, match="expected the phase 'keys', got 'train'"):
        done.server.open_phase("train")
    with pytest.raises(ValueError, match="after the phase 'unmask'"):
        done.server.total()
    total: Tensor = done.total()
    assert torch.equal(done.server.total(), total)  # asked again
