"""The campaigns find nothing in a small sample of each; ``make fuzz`` runs more of them."""

import random
from collections import Counter

import pytest
import torch

from fuzz import messages, secure
from helpers import recorder
from helpers.codec_specs import SUMMED

SITES = ["heterofl", "onebit-cs", "perm", "fedspa", "scaffold", "fednova", "delta", "loss probe", "labels of one's own"]


@pytest.mark.parametrize("name", SITES)
def test_no_mutant_of_a_message_breaks_a_promise(name: str) -> None:
    """A refused upload leaves the accumulator bit for bit as it was, with every kind of server."""
    threads, counts = torch.get_num_threads(), Counter[str]()
    try:
        messages.group(sorted(messages.methods()).index(name))(random.Random(3), counts)
    finally:
        torch.set_num_threads(threads)
    assert counts["uploads refused"] > 50
    assert counts["uploads accepted"] > 5
    assert counts["downloads refused"] > 50


def test_every_method_and_codec_is_attacked() -> None:
    from gossamer import METHODS
    from gossamer.parts.codecs import CODECS

    names = set(messages.methods())
    assert {*METHODS, *recorder.CASES, *(f"up {name}" for name in CODECS if name not in SUMMED)} <= names


def test_a_foreign_exception_and_a_changed_accumulator_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign fails where a promise is broken: here, the server adds before it checks."""
    from gossamer.core.errors import PayloadError
    from gossamer.parts.servers.mean import Mean

    index, honest = sorted(messages.methods()).index("fedavg"), Mean.fold

    def careless(self: Mean, acc: object, arrival: object) -> object:
        folded = honest(self, acc, arrival)  # type: ignore[arg-type]
        if arrival.samples == 7:  # type: ignore[attr-defined]
            raise PayloadError("too late")
        return folded

    monkeypatch.setattr(Mean, "fold", careless)
    monkeypatch.setattr(messages, "WEIGHTS", (7.0,))
    with pytest.raises(AssertionError, match="a refused upload changed the accumulator"):
        messages.group(index)(random.Random(5), Counter())


def test_no_deviation_from_secure_aggregation_opens_an_update_or_ends_in_another_error() -> None:
    threads, counts = torch.get_num_threads(), Counter[str]()
    secure.OUTCOMES.clear()
    try:
        for number in range(16):
            secure.group(number)(random.Random(number), counts)
    finally:
        torch.set_num_threads(threads)
    assert counts["requests of servers refused"] > 300
    assert counts["requests of servers answered"] > 50
    assert counts["answers of clients refused"] > 30
    assert secure.OUTCOMES["sums opened"] > 3
    assert secure.OUTCOMES["sums exact"] > 20


def test_a_group_that_can_be_opened_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign fails where two clients are a quorum, and two shares enough."""
    from gossamer.parts.secure import SecAgg
    from gossamer.parts.secure.rules import Rules

    def attack() -> None:
        for number in range(1, 60, 2):
            secure.group(number)(random.Random(number), Counter())

    monkeypatch.setattr(SecAgg, "rules", lambda _, clients: Rules(clients, clients - 1, 2, 2))
    with pytest.raises(AssertionError, match="a group below the quorum was opened"):
        attack()
