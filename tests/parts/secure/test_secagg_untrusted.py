"""Requests and answers are untrusted: a lying server, and messages that are not well formed, are refused."""

from collections.abc import Iterator

import pytest
import torch

from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.secure import SumSegment
from gossamer.core.types import Payload
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.primitives import KeyRoster, SimulatedKeys, encoded, signer
from gossamer.parts.secure.rules import PHASES
from helpers.secure_rounds import PEOPLE, Rehearsal, member, values_of

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
    for phase in PHASES:
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


@pytest.mark.parametrize("phase", PHASES)
def test_malformed_requests_are_refused(phase: str) -> None:
    done = rehearsal({"train": [2]})
    if phase != "keys":
        done.until(PHASES[PHASES.index(phase) - 1])
    done.server.open_phase(phase)
    for bad in malformed(done.server.request(1)):
        with pytest.raises(PayloadError):
            done.reply(phase, 1, bad)
    done.server.accept(1, done.reply(phase, 1, done.server.request(1)))


def test_bits_after_the_last_client_and_after_the_last_entry_are_refused() -> None:
    done = rehearsal().until("check")
    done.server.open_phase("train")
    request = done.server.request(0)
    with pytest.raises(PayloadError, match="'completed' has ones after its 6 bits"):
        done.reply("train", 0, {"completed": request["completed"] | 128})
    answer = done.reply("train", 0, request)
    at = 1  # 5 entries of 3 bits are 15 bits
    with pytest.raises(PayloadError, match="'masked' has ones after its 15 bits"):
        done.server.accept(0, answer | {"masked": answer["masked"].index_fill(0, torch.tensor([at]), 255)})


def test_clients_that_were_not_asked_are_refused() -> None:
    done = rehearsal({"keys": [3]}).until("keys")
    done.server.open_phase("shares")
    for client in (3, 99, -1):
        with pytest.raises(PayloadError, match=f"client {client} was not asked in the phase 'shares'"):
            done.server.accept(client, {})


@pytest.mark.parametrize(
    ("clients", "shown"),
    [
        ([0, 1, 2, 2, 4, 5], "different clients in ascending order, got 0, 1, 2, 2, 4, 5"),
        ([0, 2, 1, 3, 4, 5], "ascending order"),
        ([-1, 0, 2, 3, 4, 5], "different clients in ascending order, got -1"),
        ([1, 2, 3, 4, 5, 6], "this client is not in the list with the keys that it sent"),
        ([0, 1, 2, 3, 4, 9], "the keys of client 9 are not signed with its key on the roster"),
        ([0, 1, 2, 3, 4, 2**62], f"the keys of client {2**62} are not signed"),
    ],
)
def test_a_wrong_list_of_clients_is_refused(clients: list[int], shown: str) -> None:
    done = rehearsal().until("keys")
    done.server.open_phase("shares")
    with pytest.raises(PayloadError, match=shown):
        done.reply("shares", 0, done.server.request(0) | {"clients": torch.tensor(clients)})


def test_a_list_that_is_shorter_than_the_smallest_cohort_is_refused() -> None:
    done = Rehearsal(SecAgg(min_clients=6), values_of(SEGMENTS, CLIENTS), SEGMENTS).until("keys")
    done.server.open_phase("shares")
    with pytest.raises(PayloadError, match="the cohort is refused: a round of 5 clients is not protected"):
        done.reply("shares", 0, {name: array[: len(array) // 6 * 5] for name, array in done.server.request(0).items()})


def test_the_same_key_for_two_clients_is_refused() -> None:
    done = rehearsal().until("keys")
    done.server.open_phase("shares")
    request = done.server.request(0)
    keys = request["mask_keys"].clone()
    keys[32:64] = keys[64:96]
    with pytest.raises(PayloadError, match="two clients have the same public key"):
        done.reply("shares", 0, request | {"mask_keys": keys})


def test_another_roster_is_refused() -> None:
    done = rehearsal()
    done.server.open_phase("keys")
    request = done.server.request(0)
    with pytest.raises(PayloadError, match="another roster of clients and keys"):
        PROTOCOL.answer("keys", member(0, roster=SimulatedKeys(9)), request, {})
    with pytest.raises(PayloadError, match="another roster"):
        done.reply("keys", 0, request | {"roster": torch.zeros(32, dtype=torch.uint8)})


def bits_of(*clients: int) -> torch.Tensor:
    return torch.tensor([sum(1 << client for client in clients)], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("completed", "shown"),
    [
        ((0, 1, 2), "3 of 6 clients have completed the setup, 4 are needed"),
        ((1, 2, 3, 4, 5), "this client is not among those that have completed the setup"),
    ],
)
def test_too_few_clients_that_have_completed_the_setup_are_refused(completed: tuple[int, ...], shown: str) -> None:
    done = rehearsal().until("check")
    with pytest.raises(PayloadError, match=shown):
        done.reply("train", 0, {"completed": bits_of(*completed)})


def test_a_server_that_lies_about_dropouts_is_refused() -> None:
    done = rehearsal({"train": [2]}).until("train")
    done.asked = done.server.open_phase("consent")
    request = done.server.request(0)

    def called(*survivors: int) -> Payload:
        signed = [done.answers["train", client]["signature"] for client in survivors if client != 2]
        return request | {"survivors": bits_of(*survivors), "signatures": torch.cat(signed)}

    with pytest.raises(PayloadError, match="3 of 6 clients have sent an upload, 4 are needed"):
        done.reply("consent", 0, called(0, 1, 3))
    with pytest.raises(PayloadError, match="this client is not among those that have sent an upload"):
        done.reply("consent", 0, called(1, 3, 4, 5))
    with pytest.raises(PayloadError, match="expected 320 uint8 values named 'signatures'"):
        done.reply("consent", 0, called(0, 1, 2, 3, 4))
    forged = called(0, 1, 2, 3, 4)["signatures"]
    with pytest.raises(PayloadError, match="client 2 has not signed an upload from the same list, model and kind"):
        done.reply("consent", 0, called(0, 1, 2, 3, 4) | {"signatures": torch.cat([forged, forged[:64]])})
    less = request | {"completed": bits_of(0, 1, 2, 3, 4)}
    with pytest.raises(PayloadError, match="a client that has not completed the setup is called a survivor"):
        done.reply("consent", 0, less)
    done.phase_answers("consent")  # a refused request spends nothing
    done.phase("unmask")
    assert torch.equal(done.server.total(), done.plain())


def test_nothing_is_revealed_without_a_quorum() -> None:
    done = rehearsal().until("consent")
    done.asked = done.server.open_phase("unmask")
    request = done.server.request(0)
    few = request | {"signers": bits_of(0, 1, 2), "signatures": request["signatures"][: 3 * 64]}
    with pytest.raises(PayloadError, match="3 clients have signed the list of survivors, 4 are needed"):
        done.reply("unmask", 0, few)
    with pytest.raises(PayloadError, match="client 5 has not signed the list of survivors"):
        done.reply("unmask", 0, request | {"signers": bits_of(0, 1, 2, 5)})
    done.phase_answers("unmask")
    assert torch.equal(done.server.total(), done.plain())


def test_unmask_is_answered_once() -> None:
    done = rehearsal().until("unmask")
    assert list(done.scratch[0]) == ["phase"]  # no secret is left
    for phase in ("shares", "check", "train", "consent", "unmask"):
        with pytest.raises(PayloadError, match=f"a second request in the phase '{phase}': each one is answered once"):
            done.reply(phase, 0, done.requests[phase, 0])


@pytest.mark.parametrize("phase", ["shares", "check", "consent"])
def test_phases_are_answered_once(phase: str) -> None:
    done = rehearsal().until(phase)
    with pytest.raises(PayloadError, match=f"a second request in the phase '{phase}'"):
        done.reply(phase, 0, done.requests[phase, 0])


def test_no_upload_is_made_after_the_list_of_survivors_was_signed() -> None:
    done = rehearsal().until("consent")
    with pytest.raises(PayloadError, match="a second request in the phase 'train'"):
        done.reply("train", 0, done.requests["train", 0])


@pytest.mark.parametrize(
    ("phase", "last", "missing"),
    [
        ("shares", "", "keys"),
        ("check", "keys", "shares"),
        ("train", "shares", "check"),
        ("consent", "shares", "check"),
        ("unmask", "check", "train"),
        ("unmask", "", "keys"),
    ],
)
def test_no_phase_is_left_out(phase: str, last: str, missing: str) -> None:
    done = rehearsal().until(last) if last else rehearsal()
    with pytest.raises(PayloadError, match=f"a request in the phase '{phase}', before '{missing}' was answered"):
        done.reply(phase, 0, {})
    with pytest.raises(PayloadError, match="expected a phase of"):
        PROTOCOL.answer("train", member(0), {}, {})


def test_a_request_of_another_round_is_refused() -> None:
    done = rehearsal().until("keys")
    done.server.open_phase("shares")
    with pytest.raises(PayloadError, match="a request of another run, round or exchange"):
        PROTOCOL.answer("shares", member(0, b"round 1"), done.server.request(0), done.scratch[0])


def test_shares_for_another_client_or_of_another_round_are_not_good() -> None:
    done, other = rehearsal().until("shares"), rehearsal().until("shares")
    for each in (done, other):
        each.server.open_phase("check")
    request, moved = done.server.request(0), done.server.request(1)
    good, _ = PROTOCOL.answer("check", member(0), request, done.scratch[0])
    assert good["good"].tolist() == [0b11111]
    for sealed in (moved["sealed"], other.server.request(0)["sealed"]):
        answer, scratch = PROTOCOL.answer("check", member(0), request | {"sealed": sealed}, done.scratch[0])
        assert answer["good"].tolist() == [0]
        assert scratch["shares"].numel() == 0


def test_the_scratch_is_a_nest_of_tensors_that_can_be_stored() -> None:
    done = rehearsal().until("consent")
    assert {value.dtype for value in done.scratch[0].values()} == {torch.uint8, torch.int64}


def test_rosters_verify_signatures_of_their_clients_alone() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    privates = {client: ec.generate_private_key(ec.SECP384R1()) for client in (3, 5)}
    roster = KeyRoster({client: encoded(private.public_key()) for client, private in privates.items()})
    same = KeyRoster(dict(reversed(roster.keys.items())))
    assert roster.digest == same.digest != KeyRoster({3: roster.keys[3]}).digest
    signature = signer(privates[3])(b"data")
    assert len(signature) == 96
    assert roster.verify(3, b"data", signature)
    assert not roster.verify(5, b"data", signature)
    assert not roster.verify(4, b"data", signature)
    assert not roster.verify(3, b"other", signature)
    for bad in (b"", signature[:-1], bytes(96), b"\xff" * 96, signature[48:] + signature[:48]):
        assert not roster.verify(3, b"data", bad)
    assert not KeyRoster({3: b"no point"}).verify(3, b"data", signature)
    with pytest.raises(ConfigError, match="P-384"):
        encoded(ec.generate_private_key(ec.SECP256R1()).public_key())


def test_simulated_keys_are_those_of_one_run() -> None:
    one, two = SimulatedKeys(4), SimulatedKeys(4)
    assert one.digest != two.digest
    signature = one.signer(2)(b"data")
    assert one.verify(2, b"data", signature)
    assert not two.verify(2, b"data", signature)
    assert not one.verify(4, b"data", signature)
    assert not PEOPLE.verify(-1, b"data", signature)
