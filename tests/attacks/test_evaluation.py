"""Attacks on evaluation: metrics that nodes send in clear, and models that a server asks them to judge.

In version 0.2 (commit 86513a0), nodes sent the loss and the accuracy on their own test samples under ``--secure`` and
under ``--dp local``, under ``--dp local`` their training loss too, and answered any number of questions about any
model.
"""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, MessageType

from gossamer import ConfigError, RunError, fedavg, fedpm, private, secured, simulate
from gossamer.core.errors import PayloadError
from gossamer.core.method import Method
from gossamer.core.types import Clock
from gossamer.engines.evaluate import Evaluator
from gossamer.engines.flower import Settings
from gossamer.engines.flower.journal import Journal
from gossamer.engines.flower.messages import WORDS, content, data
from gossamer.engines.flower.node import FAULT
from gossamer.engines.flower.server import FlowerRun
from gossamer.engines.metric_sums import limit_of, means_of, metric_numbers
from gossamer.engines.metrics import Ledger
from gossamer.engines.secure import NoSumWarning
from gossamer.runs.report.part_reports import EVALUATION
from gossamer.testing import tiny_task
from helpers.flower_runs import NUMBERS, deploy, nodes, signing_keys
from helpers.local_grid import LocalGrid

TASK = tiny_task(4)
HIDING: dict[str, Method] = {
    "secure": secured(fedpm(steps=2)),
    "local": private(fedavg(steps=2), "local", noise_multiplier=1.0, task=TASK),
    "distributed": private(fedavg(steps=2), "distributed", noise_multiplier=1.0, task=TASK, per_round=4),
}
OPTIONS: dict[str, Any] = {"rounds": 2, "deadline": 5.0}


def told(grid: LocalGrid, kind: str) -> list[dict[str, Any]]:
    """The named values of all replies to a type of messages."""
    return [dict(reply.content.config_records[WORDS]) for reply in grid.received if reply.metadata.message_type == kind]


@pytest.mark.parametrize("name", HIDING)
def test_a_node_whose_updates_are_hidden_tells_nothing_else(name: str, tmp_path: Path) -> None:
    """Nothing that a node says in clear depends on its samples: it is the same for all nodes, but for their numbers."""
    grid = LocalGrid(nodes(HIDING[name], TASK, tmp_path))
    options = OPTIONS | ({"delta": 1e-3} if name != "secure" else {})
    run = deploy(HIDING[name], TASK, grid, **options)
    assert [record["exchanges"][0]["folded"] for record in run.metrics] == [4, 4]
    for kind in (MessageType.QUERY, MessageType.TRAIN):
        for number in range(2):
            said = [{**words, "client": 0, "proof": ""} for words in told(grid, kind) if words["round"] == number]
            assert len({repr(sorted(words.items())) for words in said}) <= 1, kind
    assert not any("loss" in word or "own" in word for words in told(grid, MessageType.EVALUATE) for word in words)
    for record in run.metrics:
        assert "hide" in record["figures"][EVALUATION] or "hidden" in record["figures"][EVALUATION]
        assert not {"personal", "worst_tenth_accuracy", "by_client"} & record.keys()
        assert record["train_loss"] is None


def test_the_means_of_a_secure_evaluation_are_those_of_the_clients(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(HIDING["secure"], TASK, tmp_path))
    run = deploy(HIDING["secure"], TASK, grid, **OPTIONS)
    judge = Evaluator(run.objective)
    own = [judge.on_client(run.deployed(), client) for client in range(4)]
    tested = [len(TASK.split.test(client)) for client in range(4)]
    last, mean = run.metrics[-1], sum(accuracy for _, accuracy in own) / 4
    assert last["personal_accuracy"] == pytest.approx(mean, abs=1e-6)
    assert last["figures"][EVALUATION].endswith("of 4 clients in this round")
    sums = [metric_numbers(TASK, own[client], tested[client], limit_of(4)) for client in range(4)]
    means = means_of(TASK, torch.stack(sums).sum(0), limit_of(4), 4)
    weighted = sum(n * accuracy for n, (_, accuracy) in zip(tested, own, strict=True)) / sum(tested)
    assert means["accuracy"] == pytest.approx(weighted, abs=1e-3)
    assert means["loss"] == pytest.approx(
        sum(n * loss for n, (loss, _) in zip(tested, own, strict=True)) / sum(tested), abs=1e-3
    )


@pytest.mark.parametrize("clients", [3, 100, 1000])
def test_metrics_fit_their_rings_and_undefined_ones_are_left_out(clients: int) -> None:
    limit = limit_of(clients)
    numbers = metric_numbers(TASK, (math.inf, 0.5), 10, limit)
    assert (numbers >= 0).all()
    assert int(numbers.max()) * clients < 2**32
    total = numbers * (clients - 1) + metric_numbers(TASK, (math.nan, math.nan), 0, limit)
    assert means_of(TASK, total, limit, clients) == {
        "accuracy": pytest.approx(0.5, abs=2e-2 if clients == 1000 else 1e-3),
        "personal_accuracy": pytest.approx(0.5, abs=1e-5),
    }


def test_a_node_takes_part_in_one_secure_evaluation_of_a_round(tmp_path: Path) -> None:
    """Two sums over almost the same clients would differ by the metrics of one."""

    class Twice(FlowerRun):
        def evaluate_round(self, number: int, ledger: Any) -> Any:
            first = super().evaluate_round(number, ledger)
            second = super().evaluate_round(number, Ledger())
            assert "personal_accuracy" in first
            assert "personal_accuracy" not in second
            return first

    method = HIDING["secure"]
    settings = Settings(rounds=1, wait=0, deadline=5.0, keys=str(signing_keys()))
    run = Twice(method, TASK, settings, LocalGrid(nodes(method, TASK, tmp_path)))
    with pytest.warns(NoSumWarning, match="has no sum"):
        run.run(None, lambda record: None)


def asked(grid: LocalGrid, node: int, change: Any) -> dict[str, Any]:
    """The reply of a node to its last question of an evaluation, after a change of it."""
    last = [
        message
        for message in grid.sent
        if message.metadata.message_type == MessageType.EVALUATE and message.metadata.dst_node_id == node
    ][-1]
    words, sent = dict(last.content.config_records[WORDS]), data(last)
    again = Message(content(*change(words, sent)), node, MessageType.EVALUATE, ttl=5.0)
    (number,) = grid.push_messages([again])
    (reply,) = grid.pull_messages([number])
    return dict(reply.content.config_records[WORDS])


def test_a_node_judges_one_model_per_round(tmp_path: Path) -> None:
    method = fedavg(steps=2)
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    deploy(method, TASK, grid, **OPTIONS)
    again = asked(grid, NUMBERS[0], lambda words, sent: (words, sent))
    assert "own_loss" in again, "the same question has the same answer, so that a server can resume"
    flipped = asked(grid, NUMBERS[0], lambda words, sent: (words, sent[:-1] + bytes([sent[-1] ^ 1])))
    assert "another model was evaluated in round 2" in flipped[FAULT]
    for number in (-1, 2, 10**6):
        other = asked(grid, NUMBERS[0], lambda words, sent, at=number: ({**words, "round": at}, sent))
        assert "was not announced" in other[FAULT]


def test_under_local_privacy_a_node_judges_nothing(tmp_path: Path) -> None:
    plain, method = fedavg(steps=2), HIDING["local"]
    grid = LocalGrid(nodes(plain, TASK, tmp_path / "a"))
    deploy(plain, TASK, grid, **OPTIONS)
    hiding = LocalGrid(nodes(method, TASK, tmp_path / "b"))
    hiding.sent = grid.sent
    found = asked(hiding, NUMBERS[0], lambda words, sent: (words, sent))
    assert "local privacy does not send them" in found[FAULT]


def test_questions_are_remembered_beyond_the_process(tmp_path: Path) -> None:
    Journal(tmp_path, "run", 3).check_evaluation(Clock(4, 9, 3), b"model")
    Journal(tmp_path, "run", 3).check_evaluation(Clock(4, 9, 3), b"model")
    Journal(tmp_path, "run", 3).check_evaluation(Clock(5, 9, 3), b"another")
    with pytest.raises(PayloadError, match="another model was evaluated in round 5"):
        Journal(tmp_path, "run", 3).check_evaluation(Clock(4, 9, 3), b"another")
    with pytest.raises(PayloadError, match="round 10 of 9 was not announced"):
        Journal(tmp_path, "run", 3).check_evaluation(Clock(9, 9, 3), b"model")


def test_weights_by_samples_are_refused_under_local_privacy() -> None:
    method = HIDING["local"].with_parts(server=fedavg().server)
    with pytest.raises(ConfigError, match="weighted by numbers of samples, which have no noise"):
        simulate(method, TASK, rounds=1, delta=1e-3)


# Errors, which are sent in clear.


@pytest.mark.parametrize("name", HIDING)
def test_what_a_node_says_of_an_error_does_not_depend_on_its_samples(name: str, tmp_path: Path) -> None:
    """A server sends a model that overflows on some samples: which nodes fail would say who has such samples."""

    class Overflowing(FlowerRun):
        def round(self, *args: Any, **more: Any) -> Any:
            params = {name: tensor.clone() for name, tensor in self.server["params"].items()}
            first = next(iter(params))
            params[first][0, 0] = 3e38  # the product with a feature above 1.13 is infinite
            self.server = {**self.server, "params": params}
            return super().round(*args, **more)

    method = HIDING[name]
    given: dict[str, Any] = {} if name == "secure" else {"delta": 1e-3}
    given |= {"keys": str(signing_keys())} if method.training.secure else {}
    settings = Settings(rounds=1, wait=0, deadline=5.0, min_replies=0.1, **given)
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    run = Overflowing(method, TASK, settings, grid)
    with suppress(RunError):  # the aggregated model may be of no use
        run.round(0, None)
    said = {repr(words.get(FAULT)) for words in told(grid, MessageType.TRAIN)}
    assert len(said) == 1, said


def test_a_repeated_download_gets_the_same_noise(tmp_path: Path) -> None:
    """From many uploads with new noise, a server would learn their mean, whatever the stated epsilon."""
    grid = LocalGrid(nodes(HIDING["local"], TASK, tmp_path))
    deploy(HIDING["local"], TASK, grid, rounds=2, deadline=5.0, delta=1e-3)
    trained = [m for m in grid.sent if m.metadata.message_type == MessageType.TRAIN]
    mine = [message for message in trained if message.metadata.dst_node_id == NUMBERS[0]]
    first = next(reply for reply in grid.received if reply.metadata.src_node_id == NUMBERS[0] and data(reply))
    for message in mine:
        replies = {data(grid.nodes[NUMBERS[0]](message)) for _ in range(3)}  # type: ignore[arg-type]
        assert len(replies) == 1
        assert replies != {b""}
    assert data(first) == data(grid.nodes[NUMBERS[0]](mine[0]))  # type: ignore[arg-type]
    words, sent = dict(mine[0].content.config_records[WORDS]), data(mine[0])
    other = Message(content(words, sent[:-1] + bytes([sent[-1] ^ 1])), NUMBERS[0], MessageType.TRAIN, ttl=5.0)
    grid.push_messages([other])
    refused = grid.nodes[NUMBERS[0]](other)
    assert refused is not None
    assert "is over" in str(dict(refused.content.config_records[WORDS])[FAULT])


def test_one_client_cannot_move_the_means_beyond_what_clients_can_have() -> None:
    limit = limit_of(4)
    honest = [metric_numbers(TASK, (0.5, 0.25), 10, limit) for _ in range(3)]
    hostile = metric_numbers(TASK, (0.5, 0.25), 10, limit)
    hostile[3] = int(3.5 * limit)  # an accuracy of 350 %, so that the mean is above 100 %
    assert "accuracy" not in means_of(TASK, torch.stack([*honest, hostile]).sum(0), limit, 4)
    hostile = metric_numbers(TASK, (0.5, 0.25), 10, limit)
    hostile[1] = 6  # a client that is six
    assert "accuracy" not in means_of(TASK, torch.stack([*honest, hostile]).sum(0), limit, 4)
