"""Held-out training samples: who holds them, what is measured on them, and what decides by them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import ConfigError, Task, fedavg, load_run, local, resume, simulate
from gossamer.analysis.stability import stability
from gossamer.core.errors import RunError
from gossamer.tasks.data.partition import Split, offsets
from gossamer.testing import tiny_task


def split_of(*clients: list[int]) -> Split:
    """A split with these training samples, and no test samples."""
    sizes = np.array([len(mine) for mine in clients])
    return Split(np.concatenate(clients).astype(np.int64), offsets(sizes), np.arange(0), offsets(0 * sizes))


def rows(split: Split, part: str) -> list[list[int]]:
    return [getattr(split, part)(client).tolist() for client in range(split.clients)]


def test_every_nth_sample_of_each_client_is_held_out() -> None:
    rest, held, chosen = split_of([0, 2, 4, 6, 8], [1], [3, 5, 7]).hold_out(2)
    assert rows(rest, "train") == [[0, 4, 8], [1], [3, 7]]
    assert chosen.tolist() == [2, 5, 6]
    assert [[int(chosen[i]) for i in mine] for mine in rows(held, "test")] == [[2, 6], [], [5]]


def test_a_shared_sample_is_held_out_for_all() -> None:
    rest, held, chosen = split_of([0, 1, 2, 3], [0, 2, 3]).hold_out(4)
    assert chosen.tolist() == [3]
    assert rows(rest, "train") == [[0, 1, 2], [0, 2]]
    assert rows(held, "test") == [[0], [0]]


def task() -> Task:
    return tiny_task(4)


def test_nobody_trains_on_held_out_samples() -> None:
    every = task()
    rest, _, chosen = every.split.hold_out(4)
    spoiled = every.data.train.x.clone()
    spoiled[torch.from_numpy(chosen)] = 1e6
    other = task()
    other.data.train.x.copy_(spoiled)
    runs = [simulate(fedavg(lr=0.1), each, rounds=2, validate=4) for each in (every, other)]
    assert runs[0].metrics[-1]["accuracy"] == runs[1].metrics[-1]["accuracy"]
    assert runs[0].metrics[-1]["validation_loss"] != runs[1].metrics[-1]["validation_loss"]
    alone = simulate(fedavg(lr=0.1), every.with_split(rest), rounds=2)
    assert alone.metrics[-1]["loss"] == runs[0].metrics[-1]["loss"]


@pytest.mark.parametrize("method", [fedavg(lr=0.1), local(lr=0.1)], ids=["global", "personal"])
def test_held_out_samples_are_measured_as_test_samples_are(method: Any) -> None:
    every = task()
    _, held, chosen = every.split.hold_out(4)
    judged = simulate(method, every, rounds=1, validate=4).metrics[-1]
    swapped = replace(every, data=replace(every.data, test=every.data.train.take(chosen)), split=held)
    wanted = simulate(method, swapped, rounds=1).metrics[-1]
    for name in ("accuracy", "personal_accuracy", "worst_tenth_accuracy"):
        ours = name.replace("accuracy", "validation_accuracy")
        assert judged[ours] == pytest.approx(wanted[name], abs=1e-12)
    assert judged["validation_loss"] == pytest.approx(wanted["loss"])


def test_targets_and_patience_use_held_out_samples() -> None:
    stopped = simulate(fedavg(lr=0.1), task(), rounds=5, validate=4, until="validation_loss<99")
    assert len(stopped.metrics) == 1
    assert "validation_loss<99" in str(stopped.stopped)
    still = simulate(fedavg(lr=1e-9), task(), rounds=5, validate=4, patience=2)
    assert "no better validation accuracy" in str(still.stopped)
    with pytest.raises(ConfigError, match="unknown metric 'validation_accuracy'"):
        simulate(fedavg(), task(), until="validation_accuracy=0.5")


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="validate must be at least 2, or none, got 1"):
        simulate(fedavg(), task(), validate=1)
    with pytest.raises(ConfigError, match="validate is 500, and no client has as many training samples"):
        simulate(fedavg(), task(), validate=500)


def test_stability_replaces_no_held_out_sample() -> None:
    with pytest.raises(ConfigError, match="a held-out sample has no effect"):
        stability(fedavg(), task(), validate=4)


def test_a_run_keeps_what_it_held_out(tmp_path: Path) -> None:
    done = simulate(fedavg(lr=0.1), task(), rounds=2, validate=4)
    simulate(fedavg(lr=0.1), task(), rounds=1, validate=4, out=tmp_path / "run")
    with pytest.raises(RunError, match="validate is the default, was 4"):
        simulate(fedavg(lr=0.1), task(), rounds=1, out=tmp_path / "run", resume=True)
    again = resume(tmp_path / "run", rounds=2, method=fedavg(lr=0.1), task=task())
    assert again.metrics[-1]["validation_loss"] == done.metrics[-1]["validation_loss"]
    summary = load_run(tmp_path / "run").summary()
    assert summary["validation_accuracy"] == done.metrics[-1]["validation_accuracy"]
