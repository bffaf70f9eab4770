"""Secure aggregation against random deviations: of an active server with colluding clients, and of lying clients.

    PYTHONPATH=tests python tests/fuzz/secure.py [--full] [--seconds S] [--seed N]

A case is a request or an answer that breaks the protocol, with cohorts of 3 to 12 clients and vectors of 3 values.

**Server.** The server has plans: a list of clients, who has completed the setup, a model, and who survives. It follows
one of several plans with each client in each phase, signs what it wants as colluding clients, asks twice, goes back,
starts anew, and damages what it sends. ``helpers.secure_attacks`` then says which sums it can compute: none of fewer
honest clients than a quorum less the colluding ones. Clients raise no other errors than ``PayloadError``.

**Clients.** Some clients answer with damaged, foreign, earlier or false messages, or are silent. The server raises no
other errors than ``PayloadError`` and ``TooFewClientsError``, the sum of the others is exact, and as long as the liars
are no more than the margin, no honest client is named.
"""

import random
import warnings
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from fuzz import campaign
from gossamer.core.errors import PayloadError
from gossamer.core.secure import TooFewClientsError
from gossamer.core.types import Payload
from gossamer.parts.secure import SecAgg
from gossamer.parts.secure.primitives import tensor
from gossamer.parts.secure.rules import PHASES
from helpers.secure_attacks import SEGMENTS, Server
from helpers.secure_rounds import Rehearsal, values_of

ROUNDS = 8
"""Rounds per group."""

OUTCOMES = Counter[str]()
"""What became of the rounds: sums that a server could compute, and sums that were exact although clients lied."""


def damaged(payload: Payload, rng: random.Random) -> Payload:
    """A payload with another value, type, length or name."""
    found, name = dict(payload), rng.choice(sorted(payload))
    array, kind = found[name].clone(), rng.randrange(6)
    if kind <= 1 and array.numel():
        at = rng.randrange(array.numel())
        array[at] = rng.choice((0, 1, 127, int(array[at]) ^ 1, rng.randrange(128)))
    elif kind == 2:
        array = array[: rng.randrange(array.numel() + 1)]
    elif kind == 3:
        array = torch.cat([array, array[:16]])
    elif kind == 4:
        array = array.to(rng.choice((torch.int64, torch.float32, torch.uint8, torch.int16)))
    else:
        found[rng.choice(("more", *found))] = array
    return found | {name: array}


class Plan(NamedTuple):
    """What a server pretends in a round."""

    clients: list[int]
    completed: list[int]
    survivors: list[int]
    models: bytes


def plan_of(clients: list[int], rng: random.Random) -> Plan:
    def most(of: list[int], left_out: float) -> list[int]:
        return sorted(client for client in of if rng.random() > left_out)

    listed = most(clients, rng.choice((0.0, 0.0, 0.0, 0.2)))
    completed = most(listed, rng.choice((0.0, 0.0, 0.1, 0.3)))
    return Plan(listed, completed, most(completed, rng.choice((0.0, 0.0, 0.1, 0.3))), bytes([rng.randrange(2)]) * 32)


def protocol_of(rng: random.Random) -> tuple[SecAgg, int, int]:
    """A protocol, a number of clients, and how many of them may collude: no more than its share of any cohort."""
    size = rng.randint(3, 12)
    threshold = rng.choice((0.51, 0.6, 2 / 3, 0.8))
    colluding = rng.choice((0.0, 0.1, 0.2, 0.3))
    colluding = min(colluding, 2 * threshold - 1.001)
    fewest = rng.randint(max(3, size // 2), size)
    bad = int(colluding * fewest + 1e-9)
    neighbours = rng.choice((None, None, 4, 6, 8))
    dropouts = max(0.0, min(0.1, 1 - threshold - 1e-6))
    protocol = SecAgg(neighbours, threshold, colluding, dropouts, fewest)
    sparse = neighbours is not None
    if sparse and any(protocol.failure(n).secrecy > 0 for n in range(fewest, size + 1)):
        protocol = SecAgg(None, threshold, colluding, dropouts, fewest)
    return protocol, size, bad


def against_clients(rng: random.Random, counts: Counter[str]) -> None:
    """One round of a server that breaks the protocol."""
    protocol, size, bad = protocol_of(rng)
    clients = list(range(size))
    colluding = sorted(rng.sample(clients, bad))
    server = Server(protocol, [client for client in clients if client not in colluding], colluding)
    for client in clients:
        server.all[client].ask("keys", server.keys())
    plans = [plan_of(clients, rng) for _ in range(rng.choice((1, 2, 2, 3)))]
    lists = [server.list_of(plan.clients) if plan.clients else {} for plan in plans]
    follow = rng.choice((0.0, 0.0, 0.1, 0.5))  # how many clients follow another plan than the first
    chosen = {client: rng.randrange(len(plans)) if rng.random() < follow else 0 for client in clients}
    wander, damage, twice = (
        rng.choice((0.0, 0.0, 0.05, 0.3)),
        rng.choice((0.0, 0.02, 0.2)),
        rng.choice((0.0, 0.05, 0.2)),
    )

    def tell(client: int, phase: str, number: int) -> None:
        plan, listed = plans[number], lists[number]
        deviant = number > 0 or (phase in ("consent", "unmask") and len(plan.survivors) < len(plan.completed))
        if not listed:
            return
        if phase == "keys":
            request, deviant = server.keys(), True
        elif phase == "shares":
            request = listed
        elif phase == "check":
            if client not in plan.clients:
                return
            request = server.check(listed, client)
        elif phase == "train":
            request = {"completed": server.bits(listed, plan.completed)}
        elif phase == "consent":
            signed = [c for c in plan.survivors if c in colluding or "train" in server.all[c].now.answers]
            survivors = signed if rng.random() < 0.7 else plan.survivors
            plans[number] = plan = plan._replace(survivors=survivors)
            request = server.consent(listed, plan.completed, survivors, plan.models)
        else:
            signers = [c for c in plan.survivors if c in colluding or "consent" in server.all[c].now.answers]
            request = server.unmask(listed, plan.completed, plan.survivors, signers, plan.models)
        if rng.random() < damage:
            request, deviant = damaged(request, rng), True
        try:
            server.all[client].ask(phase, request, plan.models)
            counts["requests of servers answered"] += deviant
        except PayloadError:
            counts["requests of servers refused"] += deviant

    for phase in PHASES[1:]:
        for client in rng.sample(clients, size):
            number = chosen[client] if rng.random() >= wander else rng.randrange(len(plans))
            tell(client, phase, number)
            if rng.random() < twice:
                tell(client, rng.choice(PHASES), rng.randrange(len(plans)))
    OUTCOMES["sums opened"] += bool(server.opened())
    assert server.smallest() >= 0, f"a group below the quorum was opened: {server.opened()}, {protocol}, {colluding}"


def against_server(rng: random.Random, counts: Counter[str]) -> None:
    """One round with clients that lie, or are silent."""
    protocol, size, _ = protocol_of(rng)
    values = values_of(SEGMENTS, range(size), rng.randrange(1000))
    liars = sorted(rng.sample(range(size), rng.choice((1, 1, 2, size // 2))))
    rate, spoiled = rng.choice((0.2, 0.5, 1.0)), set[int]()
    done, earlier = Rehearsal(protocol, values, SEGMENTS), dict[str, Payload]()

    def false(phase: str, client: int, answer: Payload) -> Payload | None:
        kind = rng.randrange(7)
        if kind == 0:
            return None  # silence
        if kind == 1 and phase in earlier:
            return earlier[phase]
        if kind == 2:
            return {name: torch.randint(0, 256, array.shape, dtype=torch.uint8) for name, array in answer.items()}
        if kind == 3 and phase == "check":
            return {"good": torch.zeros_like(answer["good"])}
        if kind == 4 and phase in ("shares", "unmask"):
            name = rng.choice(sorted(answer))
            return answer | {name: _mixed(answer[name], rng)}
        return damaged(answer, rng)

    try:
        for phase in PHASES:
            for client in done.server.open_phase(phase):
                try:
                    answer: Payload | None = done.reply(phase, client, done.server.request(client))
                except PayloadError:
                    assert client in liars, "an honest client refused an honest server"
                    continue
                assert answer is not None
                earlier.setdefault(phase, answer)
                if client in liars and rng.random() < rate:
                    before, answer = answer, false(phase, client, answer)
                    what = "answers of clients"
                    if answer is None:
                        counts[f"{what} left out"] += 1
                        continue
                    if phase == "train" and not _same(before, answer):
                        spoiled.add(client)  # if it is accepted, what is in the sum is anything in the ring
                else:
                    what = ""
                try:
                    done.server.accept(client, answer)
                    counts["answers of clients accepted"] += bool(what)
                except PayloadError:
                    assert client in liars, "an honest answer was refused"
                    counts["answers of clients refused"] += bool(what)
                    if phase == "train":
                        spoiled.discard(client)
        total = done.server.total()
        if not spoiled.intersection(done.server.summed):
            assert torch.equal(total, done.plain()), "the sum is wrong"
            OUTCOMES["sums exact"] += 1
    except TooFewClientsError:
        OUTCOMES["rounds without a sum"] += 1
    named = set(done.server.liars)
    if len(liars) <= min(protocol.rules(n).margin for n in range(max(3, size - len(liars)), size + 1)):
        assert named <= set(liars), f"honest clients were named: {done.server.liars}, liars {liars}"


def _mixed(array: Tensor, rng: random.Random) -> Tensor:
    """Bytes in which some pieces of 16 are random."""
    data = bytearray(array.numpy().tobytes())
    for at in range(0, len(data), 16):
        if rng.random() < 0.3:
            data[at : at + 16] = rng.randbytes(len(data[at : at + 16]))
    return tensor(bytes(data))


def _same(one: Payload, other: Payload) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def group(number: int) -> campaign.Case:
    """Some rounds of either kind."""

    def attack(rng: random.Random, counts: Counter[str]) -> None:
        torch.set_num_threads(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(ROUNDS):
                (against_clients if number % 2 else against_server)(rng, counts)

    return attack


if __name__ == "__main__":
    campaign.main("secure", group, 100_000, room=400.0)
