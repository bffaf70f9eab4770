"""What an active server tries against secure aggregation. Each test says whether it worked against version 0.2.

Version 0.2 is commit 86513a0. There, the first three attacks opened exactly one client of cohorts of 34, 50, 100 and
200, and its recovered update was equal to the true one.
"""

from collections.abc import Sequence

import pytest
import torch

from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.rules import PHASES
from helpers.secure_attacks import Server

COHORTS = (34, 50, 100, 200)
PROTOCOL = SecAgg()


def refusals(server: Server, clients: Sequence[int], phase: str, request: Payload, **more: bytes) -> list[str]:
    """Ask clients, and return the reasons of those that refuse."""
    found = []
    for client in clients:
        try:
            server.all[client].ask(phase, request, **more)
        except PayloadError as error:
            found.append(str(error))
    return found


def trained(server: Server, clients: Sequence[int]) -> Payload:
    """Run the setup and training honestly."""
    listed = server.setup(clients)
    for client in clients:
        server.all[client].ask("train", {"completed": server.bits(listed, clients)})
    return listed


@pytest.mark.parametrize("size", [34, 50, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 200))])
def test_inconsistent_lists_of_survivors_open_nobody(size: int) -> None:
    """0.2: opened exactly one client. The server told some clients that the victim's neighbours were lost, and others
    that they were not. Now no two lists have a quorum, even if 10 % of the clients sign both."""
    bad = range(size - size // 10, size)
    server, clients = Server(PROTOCOL, range(size - size // 10), bad), range(size)
    listed, quorum = trained(server, clients), PROTOCOL.rules(size).quorum
    victim = 5
    ring = server.rules(listed).graph(server.digest(listed)).ring  # places are numbers of clients here
    lost = [{*ring[number::4]} - {victim, *bad} for number in (0, 2)]
    lists = [[client for client in clients if client not in gone] for gone in lost]
    for number, survivors in enumerate(lists):
        those = [client for client in survivors if client in server.honest and client % 2 == number]
        assert not refusals(server, those, "consent", server.consent(listed, clients, survivors))
    for number, survivors in enumerate(lists):
        signers = [client for client in survivors if client in bad or client % 2 == number]
        assert len(signers) < quorum
        for chosen in (signers, survivors):
            those = [client for client in survivors if client in server.honest and client % 2 == number]
            reasons = refusals(server, those, "unmask", server.unmask(listed, clients, survivors, chosen))
            assert len(reasons) == len(those)
            assert all("signed the list of survivors" in reason for reason in reasons)
    assert server.opened() == []


@pytest.mark.parametrize("size", COHORTS)
def test_a_small_cohort_cannot_be_claimed(size: int) -> None:
    """0.2: the server claimed 3 clients, and opened one. Now clients count the signed list, and refuse a short one."""
    protocol = SecAgg(min_clients=size * 9 // 10)
    server = Server(protocol, range(size))
    for client in range(size):
        server.all[client].ask("keys", server.keys())
    reasons = refusals(server, range(3), "shares", server.list_of(range(3)))
    assert len(reasons) == 3
    assert all("a round of 3 clients is not protected" in reason for reason in reasons)


@pytest.mark.parametrize("size", COHORTS)
def test_replaced_keys_are_refused(size: int) -> None:
    """0.2: keys were not signed. The server was every neighbour of its victim, and opened it."""
    server = Server(PROTOCOL, range(size), [size])
    for client in range(size + 1):
        server.all[client].ask("keys", server.keys())
    listed = server.list_of(range(size))
    mine = server.list_of([size])
    for name in ("mask_keys", "share_keys", "sign_keys"):
        width = len(listed[name]) // size
        changed = listed[name].clone()
        changed[7 * width : 8 * width] = mine[name]
        (reason,) = refusals(server, [5], "shares", listed | {name: changed})
        assert "the keys of client 7 are not signed with its key on the roster" in reason
    (reason,) = refusals(server, [7], "shares", listed | {"mask_keys": listed["mask_keys"].flip(0)})
    assert "not in the list with the keys that it sent" in reason


@pytest.mark.parametrize("size", COHORTS)
def test_invented_clients_are_refused(size: int) -> None:
    """0.2: opened exactly one client, whose neighbours were all invented."""
    invented = range(1 << 42, (1 << 42) + size - 1)  # not on the roster
    server = Server(PROTOCOL, [5], range(size - 1))
    server.all[5].ask("keys", server.keys())
    for client in server.colluding:
        if client != 5:
            server.colluding[client].ask("keys", server.keys())
    theirs = server.list_of([client for client in server.colluding if client != 5])
    mine = server.list_of([5])
    listed = {name: torch.cat([mine[name], theirs[name]]) for name in mine}
    listed["clients"] = torch.tensor([5, *invented[: len(theirs["clients"])]])
    (reason,) = refusals(server, [5], "shares", listed)
    assert "are not signed with its key on the roster" in reason


@pytest.mark.parametrize("apart", [1, 5, 15])
def test_different_models_open_nobody(apart: int) -> None:
    """0.2: the sum was opened, whatever model each client had trained. Now clients agree to uploads from one model."""
    server, clients = Server(PROTOCOL, range(30)), range(30)
    listed = server.setup(clients)
    other = b"\1" * 32
    for client in clients:
        models = {"models": other} if client < apart else {}
        server.all[client].ask("train", {"completed": server.bits(listed, clients)}, **models)
    same = [client for client in clients if client >= apart]
    for survivors in (list(clients), same):
        reasons = refusals(server, clients, "consent", server.consent(listed, clients, survivors))
        if len(survivors) == 30 or len(same) < PROTOCOL.rules(30).quorum:
            assert len(reasons) == 30
            assert server.opened() == []
    if len(same) >= PROTOCOL.rules(30).quorum:  # the others count as dropped
        assert not refusals(server, same, "unmask", server.unmask(listed, clients, same, same))
        assert server.opened() == [set(same)]


@pytest.mark.parametrize("clients", [34, 50])
def test_a_partition_of_the_cohort_opens_no_part(clients: int) -> None:
    """0.2: the server claimed groups of 3, and opened one client of each. Now all parts are below the quorum."""
    server, everybody = Server(PROTOCOL, range(clients)), range(clients)
    listed, half = trained(server, everybody), clients // 2
    for part in (range(half), range(half, clients)):
        reasons = refusals(server, part, "consent", server.consent(listed, everybody, part))
        assert len(reasons) == len(part)
        assert all("have sent an upload" in reason and "are needed" in reason for reason in reasons)
    assert server.opened() == []


def test_a_partition_before_training_opens_no_part() -> None:
    """Parts with lists of their own are whole rounds: ``min_clients`` is what bounds them."""
    server = Server(SecAgg(min_clients=30), range(34))
    for client in range(34):
        server.all[client].ask("keys", server.keys())
    for part in (range(17), range(17, 34)):
        assert len(refusals(server, part, "shares", server.list_of(part))) == 17


def test_a_partition_in_training_opens_no_part() -> None:
    """A group that is told another list of completed clients shares masks with nobody else, and survives nowhere.

    Without signatures of uploads, the server could open the group alone, once its other partners count as dropped.
    """
    server, clients = Server(PROTOCOL, range(30), range(30, 33)), range(33)
    listed = server.setup(clients)
    group, dropped = [*range(12)], [*range(12, 22)]
    told = [*group, *dropped, 30, 31, 32]
    assert len(told) >= PROTOCOL.rules(33).quorum
    for client in clients:
        server.all[client].ask("train", {"completed": server.bits(listed, told if client in group else clients)})
    survivors = [client for client in clients if client not in dropped]
    honest = [client for client in survivors if client in server.honest]
    reasons = refusals(server, honest, "consent", server.consent(listed, clients, survivors))
    assert len(reasons) == len(honest)
    assert all("has not signed an upload from the same list" in reason for reason in reasons)
    assert server.opened() == []


def test_unmask_is_not_repeated_for_another_list() -> None:
    """0.2: refused as well. A client agrees to one list and answers once."""
    server, clients = Server(PROTOCOL, range(20)), range(20)
    listed = trained(server, clients)
    assert not refusals(server, clients, "consent", server.consent(listed, clients, clients))
    fewer = [client for client in clients if client != 3]
    again = refusals(server, clients, "consent", server.consent(listed, clients, fewer))
    assert all("a second request in the phase 'consent'" in reason for reason in again)
    assert not refusals(server, clients, "unmask", server.unmask(listed, clients, clients, clients))
    assert server.opened() == [set(clients)]
    again = refusals(server, clients, "unmask", server.unmask(listed, clients, fewer, fewer))
    assert len(again) == 20
    assert server.opened() == [set(clients)]


@pytest.mark.parametrize("kind", ["forged", "mixed", "repeated", "of uploads", "of another round"])
def test_forged_and_mixed_signatures_reveal_nothing(kind: str) -> None:
    """0.2: nobody signed anything."""
    server, clients = Server(PROTOCOL, range(12)), range(12)
    listed = trained(server, clients)
    quorum = PROTOCOL.rules(12).quorum
    assert quorum == 8
    fewer = [client for client in clients if client != 11]
    for client in clients:
        survivors = fewer if client in range(6, 11) else list(clients)
        server.all[client].ask("consent", server.consent(listed, clients, survivors))
    request = server.unmask(listed, clients, clients, clients[:8])
    signed = request["signatures"].clone()
    if kind == "forged":
        signed[6 * 64 :] = torch.randint(0, 256, (128,), dtype=torch.uint8)
    elif kind == "repeated":
        signed[6 * 64 :] = signed[:128]
    elif kind == "of uploads":
        signed[6 * 64 :] = torch.cat([server.all[client].now.answers["train"]["signature"] for client in (6, 7)])
    elif kind == "of another round":
        other = Server(PROTOCOL, clients)
        there = trained(other, clients)
        for client in clients:
            other.all[client].ask("consent", other.consent(there, clients, clients))
        signed[6 * 64 :] = torch.cat([other.all[client].now.answers["consent"]["signature"] for client in (6, 7)])
    reasons = refusals(server, clients, "unmask", request | {"signatures": signed})
    assert len(reasons) == 12
    assert server.opened() == []


def test_masks_of_one_session_protect_one_upload() -> None:
    """Two uploads with the same masks would reveal their difference. Engines make one upload per scratch."""
    server, clients = Server(PROTOCOL, range(6)), range(6)
    listed = trained(server, clients)
    again = refusals(server, clients, "train", {"completed": server.bits(listed, clients)}, models=b"\1" * 32)
    assert len(again) == 6


def test_the_harness_finds_what_a_careless_protocol_would_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of signatures, the attack in training works: the harness then says which group is open."""
    from gossamer.parts.secure import client as client_side

    monkeypatch.setattr(client_side._Seat, "check_signed", lambda *_: None)
    server, clients = Server(PROTOCOL, range(30), range(30, 33)), range(33)
    listed = server.setup(clients)
    group, dropped = [*range(12)], [*range(12, 22)]
    told = [*group, *dropped, 30, 31, 32]
    for client in clients:
        server.all[client].ask("train", {"completed": server.bits(listed, told if client in group else clients)})
    survivors = [client for client in clients if client not in dropped]
    honest = [client for client in survivors if client in server.honest]
    assert not refusals(server, honest, "consent", server.consent(listed, clients, survivors))
    assert not refusals(server, honest, "unmask", server.unmask(listed, clients, survivors, survivors))
    assert set(group) in server.opened()
    assert server.smallest() < 0
    assert len(PHASES) == 6
