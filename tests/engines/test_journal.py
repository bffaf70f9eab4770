"""Client states on nodes, against a reference that stores them with the server's state."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from gossamer.core.types import State
from gossamer.engines.flower.journal import NEVER, Journal, JournalEntry, OutOfStepError

Chain = tuple[tuple[int, bool], ...]
"""A client state that lists its history: each round of the client, and whether its message arrived."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@contextmanager
def journal() -> Iterator[Journal]:
    with tempfile.TemporaryDirectory() as folder:
        yield Journal(Path(folder), "run", 3)


def train(state: State, number: int) -> State:
    """The client does a round; whether it arrived (1) or not (0) is open (2)."""
    done = torch.tensor([[number, 2]])
    return {"chain": torch.cat([state["chain"], done]) if state else done}


def settle(state: State, delivered: bool) -> State:
    chain = state["chain"].clone()
    assert chain[-1, 1] == 2, "settled twice"
    chain[-1, 1] = delivered
    return {"chain": chain}


def chain(state: State) -> Chain:
    return tuple((number, bool(arrived)) for number, arrived in state["chain"].tolist()) if state else ()


def order(book: Journal, number: int, known: int, anew: bool = False) -> Chain:
    """What a node does with an order; what it remembered at first."""
    if anew:
        book.forget()
    state = book.recall(number, known, settle)
    book.note(JournalEntry(number, known, state, train(state, number)))
    return chain(state)


# Only messages are lost, and a repeated round has the same cohort.

Delivery = Literal["folded", "lost", "again", "killed", "damaged"]
DELIVERY: tuple[Delivery, ...] = ("folded", "lost", "again", "killed", "damaged")


@given(st.lists(st.sampled_from(DELIVERY), max_size=25), st.sets(st.integers(0, 12)))
@example(["folded", "folded", "damaged", "folded", "killed", "damaged"], set())
def test_it_is_as_if_memory_were_saved_with_the_server(deliveries: list[Delivery], elsewhere: set[int]) -> None:
    """Messages are lost, rounds done again, the server dies and falls back to the checkpoint before its last."""
    checkpoints: list[tuple[int, int, Chain]] = [(0, NEVER, ())]
    with journal() as book:
        for delivery in deliveries:
            number, known, memory = checkpoints[-1]
            if number not in elsewhere:
                assert order(book, number, known) == memory
            if delivery in ("folded", "lost"):
                if number not in elsewhere:
                    memory += ((number, delivery == "folded"),)
                    known = number if delivery == "folded" else known
                checkpoints = [checkpoints[-1], (number + 1, known, memory)]
                assert chain(book.recall(number + 1, known, settle)) == memory, "at an evaluation"
            if delivery == "damaged":
                checkpoints = checkpoints[:1]


# Anything may happen: memory fits what the server folded, or is out of step.

ANYTHING = st.tuples(st.sampled_from(["folded", "lost", "absent", "again", "killed", "disk"]), st.integers(0, 3))


@given(st.lists(ANYTHING, max_size=40))
@example([("lost", 0), ("folded", 0), ("folded", 0), ("killed", 3), ("folded", 0)])
def test_memory_fits_what_the_server_folded_or_is_out_of_step(events: list[tuple[str, int]]) -> None:
    """Nodes are away in some rounds, disks are lost, and the server is set back by any number of rounds."""
    checkpoints: list[tuple[int, int, list[int]]] = [(0, NEVER, [])]
    anew = False
    with journal() as book:
        for event, back in events:
            number, known, folded = checkpoints[-1]
            if event == "disk":
                book.forget()
            if event == "killed":
                anew, checkpoints = False, checkpoints[: max(1, len(checkpoints) - back)]
            if event in ("folded", "lost", "again"):
                try:
                    memory = order(book, number, NEVER if anew else known, anew)
                except OutOfStepError:
                    anew, event = True, "absent"
                else:
                    check_memory(memory, [] if anew else folded, number)
            if event == "folded":
                anew, known, folded = False, number, [number] if anew else [*folded, number]
            if event in ("folded", "lost", "absent"):
                checkpoints.append((number + 1, known, folded))


def check_memory(memory: Chain, folded: list[int], number: int) -> None:
    rounds = [at for at, _ in memory]
    assert [at for at, arrived in memory if arrived] == folded
    assert rounds == sorted(set(rounds)), "each round once"
    assert all(at < number for at in rounds), "nothing of a round that is yet to come"


def test_a_server_set_back_further_than_is_remembered_is_out_of_step() -> None:
    """Of rounds 2 to 4, none arrived: what was remembered before round 2 is known no more."""
    with journal() as book:
        for number, known in ((0, NEVER), (1, 0), (2, 0), (3, 0)):
            order(book, number, known)
        with pytest.raises(OutOfStepError):
            book.recall(1, 0, settle)


# One by one.


def test_a_node_that_lost_its_disk_is_out_of_step_until_it_starts_over() -> None:
    with journal() as book:
        order(book, 0, NEVER)
        book.forget()
        with pytest.raises(OutOfStepError, match="client 3 has rounds: none; last aggregated round: 1"):
            book.recall(1, 0, settle)
        assert order(book, 1, NEVER, anew=True) == ()
        assert order(book, 2, 1) == ((1, True),)


def test_client_state_unknown_to_the_server_is_out_of_step() -> None:
    with journal() as book:
        for number, known in ((0, NEVER), (1, 0), (2, 1)):
            order(book, number, known)
        with pytest.raises(OutOfStepError, match="client 3 has rounds: 2, 3; last aggregated round: none"):
            book.recall(3, NEVER, settle)


def test_runs_and_clients_have_their_own(tmp_path: Path) -> None:
    books = [Journal(tmp_path, run, client) for run in ("a", "../../b") for client in (0, 1)]
    order(books[0], 0, NEVER)
    assert [len(book.entries()) for book in books] == [1, 0, 0, 0]
    assert len({book.path for book in books}) == 4
    assert all(book.path.parent.parent == tmp_path for book in books), "a run's name leads nowhere else"
    assert books[0].path.parent.stat().st_mode & 0o077 == 0, "for nobody else to read"


def cut(content: bytes) -> bytes:
    return content[:-1]


def flipped(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize("damage", [cut, flipped, lambda content: b"", lambda content: b"\xff" * len(content)])
def test_a_damaged_journal_is_not_read(damage: object) -> None:
    with journal() as book:
        order(book, 0, NEVER)
        order(book, 1, 0)
        book.path.write_bytes(damage(book.path.read_bytes()))  # type: ignore[operator]
        with pytest.raises(OutOfStepError, match="the state of client 3 cannot be read"):
            book.recall(2, 1, settle)
        assert order(book, 2, NEVER, anew=True) == ()


def test_a_node_that_dies_while_it_writes_has_done_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with journal() as book:
        order(book, 0, NEVER)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", interrupt)
            with pytest.raises(KeyboardInterrupt):
                order(book, 1, 0)
        assert order(book, 1, 0) == ((0, True),)


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def test_only_as_much_is_kept_as_can_be_gone_back_to() -> None:
    with journal() as book:
        for number in range(6):
            order(book, number, number - 1)
        assert [entry.round for entry in book.entries()] == [4, 5]
