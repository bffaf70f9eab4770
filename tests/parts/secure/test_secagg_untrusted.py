"""Requests and answers are untrusted: a lying server, and messages that are not well formed, are refused."""

from collections.abc import Iterator

import pytest
import torch

from gossamer.core.errors import PayloadError
from gossamer.core.secure import SumSegment
from gossamer.core.types import Payload
from gossamer.parts.secure import SecAgg
from helpers.secure_rounds import Rehearsal, values_of

SEGMENTS = [SumSegment(5, 1), SumSegment(3, 300)]
CLIENTS = range(6)  # 4 of 6 are needed
PROTOCOL = SecAgg()


def rehearsal(lost: dict[str, list[int]] | None = None) -> Rehearsal:
    return Rehearsal(PROTOCOL, values_of(SEGMENTS, CLIENTS), SEGMENTS, lost or {})


def malformed(payload: Payload) -> Iterator[Payload]:
    """Return a payload with one mistake, for each kind of mistake and each array."""
    yield payload | {"more": torch.zeros(1)}
    for name, array in payload.items():
        yield {other: kept for other, kept in payload.items() if other != name}
        yield payload | {name: array.to(torch.float32)}
        yield payload | {name: array.to(torch.int16)}
        yield payload | {name: array[:-1]}
        yield payload | {name: torch.cat([array, array[:1]])}
        yield payload | {name: array.view(1, -1)}


def test_malformed_answers_are_refused_and_the_round_goes_on() -> None:
    done = rehearsal({"train": [2]})
    for phase in ("keys", "shares", "train", "unmask"):
        for client in done.server.open_phase(phase):
            if client in done.lost.get(phase, ()):
                continue
            answer = done.reply(phase, client, done.server.request(client))
            for bad in malformed(answer):
                with pytest.raises(PayloadError):
                    done.server.accept(client, bad)
            done.server.accept(client, answer)
            with pytest.raises(PayloadError, match=f"a second answer of client {client} in the phase '{phase}'"):
                done.server.accept(client, answer)
    assert torch.equal(done.server.total(), done.plain())


@pytest.mark.parametrize("phase", ["keys", "shares", "train", "unmask"])
def test_malformed_requests_are_refused(phase: str) -> None:
    done = rehearsal({"train": [2]})
    order = ["keys", "shares", "train", "unmask"]
    if phase != "keys":
        done.until(order[order.index(phase) - 1])
    done.server.open_phase(phase)
    for bad in malformed(done.server.request(1)):
        with pytest.raises(PayloadError):
            done.reply(phase, 1, bad)
    done.server.accept(1, done.reply(phase, 1, done.server.request(1)))


def test_bits_after_the_last_client_and_after_the_last_entry_are_refused() -> None:
    done = rehearsal().until("shares")
    done.server.open_phase("train")
    request = done.server.request(0)
    with pytest.raises(PayloadError, match="'completed' has ones after its 5 bits"):
        done.reply("train", 0, {"completed": request["completed"] | 128})
    answer = done.reply("train", 0, request)
    at = 1  # 5 entries of 3 bits are 15 bits
    with pytest.raises(PayloadError, match="'masked' has ones after its 15 bits"):
        done.server.accept(0, {"masked": answer["masked"].index_fill(0, torch.tensor([at]), 255)})


def test_clients_that_were_not_asked_are_refused() -> None:
    done = rehearsal({"keys": [3]}).until("keys")
    done.server.open_phase("shares")
    for client in (3, 99, -1):
        with pytest.raises(PayloadError, match=f"client {client} was not asked in the phase 'shares'"):
            done.server.accept(client, {})


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ([1, 2, 2, 4, 5], "other clients in ascending order, got 1, 2, 2, 4, 5"),
        ([2, 1, 3, 4, 5], "ascending order"),
        ([-1, 2, 3, 4, 5], "other clients in ascending order, got -1"),
        ([0, 2, 3, 4, 5], "other clients in ascending order, got 0"),
    ],
)
def test_a_wrong_list_of_neighbours_is_refused(others: list[int], shown: str) -> None:
    done = rehearsal().until("keys")
    done.server.open_phase("shares")
    with pytest.raises(PayloadError, match=shown):
        done.reply("shares", 0, done.server.request(0) | {"neighbours": torch.tensor(others)})


@pytest.mark.parametrize(("count", "shown"), [(2, "2 neighbours, expected 3 to 5 in a cohort of 6"), (7, "7 neigh")])
def test_too_few_and_too_many_neighbours_are_refused(count: int, shown: str) -> None:
    done = rehearsal().until("keys")
    keys = torch.arange(64 * count).mul(37).to(torch.uint8)
    request = {
        "neighbours": torch.arange(1, count + 1),
        "mask_keys": keys[: 32 * count],
        "share_keys": keys[32 * count :],
    }
    with pytest.raises(PayloadError, match=shown):
        done.reply("shares", 0, request)


def test_the_same_key_for_two_neighbours_is_refused() -> None:
    done = rehearsal().until("keys")
    done.server.open_phase("shares")
    request = done.server.request(0)
    keys = request["mask_keys"].clone()
    keys[:32] = keys[32:64]
    for wrong in (keys, torch.cat([done.answers["keys", 0]["mask_key"], keys[32:]])):
        with pytest.raises(PayloadError, match="two clients have the same public key"):
            done.reply("shares", 0, request | {"mask_keys": wrong})


def test_a_client_takes_no_part_in_a_cohort_that_is_not_protected() -> None:
    request = {"nonce": torch.zeros(16, dtype=torch.uint8), "clients": torch.tensor([2])}
    with pytest.raises(PayloadError, match="'clients' must be at least 3, got 2"):
        PROTOCOL.answer("keys", 0, request, {})
    with pytest.raises(PayloadError, match="the cohort is refused"):
        SecAgg(neighbours=4).answer("keys", 0, request | {"clients": torch.tensor([1000])}, {})


def test_too_few_completed_neighbours_are_refused() -> None:
    done = rehearsal().until("shares")
    with pytest.raises(PayloadError, match="2 neighbours have completed 'shares', 3 are needed"):
        done.reply("train", 0, {"completed": torch.tensor([0b00011], dtype=torch.uint8)})


def lists(survivors: int, dropped: int, sealed: int) -> Payload:
    """Return a request of ``unmask`` with these bits of neighbours, and a number of ciphertexts."""
    flags = {
        "survivors": torch.tensor([survivors], dtype=torch.uint8),
        "dropped": torch.tensor([dropped], dtype=torch.uint8),
    }
    return {**flags, "sealed": torch.zeros(48 * sealed, dtype=torch.uint8)}


def test_a_server_that_lies_about_dropouts_is_refused() -> None:
    done = rehearsal().until("train")
    with pytest.raises(PayloadError, match="clients called both survivors and dropped: 3; with both secrets"):
        done.reply("unmask", 0, lists(0b00111, 0b00100, 3))
    with pytest.raises(PayloadError, match="2 neighbours are called survivors, 3 are needed"):
        done.reply("unmask", 0, lists(0b00011, 0b11100, 5))
    with pytest.raises(PayloadError, match="'survivors' has ones after its 5 bits"):
        done.reply("unmask", 0, lists(0b100111, 0, 4))
    done.phase("unmask")  # a refused request spends nothing
    assert torch.equal(done.server.total(), done.plain())


def test_unmask_is_answered_once() -> None:
    done = rehearsal().until("unmask")
    assert list(done.scratch[0]) == ["phase"]  # no secret is left
    for phase in ("shares", "train", "unmask"):
        with pytest.raises(PayloadError, match=f"a second request in the phase '{phase}': each one is answered once"):
            done.reply(phase, 0, done.requests[phase, 0])


def test_shares_are_answered_once() -> None:
    done = rehearsal().until("shares")
    with pytest.raises(PayloadError, match="a second request in the phase 'shares'"):
        done.reply("shares", 0, done.requests["shares", 0])


@pytest.mark.parametrize(("phase", "first"), [("shares", "keys"), ("train", "keys"), ("unmask", "keys")])
def test_no_phase_is_left_out(phase: str, first: str) -> None:
    done = rehearsal()
    with pytest.raises(PayloadError, match=f"a request in the phase '{phase}', before '{first}' was answered"):
        done.reply(phase, 0, {})
    with pytest.raises(PayloadError, match="expected a phase of"):
        PROTOCOL.answer("train", 0, {}, {})


def test_a_share_for_another_client_or_of_another_round_is_not_readable() -> None:
    done, other = rehearsal().until("train"), rehearsal().until("train")
    for each in (done, other):
        each.server.open_phase("unmask")
    request, moved = done.server.request(0), done.server.request(1)
    good, _ = PROTOCOL.answer("unmask", 0, request, done.scratch[0])
    assert good["readable"].tolist() == [0b11111]
    for sealed in (moved["sealed"], other.server.request(0)["sealed"]):
        answer, _ = PROTOCOL.answer("unmask", 0, request | {"sealed": sealed}, done.scratch[0])
        assert answer["readable"].tolist() == [0]
        assert answer["shares"].numel() == 16  # the client's own share of its seed


def test_the_scratch_is_a_nest_of_tensors_that_can_be_stored() -> None:
    done = rehearsal().until("shares")
    assert {value.dtype for value in done.scratch[0].values()} == {torch.uint8, torch.int64}
