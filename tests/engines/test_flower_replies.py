"""Replies are untrusted: a wrong one is refused with a reason, and the round continues without it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Error, Message, MessageType, RecordDict

from gossamer import Split, Task, fedmrn, simulate, topk
from gossamer.core import wire
from gossamer.engines.flower import fleet
from gossamer.engines.flower.messages import ARRAY, BYTES, ROOM, WORDS, data, word
from gossamer.engines.flower.server import FlowerRun
from gossamer.testing import tiny_task
from helpers.flower_runs import CLIENTS, NUMBERS, Reference, agree, altered, deploy, nodes, rewritten, simulated
from helpers.local_grid import LocalGrid, through
from helpers.pieces import piece_of

TASK = tiny_task(CLIENTS)
NOBODY = np.zeros(0, dtype=np.int64), np.zeros(CLIENTS + 1, dtype=np.int64)
UNTESTED = TASK.with_split(Split(TASK.split.train_index, TASK.split.train_start, *NOBODY))
METHOD = topk(steps=2, share=0.1, feedback=True, weights="uniform")
LIAR, ROUND = 2, 1


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL", 0.001)


@pytest.fixture(scope="module")
def honest() -> Reference:
    """A run of which nothing is lost, for its messages."""
    return simulated(METHOD, UNTESTED)


@pytest.fixture(scope="module")
def without() -> Reference:
    """A run in which one message of one client never arrives."""
    return simulated(METHOD, UNTESTED, lost={(ROUND, LIAR)})


def lied_to(change: Callable[[Message], Message | None], home: Path) -> FlowerRun:
    there = nodes(METHOD, UNTESTED, home)
    there[NUMBERS[LIAR]] = altered(there[NUMBERS[LIAR]], change, MessageType.TRAIN, [ROUND])
    return deploy(METHOD, UNTESTED, LocalGrid(there))


def check_refused(deployed: FlowerRun, without: Reference, reason: str, home: Path) -> None:
    (failure,) = deployed.metrics[ROUND]["failures"]
    assert failure["client"] == LIAR
    assert reason in failure["reason"]
    assert deployed.metrics[0]["failures"] == []
    agree(deployed, without, home)


# What is wrong with the words.


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"run": "another"}, "another run"),
        ({"round": 0}, "another round: expected 1, got 0"),
        ({"round": 2**40}, "another round"),
        ({"run": None}, "no str called 'run'"),
        ({"round": None}, "no int called 'round'"),
        ({"loss": None}, "no float called 'loss'"),
        ({"flops": None}, "no int called 'flops'"),
        ({"run": 5}, "no str called 'run'"),
        ({"round": "1"}, "no int called 'round'"),
        ({"round": True}, "no int called 'round'"),
        ({"loss": 1}, "no float called 'loss'"),
        ({"loss": [1.0]}, "no float called 'loss'"),
        ({"flops": 1.5}, "no int called 'flops'"),
        ({"fault": "out of paper"}, "out of paper"),
        ({"fault": 7}, "no str called 'fault'"),
    ],
    ids=str,
)
def test_words_that_do_not_fit(words: dict[str, Any], reason: str, without: Reference, tmp_path: Path) -> None:
    check_refused(lied_to(lambda reply: rewritten(reply, **words), tmp_path), without, reason, tmp_path)


def test_no_words_at_all(without: Reference, tmp_path: Path) -> None:
    def change(reply: Message) -> Message:
        del reply.content[WORDS]
        return through(reply)

    check_refused(lied_to(change, tmp_path), without, "no str called 'run'", tmp_path)


MEASURED = fedmrn(steps=2, weights="uniform")


def test_metrics_of_a_codec_are_those_of_the_simulation(tmp_path: Path) -> None:
    deployed, alone = (
        deploy(MEASURED, UNTESTED, LocalGrid(nodes(MEASURED, UNTESTED, tmp_path))),
        simulate(MEASURED, UNTESTED, rounds=1, executor="one-by-one"),
    )
    figures = deployed.metrics[0]["figures"]
    assert set(figures) == {"clipped", "clipped_length"}
    assert figures == alone.metrics[0]["figures"]


@pytest.mark.parametrize("value", [None, 1, "much", float("nan")])
def test_a_reply_without_the_metrics_of_its_codec_is_refused(value: Any, tmp_path: Path) -> None:
    there = nodes(MEASURED, UNTESTED, tmp_path)
    words = {"figure.clipped": value}
    liar = altered(there[NUMBERS[LIAR]], lambda reply: rewritten(reply, **words), MessageType.TRAIN, [ROUND])
    deployed = deploy(MEASURED, UNTESTED, LocalGrid({**there, NUMBERS[LIAR]: liar}))
    (failure,) = deployed.metrics[ROUND]["failures"]
    assert failure["client"] == LIAR
    assert "clipped" in failure["reason"]


def test_a_loss_that_is_no_number_is_left_out_of_the_mean(tmp_path: Path) -> None:
    deployed = lied_to(lambda reply: rewritten(reply, loss=float("nan")), tmp_path)
    assert deployed.metrics[ROUND]["failures"] == []
    assert deployed.metrics[ROUND]["train_loss"] > 0


def test_work_below_nothing_is_not_counted(tmp_path: Path) -> None:
    deployed = lied_to(lambda reply: rewritten(reply, flops=-(10**15)), tmp_path)
    assert 0 < deployed.metrics[ROUND]["flops"] <= deployed.metrics[0]["flops"]


def test_a_reason_without_end_is_cut(without: Reference, tmp_path: Path) -> None:
    deployed = lied_to(lambda reply: rewritten(reply, fault="no " * 100_000), tmp_path)
    check_refused(deployed, without, "no no no", tmp_path)
    assert len(deployed.metrics[ROUND]["failures"][0]["reason"]) < 2000


# What is wrong with the message.


def with_payload(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[bytes], bytes]:
    """A message whose payload was changed before it was packed: all else about it is right."""

    def lie(sent: bytes) -> bytes:
        message = wire.unpack(sent)
        change(message.payload)
        return wire.pack(message)

    return lie


def with_head(**changes: Any) -> Callable[[bytes], bytes]:
    def lie(sent: bytes) -> bytes:
        message = wire.unpack(sent)
        return bytes(wire.address(message.head._replace(**changes), wire.Body.of(message.payload)))

    return lie


def bit_flipped(sent: bytes) -> bytes:
    return sent[:-3] + bytes([sent[-3] ^ 16]) + sent[-2:]


def boasting(sent: bytes) -> bytes:
    """A message whose table declares a short array as long."""
    head = wire.unpack(sent).head
    table = b"\x06values\x08\xff\xff\xff\x7f"
    return bytes(wire.address(head, piece_of(table, 1)))


def nan(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda payload: payload[name].__setitem__(0, torch.nan)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (with_head(round=0), "another round: expected 1, got 0"),
        (with_head(client=1), "another client: expected 2, got 1"),
        (with_head(codec=7), "another codec"),
        (with_head(kind="down"), "another direction"),
        (with_head(exchange=1), "another exchange: expected 0, got 1"),
        (with_head(weight=5.0), "trained on 5 samples, but the client has 21"),
        (with_head(weight=20.5), "trained on 20.5 samples, but the client has 21"),
        (with_head(weight=0.0), "trained on 0 samples, but the client has 21"),
        (lambda sent: b"", "holds 0 bytes"),
        (lambda sent: sent[:20], "holds 20 bytes"),
        (lambda sent: sent[:-1], "its header says"),
        (lambda sent: sent + b"\0", "its header says"),
        (bit_flipped, "checksum"),
        (lambda sent: b"garbage" * 30, "begins with b'garb'"),
        (lambda sent: bytes(ROOM * 83 + 2**16 + 1), "more than"),
        (with_payload(nan("values")), "not finite"),
        (with_payload(nan("rest.values")), "not finite"),
        (with_payload(lambda payload: payload.pop("values")), "expected"),
        (with_payload(lambda payload: payload.update(values=payload["values"][1:])), "expected"),
        (with_payload(lambda payload: payload.update({"@more": torch.ones(1)})), "a section that no part reads: more"),
        (boasting, "the table says"),
    ],
)
def test_messages_that_do_not_fit(
    lie: Callable[[bytes], bytes], reason: str, without: Reference, tmp_path: Path
) -> None:
    lies: list[bytes] = []

    def change(reply: Message) -> Message:
        lies.append(lie(data(reply)))
        return rewritten(reply, lies[0])

    deployed = lied_to(change, tmp_path)
    check_refused(deployed, without, reason, tmp_path)
    arrived = sum(len(without.messages["up", ROUND, client]) for client in range(CLIENTS) if client != LIAR)
    assert sum(deployed.metrics[ROUND]["bytes_up"].values()) == arrived + len(lies[0]), "what came is what is counted"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ((ROUND, 0), "trained on 5 samples, but the client has 21"),
        ((ROUND - 1, LIAR), "another round: expected 1, got 0"),
    ],
    ids=["another client's", "an earlier one"],
)
def test_a_message_that_was_seen_before(
    message: tuple[int, int], reason: str, honest: Reference, without: Reference, tmp_path: Path
) -> None:
    deployed = lied_to(lambda reply: rewritten(reply, honest.messages["up", *message]), tmp_path)
    check_refused(deployed, without, reason, tmp_path)


def test_a_whole_reply_of_an_earlier_round_that_comes_again(without: Reference, tmp_path: Path) -> None:
    there, replies = nodes(METHOD, UNTESTED, tmp_path), []

    def keep(reply: Message) -> Message:
        replies.append(reply.content)
        return reply

    def replay(reply: Message) -> Message:
        reply.content = replies[0]
        return through(reply)

    first = altered(there[NUMBERS[LIAR]], keep, MessageType.TRAIN, [0])
    there[NUMBERS[LIAR]] = altered(first, replay, MessageType.TRAIN, [ROUND])
    deployed = deploy(METHOD, UNTESTED, LocalGrid(there))
    check_refused(deployed, without, "another round: expected 1, got 0", tmp_path)


def test_two_arrays(without: Reference, tmp_path: Path) -> None:
    def change(reply: Message) -> Message:
        array = reply.content.array_records[BYTES][ARRAY]
        reply.content[BYTES] = ArrayRecord({ARRAY: array, "more": Array("uint8", (2,), "gossamer", b"12")})
        return through(reply)

    check_refused(lied_to(change, tmp_path), without, "one array", tmp_path)


def test_an_array_of_another_name(without: Reference, tmp_path: Path) -> None:
    def change(reply: Message) -> Message:
        reply.content["more"] = reply.content[BYTES]
        del reply.content[BYTES]
        return through(reply)

    check_refused(lied_to(change, tmp_path), without, "holds 0 bytes", tmp_path)


def test_nothing_but_an_empty_reply(without: Reference, tmp_path: Path) -> None:
    def change(reply: Message) -> Message:
        reply.content = RecordDict()
        return through(reply)

    check_refused(lied_to(change, tmp_path), without, "no str called 'run'", tmp_path)


# Errors of Flower in place of a reply.


@pytest.mark.parametrize(("error", "reason"), [(Error(2, "no such app"), "no such app"), (Error(42), "42")])
def test_an_error_of_flower(error: Error, reason: str, without: Reference, tmp_path: Path) -> None:
    there = nodes(METHOD, UNTESTED, tmp_path)
    handle = there[NUMBERS[LIAR]]

    def answer(message: Message) -> Message | None:
        reply = handle(message)
        meant = message.metadata.message_type == MessageType.TRAIN and word(message, "round", int) == ROUND
        return Message(error, reply_to=message) if meant else reply

    there[NUMBERS[LIAR]] = answer
    deployed = deploy(METHOD, UNTESTED, LocalGrid(there))
    check_refused(deployed, without, f"Flower reports: {reason}", tmp_path)


def test_no_reply(without: Reference, tmp_path: Path) -> None:
    check_refused(lied_to(lambda reply: None, tmp_path), without, "no reply within 0.05 s", tmp_path)


def test_a_message_that_the_superlink_does_not_take(tmp_path: Path) -> None:
    class Choosy(LocalGrid):
        def push_messages(self, messages: Any) -> list[str]:
            (message,) = messages
            refused = message.metadata.message_type == MessageType.TRAIN and message.metadata.dst_node_id == NUMBERS[1]
            return [""] if refused else super().push_messages([message])

    deployed = deploy(METHOD, TASK, Choosy(nodes(METHOD, TASK, tmp_path)))
    assert [record["failures"][0]["client"] for record in deployed.metrics] == [1, 1]
    assert "did not accept the message" in deployed.metrics[0]["failures"][0]["reason"]
    agree(deployed, simulated(METHOD, TASK, cohorts={0: [0, 2, 3], 1: [0, 2, 3]}), tmp_path)


def test_a_reply_to_a_question_that_was_not_asked_is_not_read(tmp_path: Path) -> None:
    class Talkative(LocalGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            return [*self.received[:1], *super().pull_messages(message_ids)]

    agree(deploy(METHOD, TASK, Talkative(nodes(METHOD, TASK, tmp_path))), simulated(METHOD, TASK), tmp_path)


# Evaluation replies.


def evaluated(task: Task, server: Task, home: Path, **words: Any) -> dict[str, Any]:
    there = nodes(METHOD, task, home)
    handle = there[NUMBERS[LIAR]]
    there[NUMBERS[LIAR]] = altered(handle, lambda reply: rewritten(reply, **words), MessageType.EVALUATE, [0])
    return deploy(METHOD, server, LocalGrid(there), rounds=1).metrics[0]


@pytest.mark.parametrize(
    "words",
    [
        {"own": None},
        {"own": 1},
        {"own": "good"},
        {"own": 1.5},
        {"own": -0.5},
        {"round": 7},
        {"run": "another"},
        {"fault": "no"},
    ],
    ids=str,
)
def test_figures_that_do_not_fit_are_left_out(words: dict[str, Any], tmp_path: Path) -> None:
    record, run = evaluated(TASK, TASK, tmp_path, **words), simulated(METHOD, TASK, rounds=1)
    assert [failure["client"] for failure in record["evaluation_failures"]] == [LIAR]
    x, y = TASK.data.test.x, TASK.data.test.y
    right = run.module().eval()(x).argmax(1) == y
    each = [right[torch.from_numpy(TASK.split.test(c))].double().mean().item() for c in range(CLIENTS) if c != LIAR]
    assert record["personal_accuracy"] == pytest.approx(sum(each) / len(each))
    assert record["accuracy"] == run.metrics[0]["accuracy"]


@pytest.mark.parametrize(
    "words", [{"loss": float("nan")}, {"loss": float("inf")}, {"accuracy": 7.0}, {"accuracy": float("nan")}], ids=str
)
def test_one_node_cannot_spoil_the_mean_of_evaluations(words: dict[str, Any], tmp_path: Path) -> None:
    server = Task.own(TASK.model, client=None, clients=CLIENTS)
    record = evaluated(TASK, server, tmp_path, **words)
    assert [failure["client"] for failure in record["evaluation_failures"]] == [LIAR]
    run = simulated(METHOD, TASK, rounds=1)
    assert record["accuracy"] == pytest.approx(run.metrics[0]["accuracy"])
    assert record["loss"] == pytest.approx(run.metrics[0]["loss"])
