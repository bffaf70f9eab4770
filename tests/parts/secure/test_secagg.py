"""Secure sums equal plain sums, whoever is lost up to the threshold; above it, a round is refused."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import fold, key, permutation
from gossamer.core.secure import SumSegment, TooFewClientsError, rings_of
from gossamer.core.types import Payload
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.masks import packed_size
from gossamer.parts.secure.server import SEEN, SeenKeys
from helpers.secure_rounds import Rehearsal, values_of

PHASES = ("keys", "shares", "train", "unmask")
SEGMENTS = [SumSegment(100, 1), SumSegment(0, 9), SumSegment(7, 255), SumSegment(5, 70_000), SumSegment(3, 0)]
SPARSE = SecAgg(neighbours=16, threshold=0.51, colluding=0.0)  # 9 of 17: any 6 of 20 may be lost
TEN = [3, 4, 8, 15, 16, 23, 42, 108, 1000, 2**33]


def check(protocol: SecAgg, clients: list[int], lost: dict[str, list[int]], segments: Any = SEGMENTS) -> None:
    done = Rehearsal(protocol, values_of(segments, clients), segments, lost)
    assert torch.equal(done.total(), done.plain())
    assert done.server.summed == sorted(set(clients) - {c for phase in PHASES[:3] for c in lost.get(phase, ())})


@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_client_does_not_stop_a_round(phase: str) -> None:
    check(SecAgg(), TEN, {phase: [4, 42, 2**33]})  # 7 of 10 are needed


@pytest.mark.parametrize("protocol", [SecAgg(), SPARSE], ids=["default", "sparse"])
def test_clients_lost_in_all_phases(protocol: SecAgg) -> None:
    check(protocol, list(range(20)), {"keys": [0], "shares": [7, 19], "train": [3, 4], "unmask": [11]})


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "phase", "lost"), [*product([SecAgg(), SPARSE], PHASES, range(7))])
def test_20_clients_with_0_to_6_lost_in_each_phase(protocol: SecAgg, phase: str, lost: int) -> None:
    check(protocol, list(range(20)), {phase: list(range(lost, 3 * lost, 2))})


@pytest.mark.slow
def test_a_graph_of_a_hundred_clients_that_was_chosen() -> None:
    lost = {"keys": [1, 2], "shares": [30, 31], "train": [50, 51, 52], "unmask": [70, 80, 99]}
    check(SecAgg(), list(range(100)), lost)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_sums_are_exact(data: st.DataObject) -> None:
    clients = data.draw(st.lists(st.integers(0, 1 << 40), min_size=3, max_size=7, unique=True))
    limits = st.integers(0, (2**32 - 1) // len(clients))
    segments = data.draw(st.lists(st.builds(SumSegment, st.integers(0, 20), limits), max_size=4))
    spare = len(clients) - SecAgg().rules(len(clients)).needed
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


def test_a_client_without_enough_neighbours_is_not_asked_further() -> None:
    protocol = SecAgg(neighbours=6, threshold=0.55, colluding=0.0)  # 4 of 7, 11 of 20
    ring = permutation(fold(key(0), "neighbours"), 20).tolist()
    # Without these, the first one has 2 neighbours; without it, those beside it have 2.
    lost = {"keys": [ring[-3], ring[-2], ring[2], ring[3]]}
    done = Rehearsal(protocol, values_of(SEGMENTS, range(20)), SEGMENTS, lost)
    assert torch.equal(done.total(), done.plain())
    assert done.server.summed == sorted(ring[4:-3])
    assert ("shares", ring[0]) not in done.requests


def test_a_neighbourhood_that_is_lost_after_training_ends_the_round() -> None:
    protocol = SecAgg(neighbours=4, threshold=0.6, colluding=0.0)
    done = Rehearsal(protocol, values_of(SEGMENTS, range(12)), SEGMENTS)
    done.lost = {"train": done.server.graph[5][:3]}  # type: ignore[attr-defined]
    with pytest.raises(TooFewClientsError, match=r"of the 5 clients with shares of client \d+ answered in the phase"):
        done.total()


def test_the_bytes_of_each_phase() -> None:
    clients, neighbours = 12, 11
    done = Rehearsal(SecAgg(), values_of([SumSegment(1000, 1)], range(clients)), [SumSegment(1000, 1)]).until("unmask")

    def size(payload: Payload) -> int:
        return sum(array.nbytes for array in payload.values())

    down = {phase: size(done.requests[phase, 7]) for phase in PHASES}
    up = {phase: size(done.answers[phase, 7]) for phase in PHASES}
    flags = -(-neighbours // 8)
    assert down == {"keys": 16 + 8, "shares": 72 * neighbours, "train": flags, "unmask": 48 * neighbours + 2 * flags}
    assert up == {"keys": 64, "shares": 48 * neighbours + 32, "train": 4 * 125, "unmask": 16 * clients + flags}


@pytest.mark.parametrize("bits", range(1, 33))
def test_a_masked_vector_has_the_bits_of_its_ring(bits: int) -> None:
    segments = [SumSegment(13, (2**bits - 1) // 3)]
    (ring,) = rings_of(segments, 3)
    done = Rehearsal(SecAgg(), values_of(segments, range(3)), segments)
    assert torch.equal(done.total(), done.plain())
    assert done.answers["train", 0]["masked"].numel() == packed_size([ring]) == -(-13 * ring.bits // 8)


def test_rings_above_32_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 32 bits: 3 values up to 2,147,483,648 need 33 bits; use fewer"):
        SecAgg().begin(range(3), [SumSegment(1, 2**31)], key(0))


def test_secrets_do_not_follow_from_the_seed_of_a_run_but_the_graph_does() -> None:
    protocol, values = SecAgg(neighbours=10), values_of(SEGMENTS, range(20))
    one, two = (Rehearsal(protocol, values, SEGMENTS).until("keys") for _ in range(2))
    assert one.server.graph == two.server.graph  # type: ignore[attr-defined]
    for name in ("mask_key", "share_key"):
        assert not torch.equal(one.answers["keys", 0][name], two.answers["keys", 0][name])
    assert not torch.equal(one.requests["keys", 0]["nonce"], two.requests["keys", 0]["nonce"])


def test_keys_of_an_earlier_round_are_refused() -> None:
    earlier = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS).until("keys").answers
    later = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS)
    later.server.open_phase("keys")
    with pytest.raises(PayloadError, match="keys replayed from an earlier round"):
        later.server.accept(2, earlier["keys", 2])
    half = earlier["keys", 2] | {"mask_key": SecAgg().answer("keys", 2, later.server.request(2), {})[0]["mask_key"]}
    with pytest.raises(PayloadError, match="keys replayed"):
        later.server.accept(2, half)


def test_keys_of_another_client_are_refused() -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, range(4)), SEGMENTS)
    done.server.open_phase("keys")
    answer, _ = SecAgg().answer("keys", 0, done.server.request(0), {})
    done.server.accept(0, answer)
    with pytest.raises(PayloadError, match="keys replayed"):
        done.server.accept(1, answer)


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
    answer, _ = SecAgg().answer("keys", 0, done.server.request(0), {})
    low = torch.tensor(list(point), dtype=torch.uint8)
    with pytest.raises(PayloadError, match="low order"):
        done.server.accept(0, answer | {name: low})


def wrong_shares(liars: set[int]) -> Any:
    """Return a change of answers: these clients send wrong shares in ``unmask``."""

    def change(phase: str, client: int, payload: Payload) -> Payload:
        return payload | {"shares": payload["shares"] ^ 1} if phase == "unmask" and client in liars else payload

    return change


@pytest.mark.parametrize("lost", [[], [23]], ids=["seeds", "keys"])
@pytest.mark.parametrize("liar", [3, 108, 2**33])
def test_a_wrong_share_is_left_out(liar: int, lost: list[int]) -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, TEN), SEGMENTS, {"train": lost}, answer=wrong_shares({liar}))
    assert torch.equal(done.total(), done.plain())


@pytest.mark.parametrize("lost", [{"unmask": [4, 8, 15]}, {"train": [4, 8, 15]}], ids=["seeds", "keys"])
def test_shares_that_do_not_fit_end_the_round(lost: dict[str, list[int]]) -> None:
    done = Rehearsal(SecAgg(), values_of(SEGMENTS, TEN), SEGMENTS, lost, answer=wrong_shares({42}))
    with pytest.raises(TooFewClientsError, match="7 shares of client 3 arrived, but no 7 of them fit"):
        done.total()


def test_a_ciphertext_that_cannot_be_read_is_not_a_share() -> None:
    def spoil(phase: str, client: int, payload: Payload) -> Payload:
        if phase == "shares" and client == 3:
            return payload | {"sealed": torch.cat([payload["sealed"][:48] ^ 1, payload["sealed"][48:]])}
        return payload

    done = Rehearsal(SecAgg(), values_of(SEGMENTS, TEN), SEGMENTS, answer=spoil)
    assert torch.equal(done.total(), done.plain())
    assert done.answers["unmask", 4]["shares"].numel() == 16 * 9  # those of client 3 are missing
    assert done.answers["unmask", 8]["shares"].numel() == 16 * 10


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
    with pytest.raises(ConfigError, match=r"SecAgg.neighbours gives a graph of 1,000 clients .* 124 neighbours are"):
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
