"""The campaigns find nothing in a small sample of each; ``make fuzz`` runs more of them."""

import random
from collections import Counter

import pytest
import torch

from fuzz import messages
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
