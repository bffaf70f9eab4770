"""A deployment through Flower: bit for bit the simulator's results, also when nodes leave, fail or lose their state."""

import json
import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.compare import same

pytest.importorskip("flwr")

from flwr.app import Context, Message, MessageType, RecordDict

from gossamer import METHODS, ConfigError, LoRA, RunError, Task, Uniform, fedavg, local, topk
from gossamer.cli import main
from gossamer.core import tree, wire
from gossamer.core.method import Method
from gossamer.core.random import choice, fold, key, permutation
from gossamer.core.store import ClientStore
from gossamer.core.types import State
from gossamer.engines.flower import client_app, fleet, server_app
from gossamer.engines.flower.journal import NEVER, Journal
from gossamer.engines.flower.messages import data, word
from gossamer.engines.flower.server import FlowerRun, VoidError
from gossamer.engines.metrics import Ledger
from gossamer.parts.codecs import Dense, Eden, Feedback, OnWeights, StochasticSign, TopK
from gossamer.parts.downlinks import Delta
from gossamer.parts.privacy.budget import parts_of
from gossamer.parts.servers import private
from gossamer.runs import trackers
from gossamer.runs.checkpoint import read_server
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import read_metrics
from gossamer.runs.trackers import Status, Tracker
from gossamer.testing import tiny_task
from helpers.flower_runs import (
    CLIENTS,
    COUNTS,
    FIGURES,
    NUMBERS,
    agree,
    altered,
    check_parity,
    config,
    deploy,
    figures,
    flower_run,
    ignore,
    messages,
    nodes,
    restarted,
    rewritten,
    simulated,
    undisturbed,
)
from helpers.local_grid import Handle, LocalGrid, node

TASK = tiny_task(CLIENTS)
OWING = topk(steps=2, share=0.1, feedback=True)
DELTA = fedavg(steps=2).with_parts(codec=OnWeights(StochasticSign(0.01)), down=Delta())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(fleet, "POLL", 0.001)


# The same bits.


PRIVATE = [name for name, recipe in METHODS.items() if parts_of(recipe().training)]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in PRIVATE and not METHODS[name]().pooled])
def test_every_method_computes_what_it_computes_in_the_simulator(name: str, tmp_path: Path) -> None:
    check_parity(METHODS[name](), TASK, tmp_path)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_method_differs_from_its_simulation_in_noise_and_cohorts_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "gaussian", lambda key, size, **_: torch.zeros(size, dtype=torch.float64))
    method = METHODS[name]().with_parts(sampler=Uniform())  # all clients, whatever it draws
    grid, run = LocalGrid(nodes(method, TASK, tmp_path)), undisturbed(method, TASK)
    deployed = deploy(method, TASK, grid)
    assert same(deployed.model(), run.model())
    assert messages(grid) == run.messages
    assert figures(deployed.metrics) == figures(run.metrics)


@pytest.mark.parametrize("name", [name for name, recipe in METHODS.items() if recipe().pooled])
def test_a_method_that_pools_samples_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be deployed: its clients are separate"):
        flower_run(METHODS[name](), TASK, LocalGrid({}))


REMEMBERING = {
    "topk": OWING,
    "local": local(steps=2),
    "whole": fedavg(steps=2).with_parts(codec=Feedback(TopK(0.2))),
    **{name: METHODS[name](steps=2, feedback=True) for name in ("signsgd", "drive", "terngrad", "eden")},
    "ef21": METHODS["ef21"](share=0.2),
    "delta": METHODS["drive"](steps=2, feedback=True).with_parts(down=Delta()),
    "summed delta": METHODS["fedmrn"](
        steps=2, noise="uniform", alpha=0.05, common_noise=True, weights="uniform"
    ).with_parts(down=Delta(sums_only=True)),
    "adapter": METHODS["fedmrn"](steps=2).with_parts(adapter=LoRA(2), down=Delta(shared_start=True)),
    "sampled masks": METHODS["klms"](steps=2).with_parts(down=Delta()),
    "curvature": METHODS["hiso"](steps=2, perturbations=3, smoothing=0.3, batch=8),
    "compressed delta": OWING.with_parts(down=Delta(OnWeights(Eden(2)), Dense("float16"))),
}


@pytest.mark.parametrize("name", REMEMBERING)
def test_what_clients_remember_is_the_same_with_some_of_them_a_round(name: str, tmp_path: Path) -> None:
    check_parity(REMEMBERING[name], TASK, tmp_path, rounds=4, per_round=2, seed=3)


def test_what_the_server_sends_may_be_compressed_too(tmp_path: Path) -> None:
    check_parity(OWING.with_parts(down=Eden(4)), TASK, tmp_path, eval_every=1)


def test_running_statistics_travel(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 3))

    task = Task(net, TASK.data, TASK.split)
    check_parity(topk(steps=3, share=0.1, feedback=True), task, tmp_path, per_round=3)


def test_nodes_train_in_the_precision_of_the_run(tmp_path: Path) -> None:
    check_parity(fedavg(steps=3), TASK, tmp_path, precision="bf16")
    grid = LocalGrid(nodes(fedavg(steps=3), TASK, tmp_path))
    deployed = deploy(fedavg(steps=3), TASK, grid, precision="bf16")
    assert not same(deployed.server, undisturbed(fedavg(steps=3), TASK).server)
    assert deployed.about["options"]["precision"] == "bf16"


def test_a_node_without_a_gpu_refuses_tf32(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(fedavg(steps=1), TASK, tmp_path))
    with pytest.raises(RunError, match="precision=tf32 needs a GPU"):
        deploy(fedavg(steps=1), TASK, grid, precision="tf32")


def test_evaluation_comes_as_often_as_asked(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(fedavg(steps=1), TASK, tmp_path))
    records = deploy(fedavg(steps=1), TASK, grid, rounds=5, eval_every=2).metrics
    assert [record["round"] for record in records if "accuracy" in record] == [2, 4, 5]
    asked = [word(m, "round", int) for m in grid.sent if m.metadata.message_type == MessageType.EVALUATE]
    assert asked == [round for round in (1, 3, 4) for _ in range(CLIENTS)]


# Available nodes.


class Slow(LocalGrid):
    """Gives one reply at a time, in another order than that of the orders."""

    def pull_messages(self, message_ids: Any) -> list[Message]:
        waiting = list(message_ids)
        return super().pull_messages([waiting[random.Random(len(waiting)).randrange(len(waiting))]])


def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    grid, run = Slow(nodes(OWING, TASK, tmp_path)), undisturbed(OWING, TASK, rounds=3)
    deployed = deploy(OWING, TASK, grid, rounds=3, deadline=60.0)
    trained = [message for message in grid.received if message.metadata.message_type == MessageType.TRAIN]
    assert [NUMBERS.index(message.metadata.src_node_id) for message in trained[:CLIENTS]] != [0, 1, 2, 3]
    agree(deployed, run, tmp_path)
    assert figures(deployed.metrics) == figures(run.metrics)


def expected_cohort(number: int, there: set[int], size: int) -> list[int]:
    order = permutation(fold(key(0), "cohort", number), CLIENTS)
    return sorted([int(client) for client in order if int(client) in there][:size])


def test_a_cohort_is_drawn_from_available_nodes(tmp_path: Path) -> None:
    """Client 0 comes after two rounds, client 3 leaves after four."""
    everybody = nodes(OWING, TASK, tmp_path)
    grid = LocalGrid({number: everybody[number] for number in NUMBERS[1:]})
    there = [{1, 2, 3}] * 2 + [{0, 1, 2, 3}] * 2 + [{0, 1, 2}] * 2

    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            grid.nodes = everybody
        if record["round"] == 4:
            grid.nodes = {number: everybody[number] for number in NUMBERS[:3]}

    deployed = deploy(OWING, TASK, grid, watch, rounds=6, per_round=2)
    cohorts = [record["clients"] for record in deployed.metrics]
    assert cohorts == [expected_cohort(number, there[number], 2) for number in range(6)]
    assert cohorts[2] == choice(fold(key(0), "cohort", 2), CLIENTS, 2).tolist(), "with everybody, the simulator's"
    agree(deployed, simulated(OWING, TASK, cohorts=dict(enumerate(cohorts)), rounds=6, per_round=2), tmp_path)


def test_a_round_continues_without_absent_nodes(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(OWING, TASK, tmp_path, [0, 1, 3]))
    deployed = deploy(OWING, TASK, grid, nodes=3)
    assert [record["clients"] for record in deployed.metrics] == [[0, 1, 3]] * 2
    agree(deployed, simulated(OWING, TASK, cohorts={0: [0, 1, 3], 1: [0, 1, 3]}), tmp_path)


@pytest.mark.parametrize("method", [OWING, local(steps=2)], ids=["topk", "local"])
def test_a_client_is_known_by_its_partition_and_not_by_its_node_number(method: Method, tmp_path: Path) -> None:
    """All nodes restart after each round, and Flower gives them other numbers."""
    grid = LocalGrid(nodes(method, TASK, tmp_path))

    def watch(record: dict[str, Any]) -> None:
        fresh = restarted(method, TASK, tmp_path)
        grid.nodes = {number * 31 % 1009: fresh[number] for number in NUMBERS}

    agree(deploy(method, TASK, grid, watch, rounds=3), undisturbed(method, TASK, rounds=3), tmp_path)


# Rounds that do not count.


def failing(handle: Handle, at: int, times: int, train: bool, exchange: int = 0) -> Handle:
    """A node that leaves several tasks of a round without reply, trained or not."""
    left = times

    def answer(message: Message) -> Message | None:
        nonlocal left
        asked = message.metadata.message_type == MessageType.TRAIN
        meant = asked and (word(message, "round", int), word(message, "exchange", int)) == (at, exchange)
        if not meant or left == 0:
            return handle(message)
        left -= 1
        if train:
            handle(message)
        return None

    return answer


@pytest.mark.parametrize("train", [False, True], ids=["idle", "trained"])
@pytest.mark.parametrize("method", [OWING, local(steps=2), DELTA], ids=["topk", "local", "delta"])
def test_a_round_with_too_few_replies_is_tried_again_to_the_same_end(
    method: Method, train: bool, tmp_path: Path
) -> None:
    there = nodes(method, TASK, tmp_path)
    there[NUMBERS[2]] = failing(there[NUMBERS[2]], 1, 2, train)
    grid, run = LocalGrid(there), undisturbed(method, TASK, rounds=3)
    deployed = deploy(method, TASK, grid, rounds=3, min_replies=1.0)
    agree(deployed, run, tmp_path)
    assert messages(grid) == run.messages
    assert figures(deployed.metrics) == figures(run.metrics)


def huge(handle: Handle, at: int, times: int) -> Handle:
    """A node that sends finite numbers whose sum would be infinite, several times in a round."""
    left = times

    def change(reply: Message) -> Message:
        nonlocal left
        if left == 0:
            return reply
        left -= 1
        message = wire.unpack(data(reply))
        message.payload["values"].fill_(torch.finfo(torch.float32).max)
        return rewritten(reply, wire.pack(message))

    return altered(handle, change, MessageType.TRAIN, [at])


VOID: dict[str, tuple[Method, Callable[[Handle], Handle], str, str]] = {
    "what clients owe": (
        fedavg(steps=2).with_parts(codec=Feedback(Dense())),
        lambda handle: huge(handle, 1, 2),
        "'values' holds values above 1.13e+15, which are far too large",
        "clients",
    ),
    "what clients hold": (
        METHODS["fedspa"](),
        lambda handle: failing(handle, 1, 2, train=True),
        "3 of 4 clients replied, 4 are needed",
        "clients",
    ),
    "clients' models": (
        METHODS["perm"](warmup=1),
        lambda handle: failing(handle, 1, 2, train=True, exchange=1),
        "3 of 4 clients replied, 4 are needed",
        "models",
    ),
}


@pytest.mark.parametrize("name", VOID)
def test_a_round_that_does_not_count_leaves_no_trace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged in it is forgotten, and the next try gives the same bits."""
    method, disturb, reason, store = VOID[name]
    there = nodes(method, TASK, tmp_path)
    there[NUMBERS[3]] = disturb(there[NUMBERS[3]])
    grid, run = LocalGrid(there), undisturbed(method, TASK, rounds=3)
    deployed, dropped, train = (
        flower_run(method, TASK, grid, rounds=3, min_replies=1.0),
        list[list[int]](),
        FlowerRun.train,
    )

    def stores() -> dict[str, State]:
        known = {"clients": deployed.clients, "models": deployed.models}
        return {what: {str(c): kept.get(c) for c in kept.known()} for what, kept in known.items()}

    def discard(clients: ClientStore) -> None:
        if clients is getattr(deployed, store):
            dropped.append([client for client in range(CLIENTS) if clients.staged(client)])
        real(clients)

    def watched(self: FlowerRun, number: int, ledger: Ledger) -> list[int]:
        server, before = self.server, tree.clone(stores())
        try:
            return train(self, number, ledger)
        except VoidError:
            assert self.server is server
            assert same(stores(), before)
            assert not any(kept.staged(c) for kept in (self.clients, self.models) for c in range(CLIENTS))
            raise

    real = ClientStore.discard
    monkeypatch.setattr(ClientStore, "discard", discard)
    monkeypatch.setattr(FlowerRun, "train", watched)
    deployed.run(None, ignore)
    assert [reason in record["reason"] for record in deployed.metrics[1]["void"]] == [True, True]
    assert [len(record["void"]) for record in deployed.metrics] == [0, 2, 0]
    assert len(dropped) == 2
    assert all(dropped), "something was staged, or nothing is tested"
    agree(deployed, run, tmp_path)
    assert messages(grid) == run.messages
    assert figures(deployed.metrics) == figures(run.metrics)


def test_after_three_tries_a_run_stops_and_its_folder_resumes(tmp_path: Path) -> None:
    there = nodes(OWING, TASK, tmp_path)
    there[NUMBERS[2]] = failing(there[NUMBERS[2]], 1, 3, train=True)
    grid = LocalGrid(there)
    first = flower_run(OWING, TASK, grid, rounds=3, min_replies=0.9)
    with pytest.raises(
        RunError, match=r"round 2 was void 3 times.*3 of 4 clients replied, 4 are needed \(client 2: no reply within"
    ):
        begin(first, tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == 1
    second = flower_run(OWING, TASK, grid, rounds=3, min_replies=0.9)
    go_on(second, tmp_path / "run")
    agree(second, undisturbed(OWING, TASK, rounds=3), tmp_path)


def test_enough_replies_make_a_round(tmp_path: Path) -> None:
    there = nodes(OWING, TASK, tmp_path)
    for client in (0, 3):
        there[NUMBERS[client]] = failing(there[NUMBERS[client]], 1, 1, train=True)
    deployed = deploy(OWING, TASK, LocalGrid(there), rounds=3, min_replies=0.5)
    assert [failure["client"] for failure in deployed.metrics[1]["failures"]] == [0, 3]
    agree(deployed, simulated(OWING, TASK, lost={(1, 0), (1, 3)}, rounds=3), tmp_path)


@pytest.mark.parametrize("accumulate", [False, True])
def test_delivery_is_reported_as_in_the_simulator(accumulate: bool, tmp_path: Path) -> None:
    """Client 0 is lost twice after it trained; client 3 did not get its order, so nothing of it was lost."""
    method = METHODS["onebit-cs"](accumulate=accumulate)
    there = nodes(method, TASK, tmp_path)
    there[NUMBERS[0]] = failing(failing(there[NUMBERS[0]], 1, 1, train=True), 2, 1, train=True)
    there[NUMBERS[3]] = failing(there[NUMBERS[3]], 1, 1, train=False)
    deployed = deploy(method, TASK, LocalGrid(there), rounds=5, min_replies=0.5)
    run = simulated(method, TASK, cohorts={1: [0, 1, 2]}, lost={(1, 0), (2, 0)}, rounds=5)
    found = [record.get("delivery") for record in deployed.metrics]
    assert found == [record.get("delivery") for record in run.metrics]
    both = (2, 0) if accumulate else (1, 1)
    counts = {name: [count, 0, 0, 0] for name, count in zip(("retained", "forgotten"), both, strict=True)}
    assert found == [None, None, None, counts, None]
    assert deployed.metrics[1]["exchanges"] == [{"sent": 2, "lost": 0, "folded": 2}]


@pytest.mark.parametrize(("retained", "forgotten"), [(2, 0), (1, 1), (-1, 0), (0, -1), (None, 0)])
def test_a_reply_with_an_impossible_count_of_lost_messages_is_refused(
    retained: int | None, forgotten: int, tmp_path: Path
) -> None:
    there = nodes(OWING, TASK, tmp_path)
    lie = partial(rewritten, retained=retained, forgotten=forgotten)
    there[NUMBERS[1]] = altered(there[NUMBERS[1]], lie, MessageType.TRAIN, [1])
    deployed = deploy(OWING, TASK, LocalGrid(there), rounds=2, min_replies=0.5)
    assert [failure["client"] for failure in deployed.metrics[1]["failures"]] == [1]


# A server that dies.


def begin(run: FlowerRun, out: Path, watch: Any = ignore) -> None:
    folder = run.create(out)
    try:
        run.run(folder, watch)
    finally:
        folder.close()


def go_on(run: FlowerRun, out: Path) -> list[str]:
    folder = run.restore(out)
    try:
        run.run(folder, ignore)
    finally:
        folder.close()
    return folder.warnings


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def between_rounds(out: Path, monkeypatch: pytest.MonkeyPatch, run: FlowerRun, grid: LocalGrid) -> None:
    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    begin(run, out, watch)


def before_a_checkpoint(out: Path, monkeypatch: pytest.MonkeyPatch, run: FlowerRun, grid: LocalGrid) -> None:
    save = RunFolder.save

    def dying(folder: RunFolder, rounds: int, *state: Any) -> None:
        if rounds == 4:
            raise KeyboardInterrupt
        save(folder, rounds, *state)

    monkeypatch.setattr(RunFolder, "save", dying)
    begin(run, out)


def in_a_round(out: Path, monkeypatch: pytest.MonkeyPatch, run: FlowerRun, grid: LocalGrid) -> None:
    push = grid.push_messages

    def dying(messages: Any) -> list[str]:
        (message,) = messages
        if (word(message, "round", int), message.metadata.dst_node_id) == (3, NUMBERS[2]):
            raise KeyboardInterrupt
        return push([message])

    monkeypatch.setattr(grid, "push_messages", dying)
    begin(run, out)


MOMENTS = [between_rounds, before_a_checkpoint, in_a_round]


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("die", MOMENTS)
@pytest.mark.parametrize("name", ["topk", "local", pytest.param("delta", marks=pytest.mark.slow)])
def test_a_server_that_died_resumes_to_the_same_end(
    name: str, die: Callable[..., None], damaged: bool, tmp_path: Path
) -> None:
    """With a damaged checkpoint it goes back one more, and nodes are up to two rounds ahead."""
    method, options = REMEMBERING[name], {"rounds": 5, "per_round": 3, "seed": 1, "eval_every": 2}
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        die(tmp_path / "run", patch, flower_run(method, TASK, grid, **options), grid)
    if damaged:
        flip(tmp_path / "run/checkpoints/3/server.safetensors")
    second = flower_run(method, TASK, LocalGrid(restarted(method, TASK, tmp_path)), **options)
    warnings = go_on(second, tmp_path / "run")
    assert len(warnings) == damaged
    run = undisturbed(method, TASK, **options)
    agree(second, run, tmp_path)
    assert same(read_server(tmp_path / "run"), run.server)
    ours, theirs = read_metrics(tmp_path / "run"), run.metrics
    assert figures(ours, COUNTS) == figures(theirs, COUNTS)
    for number in (1, 3, 4):
        assert figures(ours[number : number + 1]) == figures(theirs[number : number + 1])
        assert ours[number]["evaluation_failures"] == []


def test_a_finished_run_resumes_to_itself_without_any_node(tmp_path: Path) -> None:
    begin(flower_run(OWING, TASK, LocalGrid(nodes(OWING, TASK, tmp_path))), tmp_path / "run")
    again = flower_run(OWING, TASK, LocalGrid({}))
    go_on(again, tmp_path / "run")
    assert same(again.server, undisturbed(OWING, TASK).server)


def test_runs_do_not_share_what_their_nodes_remember(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(OWING, TASK, tmp_path))
    first, second = (deploy(OWING, TASK, grid) for _ in range(2))
    run = undisturbed(OWING, TASK)
    for deployed in (first, second):
        agree(deployed, run, tmp_path)


# A node that forgets.


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def strangers(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"0": torch.ones(3)}, path)


@pytest.mark.parametrize("damage", [Path.unlink, cut, empty, flip, strangers])
@pytest.mark.parametrize("name", ["topk", "local"])
def test_a_node_that_forgot_is_named_and_starts_over(name: str, damage: Any, tmp_path: Path) -> None:
    method, lost = REMEMBERING[name], 1
    deployed = flower_run(method, TASK, LocalGrid(nodes(method, TASK, tmp_path)), rounds=4)

    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            damage(Journal(tmp_path, deployed.about["id"], lost).path)

    def forget(run: Any, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            run.clients.forget(lost)

    deployed.run(None, watch)
    (failure,) = deployed.metrics[2]["failures"]
    assert failure["client"] == lost
    assert "the state of client" in failure["reason"]
    assert [record["failures"] for record in deployed.metrics if record["round"] != 3] == [[]] * 3
    agree(deployed, simulated(method, TASK, forget, cohorts={2: [0, 2, 3]}, rounds=4), tmp_path)
    (entry,) = Journal(tmp_path, deployed.about["id"], lost).entries()
    assert (entry.round, entry.last_folded, entry.before) == (3, NEVER, {})


def whole_models(record: dict[str, Any]) -> float:
    """The number of clients that received the whole model in a round."""
    parameters = sum(tensor.numel() for tensor in TASK.model().state_dict().values())
    return record["bytes_down"].get("down.values", 0) / (4 * parameters)


def test_a_node_that_forgot_its_model_or_was_not_heard_receives_what_it_needs(tmp_path: Path) -> None:
    """Client 0 trains twice and is not heard: it skips steps. Client 1 forgets its state, and gets the whole model."""
    there = nodes(DELTA, TASK, tmp_path)
    there[NUMBERS[0]] = failing(failing(there[NUMBERS[0]], 2, 1, train=True), 3, 1, train=True)
    deployed = flower_run(DELTA, TASK, LocalGrid(there), rounds=6)

    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            Journal(tmp_path, deployed.about["id"], 1).path.unlink()

    deployed.run(None, watch)
    failures = [[failure["client"] for failure in record["failures"]] for record in deployed.metrics]
    assert failures == [[], [], [0], [0, 1], [], []]
    assert [whole_models(record) for record in deployed.metrics] == [4, 0, 0, 0, 1, 0]


def test_a_node_that_refused_a_download_gets_the_whole_model_when_the_round_is_repeated(tmp_path: Path) -> None:
    there = nodes(DELTA, TASK, tmp_path)
    deployed = flower_run(DELTA, TASK, LocalGrid(there), rounds=3, min_replies=1.0)

    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            journal = Journal(tmp_path, deployed.about["id"], 1)
            (entry,) = journal.entries()
            held = {name: tensor + 1 for name, tensor in entry.after["held"]["params"].items()}
            changed = {**entry.after, "held": {**entry.after["held"], "params": held}}
            journal.note(entry._replace(after=changed))

    deployed.run(None, watch)
    (void,) = deployed.metrics[1]["void"]
    assert "client 1: the model after the steps of the download is not that of the server" in void["reason"]
    assert [whole_models(record) for record in deployed.metrics] == [4, 1, 0]
    assert same(deployed.server["params"], undisturbed(DELTA, TASK, rounds=3).server["params"])


def test_a_node_that_forgot_before_it_was_ever_folded_needs_nothing(tmp_path: Path) -> None:
    there = nodes(OWING, TASK, tmp_path)
    there[NUMBERS[1]] = failing(there[NUMBERS[1]], 0, 1, train=True)
    deployed = flower_run(OWING, TASK, LocalGrid(there))

    def watch(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            Journal(tmp_path, deployed.about["id"], 1).forget()

    deployed.run(None, watch)
    assert deployed.metrics[1]["failures"] == []
    agree(deployed, simulated(OWING, TASK, cohorts={0: [0, 2, 3]}), tmp_path)


# A server and nodes that have their own samples and no others.


def own_task(client: int | None) -> Task:
    if client is None:
        return Task.own(TASK.model, client=None, clients=CLIENTS)
    train, test = TASK.data.train.take(TASK.split.train(client)), TASK.data.test.take(TASK.split.test(client))
    return Task.own(TASK.model, (train.x, train.y), (test.x, test.y), client=client, clients=CLIENTS)


@pytest.mark.parametrize("name", ["topk", "local"])
def test_nodes_with_their_own_samples_alone_compute_the_same(name: str, tmp_path: Path) -> None:
    method = REMEMBERING[name]
    run = undisturbed(method, TASK, rounds=3, per_round=3)
    deployed = deploy(method, own_task(None), LocalGrid(nodes(method, own_task, tmp_path)), rounds=3, per_round=3)
    agree(deployed, run, tmp_path)
    names = ("personal_accuracy", "worst_tenth_accuracy", "train_loss", "flops", "bytes_up", "bytes_down")
    assert figures(deployed.metrics, names) == figures(run.metrics, names)
    for record in deployed.metrics:
        assert record["accuracy"] == record["personal_accuracy"], "each on its own is all that is known"
        assert record["loss"] > 0


def test_a_server_with_test_samples_uses_them(tmp_path: Path) -> None:
    test = TASK.data.test
    server = Task.own(TASK.model, test=(test.x, test.y), client=None, clients=CLIENTS)
    deployed = deploy(OWING, server, LocalGrid(nodes(OWING, own_task, tmp_path)))
    assert figures(deployed.metrics) == figures(undisturbed(OWING, TASK).metrics)


def test_nodes_without_test_samples_take_part(tmp_path: Path) -> None:
    def untested(client: int | None) -> Task:
        if client is None:
            return own_task(None)
        train = TASK.data.train.take(TASK.split.train(client))
        return Task.own(TASK.model, (train.x, train.y), client=client, clients=CLIENTS)

    grid = LocalGrid(nodes(OWING, untested, tmp_path))
    deployed = deploy(OWING, untested(None), grid)
    assert same(deployed.server, undisturbed(OWING, TASK).server)
    assert [deployed.metrics[-1][name] for name in FIGURES[:4]] == [None] * 4
    assert not any(message.metadata.message_type == MessageType.EVALUATE for message in grid.sent)


def test_a_task_may_be_made_of_the_machines_settings(tmp_path: Path) -> None:
    def task(client: int | None, settings: dict[str, Any]) -> Task:
        assert settings["place"] == ("server" if client is None else f"node {client}")
        return own_task(client)

    def handle(client: int) -> Handle:
        return node(client_app(OWING, task), {**config(client, tmp_path), "place": f"node {client}"})

    grid = LocalGrid({NUMBERS[client]: handle(client) for client in range(CLIENTS)})
    start(server_app(OWING, task, 2, wait=0, rehearsal=True), grid, {"place": "server", "out": str(tmp_path / "run")})
    assert same(read_server(tmp_path / "run"), undisturbed(OWING, TASK).server)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (lambda client, settings, more: TASK, "a machine's settings, this one takes 3 arguments"),
        (lambda: TASK.data, "must be a gossamer.Task or a function that returns one, got Data"),
    ],
)
def test_a_function_that_makes_no_task_is_refused(task: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        start(server_app(OWING, task, 2), LocalGrid({}), {"out": str(tmp_path / "run")})
    with pytest.raises(RunError, match=reason):
        deploy(OWING, TASK, LocalGrid(nodes(OWING, task, tmp_path)))


# The app, its folder, and what Flower adds.


def start(app: Any, grid: LocalGrid, config: dict[str, Any]) -> None:
    app(grid, Context(1, 1, {}, RecordDict(), config, 1))


def test_the_app_reads_its_run_configuration_and_resumes(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(OWING, TASK, tmp_path))
    app = server_app(OWING, TASK, rounds=9, wait=0, rehearsal=True)
    asked = {"rounds": 3, "per-round": 2, "seed": 4, "out": str(tmp_path / "run"), "mine": "not meant for it"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "keep_choice", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(app, grid, asked)
    start(app, grid, {**asked, "resume": True})
    run = undisturbed(OWING, TASK, rounds=3, per_round=2, seed=4)
    assert same(read_server(tmp_path / "run"), run.server)
    assert figures(read_metrics(tmp_path / "run")) == figures(run.metrics)


def interrupt(*args: Any) -> None:
    raise KeyboardInterrupt


def test_a_deployed_run_is_tracked_and_a_resumed_one_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(trackers, "TRACKERS", {"told": lambda: Told(told)})
    grid, app = LocalGrid(nodes(OWING, TASK, tmp_path)), server_app(OWING, TASK, rounds=2, wait=0)
    asked = {"out": str(tmp_path / "run")}
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "keep_choice", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(app, grid, {**asked, "track": "told"})
    start(app, grid, {**asked, "resume": True})
    assert told == [
        ("start", None, 1),
        ("finish", "interrupted"),
        ("start", "run", 1),
        ("log", 1),
        ("log", 2),
        ("finish", "finished"),
    ]


class Told(Tracker):
    """Keeps what it is told, in a list that outlives it."""

    name = "told"

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        self.calls.append(("start", id, first))
        return "run"

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self.calls.append(("log", round))

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        self.calls.append(("finish", status))


def test_the_app_takes_a_tracker_of_your_own(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []
    app = server_app(OWING, TASK, rounds=1, wait=0, track=Told(told))
    start(app, LocalGrid(nodes(OWING, TASK, tmp_path)), {"out": str(tmp_path / "run"), "track": ""})
    assert told == [("start", None, 1), ("log", 1), ("finish", "finished")]


@pytest.mark.parametrize(("rule", "stops"), [({"until": "accuracy>=0"}, 1), ({"patience": 1}, 2)])
def test_a_deployed_run_ends_as_its_simulation_does(rule: dict[str, Any], stops: int, tmp_path: Path) -> None:
    method = fedavg(lr=1e-9, steps=1)  # so small that no round is better than the first
    app = server_app(method, TASK, rounds=5, wait=0, rehearsal=True)
    start(app, LocalGrid(nodes(method, TASK, tmp_path)), {"out": str(tmp_path / "run"), **rule})
    records, run = read_metrics(tmp_path / "run"), undisturbed(method, TASK, rounds=5, **rule)
    assert len(records) == stops
    assert records[-1]["stopped"] == run.stopped is not None
    assert figures(records) == figures(run.metrics)
    start(app, LocalGrid({}), {"out": str(tmp_path / "run"), **rule, "resume": True})
    assert len(read_metrics(tmp_path / "run")) == stops, "a run that has ended needs no node"


def test_a_deployed_run_is_looked_at_as_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid, out = LocalGrid(nodes(OWING, TASK, tmp_path)), tmp_path / "run"
    begin(flower_run(OWING, TASK, grid, name="sparse"), out)
    assert main(["show", "--json", str(out)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["method"], shown["rounds"], shown["state"]) == ("sparse", 2, "finished")
    assert shown["accuracy"] == undisturbed(OWING, TASK).metrics[-1]["accuracy"]
    assert main(["show", str(out)]) == 0
    assert "sparse" in capsys.readouterr().out
    assert main(["compare", str(out), str(out), "--out", str(tmp_path / "curves.png")]) == 0
    assert main(["runs", str(tmp_path)]) == 0
    assert "damaged" not in capsys.readouterr().out


class Pieces(nn.Module):
    """A linear layer in several pieces, with the same number of parameters."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3, 6 // pieces)) for _ in range(pieces)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x @ torch.cat(list(self.weights), 1).T
        return out


def test_what_flower_adds_does_not_depend_on_the_number_of_tensors(tmp_path: Path) -> None:
    added = []
    for pieces in (1, 2, 6):
        task = Task(partial(Pieces, pieces), TASK.data, TASK.split)
        grid = LocalGrid(nodes(fedavg(steps=1), task, tmp_path))
        for record in deploy(fedavg(steps=1), task, grid).metrics:
            added.append(record["bytes_flower"])
            assert record["bytes_down"]["down.values"] == record["bytes_up"]["codec.values"] == CLIENTS * 4 * 18
    assert all(one == added[0] for one in added)
    assert 0 < added[0]["down"] < CLIENTS * 2000
    assert 0 < added[0]["up"] < CLIENTS * 2000


def test_a_message_is_one_array_of_the_methods_own_bytes(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(OWING, TASK, tmp_path))
    deploy(OWING, TASK, grid)
    for message in (m for m in grid.sent + grid.received if data(m)):
        assert [len(record) for record in message.content.array_records.values()] == [1]
    words = {name for m in grid.received for record in m.content.config_records.values() for name in record}
    declared = {"run", "round", "loss", "flops", "useful", "retained", "forgotten", "own", "own_loss"}
    who = {"client", "samples", "tested", "test", "method", "model", "frozen"}
    assert words == declared | who, "a node sends its message and declared figures, and nothing else"


def test_a_seed_may_be_larger_than_any_number_of_flowers(tmp_path: Path) -> None:
    check_parity(OWING, TASK, tmp_path, seed=2**70)
