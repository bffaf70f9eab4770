"""One sample replaced: nothing but that differs, what is measured is what two plain runs give, and the command."""

import doctest
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gossamer.analysis.stability
from gossamer import Bernoulli, Mean, Method, Task, Windows, centralised, fedavg, fedmrn, fedpm, local, simulate
from gossamer.analysis.stability import Stability, Swap, choose_swaps, growth, stability, swapped
from gossamer.cli import main
from gossamer.core.errors import ConfigError
from gossamer.core.random import fold, key
from gossamer.engines import Options
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.fleet.capacity import Room
from gossamer.testing import tiny_task

TASK = tiny_task()
METHODS = {
    "fedavg": fedavg(epochs=1),
    "random": fedavg(epochs=1).with_parts(view=Bernoulli((0.5,)), server=Mean("uniform")),
    "rolling": fedavg(epochs=1).with_parts(view=Windows((0.5,), offsets=4), server=Mean("uniform")),
    "fedmrn": fedmrn(epochs=1),
    "fedpm": fedpm(epochs=1),
    "centralised": centralised(epochs=1),
}
FLAGS = ["--data", "digits", "--model", "logistic", "--clients", "4", "--executor", "one-by-one"]


def with_twin(swap: Swap) -> Task:
    """The task whose test sample is the very training sample that it will replace."""
    data, row = TASK.data, int(TASK.split.train(swap.client)[swap.sample])
    x, y = data.test.x.clone(), data.test.y.clone()
    x[swap.by], y[swap.by] = data.train.x[row], data.train.y[row]
    return replace(TASK, data=replace(data, test=replace(data.test, x=x, y=y)))


def is_zero(found: Stability) -> bool:
    return all(moment.distance == moment.loss_difference == moment.newcomer_difference == 0 for moment in found.moments)


# What is replaced.


def test_one_sample_differs_and_no_other() -> None:
    swap = Swap(2, 3, 7)
    data, row = swapped(TASK, swap).data, int(TASK.split.train(2)[3])
    differs = (data.train.x != TASK.data.train.x).any(1)
    assert differs.nonzero().view(-1).tolist() == [row]
    assert torch.equal(data.train.x[row], TASK.data.test.x[7])
    assert data.train.y[row] == TASK.data.test.y[7]
    assert swapped(TASK, swap).split is TASK.split


def test_swaps_are_drawn_from_the_seed_for_the_clients_that_are_asked_for() -> None:
    drawn = choose_swaps(TASK, (), 40, key(0))
    assert len(set(drawn)) > 30
    assert {swap.client for swap in drawn} == set(range(5))
    assert all(swap.sample < len(TASK.split.train(swap.client)) and swap.by < 60 for swap in drawn)
    assert drawn == choose_swaps(TASK, (), 40, key(0))
    asked = choose_swaps(TASK, (1, Swap(3, 0, 5)), 4, key(0))
    assert [swap.client for swap in asked] == [1, 3, 1, 3]
    assert asked[1] == asked[3] == Swap(3, 0, 5)
    assert asked[0] != asked[2]
    assert len(choose_swaps(TASK, (), None, key(0))) == 3
    assert len(choose_swaps(TASK, (4,), None, key(0))) == 1


def labelled() -> Task:
    """A task in which a client has two of four labels, in its training samples as in its test samples."""
    return Task.named("digits", model="logistic", clients=4, split="labels:2")


def test_a_new_sample_comes_from_the_clients_own_test_samples() -> None:
    task = labelled()
    drawn = choose_swaps(task, (), 60, key(0))
    assert all(swap.by in task.split.test(swap.client) for swap in drawn)
    labels = {client: set(task.data.train.y[task.split.train(client)].tolist()) for client in range(4)}
    assert all(int(task.data.test.y[swap.by]) in labels[swap.client] for swap in drawn)
    anyone = choose_swaps(task, (), 60, key(0), "any")
    assert [swap[:2] for swap in anyone] == [swap[:2] for swap in drawn]
    strange = [swap for swap in anyone if int(task.data.test.y[swap.by]) not in labels[swap.client]]
    assert len(strange) > len(anyone) / 2  # four fifths of all samples have another label


def without_tests(*clients: int) -> Task:
    """The task in which some clients have no test samples."""
    split = TASK.split
    own = [split.test(client) if client not in clients else split.test(client)[:0] for client in range(5)]
    start = np.cumsum([0, *map(len, own)])
    return replace(TASK, split=replace(split, test_index=np.concatenate(own), test_start=start))


def test_clients_without_test_samples_are_not_drawn_and_refused_if_named() -> None:
    task = without_tests(1, 3)
    assert {swap.client for swap in choose_swaps(task, (), 40, key(0))} == {0, 2, 4}
    assert {swap.client for swap in choose_swaps(task, (), 40, key(0), "any")} == set(range(5))
    with pytest.raises(ConfigError, match="client 3 has no test samples: name one, or use newcomer=any"):
        choose_swaps(task, (3,), None, key(0))
    assert choose_swaps(task, (Swap(3, 0, 8),), None, key(0)) == (Swap(3, 0, 8),)
    with pytest.raises(ConfigError, match="no client has both training and test samples"):
        choose_swaps(without_tests(*range(5)), (), None, key(0))


# What is measured.


def test_a_method_that_ignores_its_samples_is_stable_and_still_has_a_gap() -> None:
    """So Lemma 1 cannot bound the expected magnitude of the gap, as printed, but only its expectation."""
    found = stability(fedavg(lr=1e-30, epochs=1), TASK, rounds=1, repeats=3)
    assert is_zero(found)
    assert abs(found.last.loss_gap) > 1e-3


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_same_sample_changes_nothing(method: Method) -> None:
    swap = Swap(1, 2, 3)
    assert is_zero(stability(method, with_twin(swap), rounds=2, replaced=[swap]))
    assert not is_zero(stability(method, TASK, rounds=2, replaced=[swap]))


@pytest.mark.parametrize("view", [Bernoulli((0.5,)), Windows((0.5,), offsets=4)], ids=str)
def test_a_client_that_never_takes_part_changes_nothing(view: Bernoulli | Windows) -> None:
    method = fedavg(epochs=1).with_parts(view=view)
    options: dict[str, Any] = {"rounds": 3, "per_round": 1, "seed": 2}
    run = Simulation(method, TASK, Options(**options))
    seen = {client for number in range(3) for client in run.cohort(number, Ledger())}
    absent = next(client for client in range(5) if client not in seen)
    assert is_zero(stability(method, TASK, replaced=[absent], repeats=2, **options))
    found = stability(method, TASK, replaced=[next(iter(seen))], repeats=4, **options)
    assert not is_zero(found)


@pytest.mark.parametrize("name", ["fedavg", "random", "rolling", "centralised"])
def test_distances_and_losses_are_those_of_two_plain_runs(name: str) -> None:
    method, swaps = METHODS[name], [Swap(0, 1, 2), Swap(3, 0, 9)]
    found = stability(method, TASK, rounds=3, seed=5, replaced=swaps)
    test = TASK.data.test
    plain, *others = (
        simulate(method, task, rounds=3, seed=5).model for task in (TASK, *(swapped(TASK, swap) for swap in swaps))
    )

    def losses(module: torch.nn.Module) -> torch.Tensor:
        return F.cross_entropy(module(test.x), test.y, reduction="none").detach()

    distances, apart, newcomers = [], [], []
    for swap, other in zip(swaps, others, strict=True):
        pairs = zip(plain.parameters(), other.parameters(), strict=True)
        distances.append(sum(float((a - b).detach().double().square().sum()) for a, b in pairs) ** 0.5)
        difference = (losses(plain) - losses(other)).abs()
        apart.append(float(difference.mean()))
        newcomers.append(float(difference[swap.by]))
    last = found.last
    assert last.distances == pytest.approx(distances, rel=1e-6)
    assert last.distance == pytest.approx(sum(distances) / 2, rel=1e-6)
    assert last.loss_difference == pytest.approx(sum(apart) / 2, rel=1e-4)
    assert last.newcomer_difference == pytest.approx(sum(newcomers) / 2, rel=1e-4)
    assert last.test_loss == pytest.approx(float(losses(plain).mean()), rel=1e-5)
    held = torch.from_numpy(np.sort(TASK.split.train_index))
    x, y = TASK.data.train.x[held], TASK.data.train.y[held]
    assert last.train_loss == pytest.approx(float(F.cross_entropy(plain(x), y).detach()), rel=1e-5)
    assert last.train_score == pytest.approx(float((plain(x).argmax(1) == y).double().mean()))
    assert last.score_gap == pytest.approx(last.train_score - last.test_score)
    assert last.loss_gap == pytest.approx(last.test_loss - last.train_loss)


def test_a_loss_of_ones_own_is_taken_sample_by_sample() -> None:
    def mine(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y)

    swap = [Swap(0, 0, 0)]
    found = stability(METHODS["fedavg"], replace(TASK, loss=mine), rounds=1, replaced=swap)
    wanted = stability(METHODS["fedavg"], TASK, rounds=1, replaced=swap)
    assert found.last.loss_difference == pytest.approx(wanted.last.loss_difference, rel=1e-4)
    assert found.last.newcomer_difference == pytest.approx(wanted.last.newcomer_difference, rel=1e-4)


def test_rounds_are_looked_at_when_they_are_evaluated() -> None:
    found = stability(METHODS["fedavg"], TASK, rounds=5, eval_every=2, repeats=1)
    assert [moment.round for moment in found.moments] == [2, 4, 5]
    every = stability(METHODS["fedavg"], TASK, rounds=5, repeats=1)
    assert found.moments == tuple(moment for moment in every.moments if moment.round in (2, 4, 5))


def test_the_first_round_grows_with_what_is_held() -> None:
    """After one step of one round the distance is the masked gradients', so it shrinks with the share held."""
    method = fedavg(lr=0.1, steps=1, batch=None)

    def make(share: float) -> Method:
        return method.with_parts(view=Bernoulli((share,), min_dim=1), server=Mean("uniform"))

    swaps = [Swap(client, 0, 4 + client) for client in range(5)]
    found = growth(make, (0.1, 0.5, 1.0), TASK, rounds=1, replaced=swaps)
    distances = [each.last.distance for _, each in found.found]
    assert distances == sorted(distances)
    assert distances[0] < distances[2] / 2
    assert found.found[2][1] == stability(method.with_parts(server=Mean("uniform")), TASK, rounds=1, replaced=swaps)


def test_it_prints_as_a_table_and_goes_into_json() -> None:
    found = stability(METHODS["fedavg"], TASK, rounds=2, repeats=2)
    head, _, *rows = str(found).splitlines()
    assert head.split("  ")[0] == "round"
    assert [row.split()[0] for row in rows] == ["1", "2"]
    plain = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert [each["round"] for each in plain["rounds"]] == [1, 2]
    assert plain["rounds"][1]["distance"] == found.last.distance
    assert plain["rounds"][1]["loss_gap"] == found.last.loss_gap
    assert len(plain["swaps"]) == len(plain["rounds"][0]["distances"]) == 2


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"replaced": [0, 1, 2], "repeats": 2}, "repeats is 2, but 3 samples or clients"),
        ({"replaced": [5]}, "client must be from 0 to 4, got 5"),
        ({"replaced": [Swap(0, 999, 0)]}, "client 0 has the samples 0 to .*, got 999"),
        ({"replaced": [Swap(0, 0, 60)]}, "test sample must be from 0 to 59, got 60"),
        ({"newcomer": "other"}, "newcomer must be own or any, got 'other'"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_replaced_is_refused_before_any_work(more: dict[str, Any], reason: str) -> None:
    reported: list[str] = []
    with pytest.raises(ConfigError, match=reason):
        stability(METHODS["fedavg"], TASK, say=reported.append, **{"rounds": 1, **more})
    assert reported == []


def test_a_method_without_a_global_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="no global model"):
        stability(local(), TASK, rounds=1)


def test_the_example_in_the_module_holds() -> None:
    done = doctest.testmod(gossamer.analysis.stability)
    assert done.attempted > 0
    assert done.failed == 0


# The command.


def ask(*words: str) -> int:
    return main(["stability", *words])


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("fedavg", *FLAGS, "--epochs", "1", "--rounds", "2", "--replaced", "1:0:3+2") == 0
    out, err = capsys.readouterr()
    first, _, head, _, *rows = out.splitlines()
    assert first == "mean over 2 replaced samples"
    assert "distance" in head
    assert "accuracy gap" in head
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert err.splitlines()[:2] == [
        "run 1 of 3: all original samples",
        "run 2 of 3: client 1, sample 0, by test sample 3",
    ]


def test_the_command_gives_what_python_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("fedavg", *FLAGS, "--epochs", "1", "--rounds", "2", "--repeats", "2", "--seed", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    task = Task.named("digits", model="logistic", clients=4, seed=3)
    assert found == json.loads(json.dumps(stability(fedavg(epochs=1), task, rounds=2, repeats=2, seed=3).plain()))


def test_the_command_draws_new_samples_from_all_clients_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedavg", *FLAGS, "--split", "labels:2", "--epochs", "1", "--rounds", "1", "--json"]
    found = {}
    for newcomer in ("own", "any"):
        assert ask(*words, "--newcomer", newcomer) == 0
        found[newcomer] = json.loads(capsys.readouterr().out)["swaps"]
    assert found["own"] != found["any"]
    drawn = choose_swaps(labelled(), (), None, fold(key(0), "stability"), "any")
    assert found["any"] == [swap._asdict() for swap in drawn]


def test_each_capacity_alone_shows_how_it_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from gossamer import Bernoulli, fedavg\n"
        "def thin(capacities: tuple[float, ...] = (1.0, 0.5)):\n"
        "    return fedavg(epochs=1).with_parts(view=Bernoulli(capacities, min_dim=1))\n"
    )
    recipe = f"{tmp_path}/mine.py:thin"
    assert ask(recipe, *FLAGS, "--rounds", "1", "--repeats", "1", "--each") == 0
    first, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "after the last round, mean over 1 replaced sample"
    assert head.split()[0] == "capacity"
    assert [row.split()[0] for row in rows] == ["1", "0.5"]
    assert ask(recipe, *FLAGS, "--rounds", "1", "--repeats", "1", "--each", "--capacities", "0.25", "--json") == 0
    (alone,) = json.loads(capsys.readouterr().out)
    assert alone["capacity"] == "0.25"
    assert ask(recipe, *FLAGS, "--rounds", "1", "--repeats", "1", "--capacities", "0.25", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == alone["rounds"]


def test_a_capacity_is_printed_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"data": "digits", "clients": "4", "executor": "one-by-one", "steps": "1", "rounds": "1", "repeats": "1"}
    asked = ["submodel-random", *(word for name, value in flags.items() for word in (f"--{name}", value)), "--each"]
    typed = ["5000kB", "1/4", "0.125"]
    assert ask(*asked, "--capacities", ",".join(typed)) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[4:]] == typed
    assert ask(*asked, "--capacities", "+".join(typed[:2]), "--json") == 0
    assert [found["capacity"] for found in json.loads(capsys.readouterr().out)] == typed[:2]
    assert Room.of_text(str(Room(12_345))) == Room(12_345)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name a method first: gossamer stability METHOD [flags]"),
        (["fedavg", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["fedavg", "--repeats", "many"], "--repeats must be a whole number, got 'many'"),
        (
            ["fedavg", "--replaced", "1:2"],
            "--replaced must be CLIENT or CLIENT:SAMPLE:TEST, whole numbers >= 0, got '1:2'",
        ),
        (["fedavg", "--replaced", "1+2", "--repeats", "1"], "--repeats is 1, but --replaced names 2"),
        (["fedavg", *FLAGS, "--replaced", "9"], "replaced: client must be from 0 to 3, got 9"),
        (["fedavg", "--newcomer", "all"], "--newcomer must be one of any, own, got 'all'"),
        (["fedavg", "--each"], "--each: fedavg has no flag --capacities"),
        (
            ["heterofl", "--each", "--fleet", "f.toml"],
            "--each needs --capacities, which --fleet sets by memory",
        ),
        (["fedavg", "--repeat", "2"], "unknown flag --repeat: did you mean --repeats?"),
        (["fedavg", "--out", "here"], "unknown flag --out"),
        (["local", *FLAGS], "no global model"),
    ],
)
def test_the_command_reports_mistakes(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(*words) == 2
    assert reason in capsys.readouterr().err


def test_all_mistakes_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("fedavg", "--repeats", "0", "--replaced", "x", "--lr", "-1", "--rounds", "0") == 2
    printed = capsys.readouterr().err
    assert "4 mistakes" in printed
    assert all(word in printed for word in ("--repeats", "--replaced", "lr must be", "--rounds"))


def test_help_names_the_flags_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--help") == 0
    printed = capsys.readouterr().out
    assert all(
        word in printed
        for word in (
            "--repeats N",
            "--replaced CLIENT[:SAMPLE:TEST]+...",
            "--newcomer own|any",
            "--each",
            "--json",
            "--rounds",
        )
    )
    assert "--out" not in printed
    assert ask("fedavg", "--help") == 0
    assert "usage: gossamer stability fedavg" in capsys.readouterr().out
