"""What lying clients try against secure aggregation: each is named and left out, and the sum of the others is exact.

In version 0.2 (commit 86513a0), a client with unreadable shares or a wrong commitment ended the round, and so did two
clients with wrong shares at the end. None was named.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from gossamer.core.bits import bits, unbits
from gossamer.core.errors import PayloadError
from gossamer.core.secure import DISPUTED, LIED, SumSegment, TooFewClientsError
from gossamer.core.types import Payload
from gossamer.engines.secure import proven
from gossamer.parts.secure import SecAgg, shamir
from gossamer.parts.secure import client as client_side
from gossamer.parts.secure.primitives import digest, tensor
from gossamer.parts.secure.rules import PHASES
from gossamer.parts.secure.shamir import Dealing, challenge, hashed
from helpers.secure_rounds import Rehearsal, values_of

SEGMENTS = [SumSegment(40, 1), SumSegment(5, 300)]
TEN = range(10)  # 7 of 10 are needed, and one lie is within the margin

Lie = Callable[[Payload], Payload]


class Lying(Rehearsal):
    """A round in which some clients lie. A refused answer is a lost one."""

    refused: dict[tuple[str, int], str]

    def phase_answers(self, phase: str) -> None:
        self.refused = getattr(self, "refused", {})
        for client in self.asked:
            if client in self.lost.get(phase, ()):
                continue
            answer = self.answer(phase, client, self.reply(phase, client, self.server.request(client)))
            self.answers[phase, client] = answer
            try:
                self.server.accept(client, answer)
            except PayloadError as error:
                self.refused[phase, client] = str(error)


def lying(phase: str, liars: Iterable[int], lie: Lie, lost: Any = None, clients: Any = TEN, **more: Any) -> Lying:
    those = set(liars)

    def change(at: str, client: int, payload: Payload) -> Payload:
        return lie(payload) if at == phase and client in those else payload

    protocol = SecAgg(**more)
    return Lying(protocol, values_of(SEGMENTS, clients), SEGMENTS, lost or {}, answer=change)


def check(done: Lying, liars: Iterable[int], reason: str, summed: Iterable[int], how: str = LIED) -> None:
    """The round has the exact sum of these clients, and exactly the liars are named."""
    assert torch.equal(done.total(), done.plain())
    assert done.server.summed == sorted(summed)
    assert sorted(done.server.liars) == sorted(liars)
    assert all(text.startswith(how) and reason in text for text in done.server.liars.values())


def changed(name: str) -> Lie:
    return lambda payload: payload | {name: payload[name] ^ 1}


def without(*clients: int) -> list[int]:
    return [client for client in TEN if client not in clients]


@pytest.mark.parametrize("liar", TEN)
@pytest.mark.parametrize("what", ["sealed", "hashes", "line"])
def test_a_dealing_that_nobody_can_use_names_the_dealer(what: str, liar: int) -> None:
    """Garbage in place of sealed boxes, hashes that do not fit, and a line that is not the sum of the polynomials."""
    done = lying("shares", [liar], lambda payload: payload | {what: torch.zeros_like(payload[what])})
    check(done, [liar], "its shares were unreadable or wrong for 9 of 9 neighbours", without(liar))


def test_three_of_ten_dealers_of_garbage_are_named() -> None:
    check(lying("shares", [0, 4, 9], changed("sealed")), [0, 4, 9], "its shares were unreadable", without(0, 4, 9))


@pytest.mark.parametrize("victims", [1, 2, 5, 9])
def test_a_dealer_that_cheats_some_neighbours_is_named_above_the_margin(victims: int) -> None:
    def lie(payload: Payload) -> Payload:
        boxes = payload["sealed"].clone()
        boxes[: 64 * victims] ^= 1
        return payload | {"sealed": boxes}

    done = lying("shares", [3], lie)
    how = LIED if victims > 3 else DISPUTED  # up to three of ten may collude, and accuse an honest one
    check(done, [3] if victims > 1 else [], f"wrong for {victims} of 9", without(3) if victims > 1 else TEN, how)


@pytest.mark.parametrize("accusers", [2, 3])
def test_an_honest_client_that_colluding_ones_accuse_is_not_called_a_liar(accusers: int) -> None:
    """It is left out of the round, and not of later ones: ``liars_of`` counts what clients show themselves."""

    def lie(payload: Payload) -> Payload:
        good = unbits(payload["good"], 9)
        good[5 - 1] = False  # client 5, for neighbours with smaller numbers
        return payload | {"good": bits(good)}

    done = lying("check", list(range(accusers)), lie)
    check(done, [5], f"wrong for {accusers} of 9", without(5), DISPUTED)
    assert not proven(done.server.liars)


@pytest.mark.parametrize("liar", TEN)
def test_a_dealer_with_numbers_outside_of_the_field_is_named(liar: int) -> None:
    done = lying("shares", [liar], lambda payload: payload | {"line": torch.full_like(payload["line"], 255)})
    check(done, [liar], "a number that is not in the field", without(liar))


@pytest.mark.parametrize("liar", TEN)
def test_false_complaints_name_the_one_that_complains(liar: int) -> None:
    done = lying("check", [liar], lambda payload: payload | {"good": torch.zeros_like(payload["good"])})
    check(done, [liar], "it called the shares of 9 of 9 neighbours unreadable or wrong", without(liar))


def test_one_complaint_names_nobody_and_costs_one_share() -> None:
    done = lying("check", [2], lambda payload: payload | {"good": payload["good"] ^ tensor(b"\1\0")})
    check(done, [], "", TEN)


@pytest.mark.parametrize("lost", [[], [5]], ids=["seeds", "keys"])
@pytest.mark.parametrize("liar", [0, 4, 9])
def test_wrong_shares_at_the_end_name_those_that_reveal_them(liar: int, lost: list[int]) -> None:
    done = lying("unmask", [liar], changed("shares"), {"train": lost})
    check(done, [liar], "shares that it revealed are not those that it was given", without(*lost))


@pytest.mark.parametrize("seed", range(6))
def test_wrong_shares_of_as_many_clients_as_may_be_lost(seed: int) -> None:
    """At random positions, up to the number of spare shares: 3 of 10, where 0.2 refused the round with 2."""
    rng = random.Random(seed)
    liars = rng.sample(TEN, 3 - seed % 2)
    lost = rng.sample(sorted(set(TEN) - set(liars)), seed % 2)
    check(lying("unmask", liars, changed("shares"), {"train": lost}), liars, "revealed", without(*lost))


def test_more_wrong_shares_than_spare_ones_end_the_round_and_are_named() -> None:
    done = lying("unmask", [1, 2, 3, 4], changed("shares"))
    with pytest.raises(TooFewClientsError, match="6 of the 10 clients with shares of client 0"):
        done.total()
    assert sorted(done.server.liars) == [1, 2, 3, 4]


def dealing_with(change: Callable[[list[int], list[int], list[int]], None]) -> Any:
    """A dealer's program that changes the values of its three polynomials before it publishes hashes and line."""

    def deal(context: bytes, self_seed: bytes, key_seed: bytes, needed: int, members: int) -> Dealing:
        seeds = [int.from_bytes(seed, "little") for seed in (self_seed, key_seed)]
        one, two = ([seed, *shamir.drawn(needed - 1)] for seed in seeds)
        blind = shamir.drawn(needed)
        rows = [shamir.spread(each, members) for each in (one, two, blind)]
        change(*rows)
        values = [[shamir.packed([value]) for value in row] for row in rows]
        hashes = b"".join(
            hashed(context, which, point, row[point - 1])
            for point in range(1, members + 1)
            for which, row in enumerate(values, start=1)
        )
        d = challenge(context, hashes)
        line = [(g + d * (a + d * b)) % shamir.PRIME for a, b, g in zip(one, two, blind, strict=True)]
        return Dealing(hashes, shamir.packed(line), [a + b + g for a, b, g in zip(*values, strict=True)])

    return deal


def with_dealer(monkeypatch: pytest.MonkeyPatch, done: Lying, dealer: int, program: Any) -> None:
    """Let one client deal with its own program."""
    reply, honest = done.reply, shamir.deal

    def dealt(phase: str, client: int, request: Payload) -> Payload:
        monkeypatch.setattr(client_side, "deal", program if (phase, client) == ("shares", dealer) else honest)
        return reply(phase, client, request)

    done.reply = dealt  # type: ignore[method-assign]


def test_shares_on_no_common_polynomial_are_found_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes and boxes are right, but the values of some members are not on the polynomial of the others."""

    def inconsistent(one: list[int], two: list[int], blind: list[int]) -> None:
        one[0], two[1], blind[2] = 1, 2, 3

    done = lying("", [], lambda payload: payload)
    with_dealer(monkeypatch, done, 6, dealing_with(inconsistent))
    check(done, [6], "its shares were unreadable or wrong for 3 of 9 neighbours", without(6), DISPUTED)


def test_a_dealer_and_a_neighbour_that_lie_together_are_found_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbour accepts a wrong share with a right hash. The shares are decoded as a word with an error."""

    def inconsistent(one: list[int], two: list[int], blind: list[int]) -> None:
        one[2] = 12345

    done = lying("", [], lambda payload: payload)
    with_dealer(monkeypatch, done, 6, dealing_with(inconsistent))
    honest = shamir.fits

    def complicit(context: bytes, point: int, plain: bytes, *more: Any) -> bool:
        return plain[:16] == shamir.packed([12345]) or honest(context, point, plain, *more)

    monkeypatch.setattr(client_side, "fits", complicit)
    assert torch.equal(done.total(), done.plain())
    assert done.server.summed == list(TEN)
    assert done.server.liars == {
        2: "lied: it accepted a wrong share of client 6",
        6: "lied: the shares that it dealt do not fit each other",
    }


@pytest.mark.parametrize("when", ["train", "check"])
def test_a_wrong_key_seed_and_silence_do_not_end_the_round(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The dealer shares another seed than that of its key and drops out. Its neighbours know their masks with it."""

    def other_key(context: bytes, self_seed: bytes, key_seed: bytes, *sizes: int) -> Dealing:
        return shamir.deal(context, self_seed, bytes(16), *sizes)

    done = lying("", [], lambda payload: payload, {when: [6]})
    with_dealer(monkeypatch, done, 6, other_key)
    check(done, [6] if when == "train" else [], "the key that it shared is not the one of its masks", without(6))


def test_a_wrong_key_seed_and_silence_of_a_neighbour_end_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    done = lying("", [], lambda payload: payload, {"train": [6], "unmask": [3]})
    with_dealer(monkeypatch, done, 6, lambda context, seed, _, *sizes: shamir.deal(context, seed, bytes(16), *sizes))
    with pytest.raises(TooFewClientsError, match="client 6 shared a wrong key, and client 3, which knows the mask"):
        done.total()
    assert sorted(done.server.liars) == [6]


@pytest.mark.parametrize("liar", [0, 9])
def test_an_upload_from_another_model_is_refused_and_named(liar: int) -> None:
    done = lying("train", [liar], lambda payload: payload | {"common": tensor(digest("another"))})
    check(done, [liar], "its upload is from another model, list of clients or kind of values", without(liar))
    assert "lied: its upload is from another model" in done.refused["train", liar]


@pytest.mark.parametrize(
    ("phase", "reason"), [("train", "its upload is not signed"), ("consent", "what it signed is not")]
)
def test_wrong_signatures_are_refused_and_named(phase: str, reason: str) -> None:
    done = lying(phase, [4], changed("signature"))
    check(done, [4], reason, without(4) if phase == "train" else TEN)


def test_unsigned_keys_are_refused() -> None:
    done = lying("keys", [4], changed("signature"))
    check(done, [], "", without(4))
    assert "the keys of client 4 are not signed" in done.refused["keys", 4]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lost", [[0], [9], [1, 5, 8]])
def test_silence_in_any_phase(phase: str, lost: list[int]) -> None:
    done = lying("", [], lambda payload: payload, {phase: lost})
    check(done, [], "", without(*lost) if phase in PHASES[:4] else TEN)


@pytest.mark.parametrize("phase", PHASES[1:])
def test_answers_of_another_client_and_of_an_earlier_round_are_worth_nothing(phase: str) -> None:
    """Replays: the answer of a neighbour, and what the same client sent in another round."""
    earlier = Rehearsal(SecAgg(), values_of(SEGMENTS, TEN), SEGMENTS).until("unmask").answers
    for again in (True, False):
        done = Lying(SecAgg(), values_of(SEGMENTS, TEN), SEGMENTS)

        def replayed(at: str, client: int, payload: Payload, done: Lying = done, again: bool = again) -> Payload:
            if (at, client) != (phase, 4):
                return payload
            return earlier[phase, 4] if again else done.answers[phase, 0]

        done.answer = replayed
        assert torch.equal(done.total(), done.plain())
        if phase == "check":  # who finds no fault with any share says nothing that another one could not say
            assert not done.server.liars
        else:
            assert list(done.server.liars) == [4]
            assert done.server.liars[4].startswith(LIED)


@pytest.mark.parametrize("size", [4, 6, 12, 20, 101])
def test_the_largest_number_of_false_complaints_names_no_honest_client(size: int) -> None:
    """Up to the margin, honest clients are not named, even if all liars accuse the same client and deal badly to it."""
    margin = SecAgg().rules(size).margin
    liars = range(1, 1 + margin)

    def lie(payload: Payload) -> Payload:
        return payload | {"good": torch.zeros_like(payload["good"])}

    done = lying("check", liars, lie, clients=range(size))
    done.until("check")
    asked = done.server.open_phase("train")
    assert set(done.server.liars) <= set(liars)
    assert set(asked) == set(range(size)) - set(done.server.liars)


def test_the_reach_of_one_client_is_stated() -> None:
    """10 clients: masks of one bit are summed in 4 bits, so that one client can add 15; values up to 300 in 12 bits."""
    done = lying("", [], lambda payload: payload)
    assert done.total() is not None
    assert done.server.reach == pytest.approx(max(15 / 1, 4095 / 300))
