"""Runs on tasks that are not single-label classification: what they train, measure, record and refuse."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import RunError, Task, fedavg, heterofl, ifca, local, simulate, sub_fedavg
from gossamer.analysis.stability import stability
from gossamer.core.errors import ConfigError
from gossamer.core.random import fold, key, uniform
from gossamer.engines import evaluate
from gossamer.engines.evaluate import figures, personal_figures, worst_tenth
from gossamer.engines.export import export, stand
from gossamer.engines.metrics import Ledger
from gossamer.runs.records import read_about
from gossamer.tasks.metrics import METRICS, Metric


def drawn(name: str, *shape: int) -> Tensor:
    return 2 * uniform(fold(key(0), name), math.prod(shape)).view(shape) - 1


X = drawn("x", 60, 6)
WAY = drawn("way", 6, 3)


class Tagger(nn.Module):
    """A class for each of a sequence of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x.unsqueeze(-1))


def tokens() -> Tensor:
    y = (X > 0).long() + (X > 0.5).long()
    for row in range(len(y)):
        y[row, 1 + row % 6 :] = -100
    return y


Make = Callable[[], nn.Module]
TASKS: dict[str, tuple[Make, Tensor, dict[str, Any], tuple[str, ...]]] = {
    "regression": (lambda: nn.Linear(6, 1), X @ WAY[:, 0], {"loss": "mse"}, ("rmse", "mae")),
    "multi-output": (lambda: nn.Linear(6, 3), X @ WAY, {"loss": "huber", "metrics": "rmse"}, ("rmse",)),
    "binary": (lambda: nn.Linear(6, 1), (X @ WAY[:, 0] > 0).long(), {"loss": "bce"}, ("accuracy",)),
    "multi-label": (
        lambda: nn.Linear(6, 3),
        (X @ WAY > 0).float(),
        {"loss": nn.BCEWithLogitsLoss(), "metrics": ["multilabel_accuracy", "f1"]},
        ("multilabel_accuracy", "f1"),
    ),
    "tokens": (Tagger, tokens(), {}, ("token_accuracy", "perplexity")),
}


def task(name: str, clients: int = 5, **more: Any) -> Task:
    model, y, fields, _ = TASKS[name]
    return Task.of(model, (X, y), (X[:40], y[:40]), clients=clients, **{**fields, **more})


@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_two_rounds_in_two_executors_alike(name: str) -> None:
    metrics = TASKS[name][3]
    one, stacked = (
        simulate(fedavg(lr=0.3, epochs=2), task(name), rounds=2, executor=executor)
        for executor in ("one-by-one", "stacked")
    )
    first, last = one.metrics
    assert last["loss"] < first["loss"]
    entries = [entry for each in metrics for entry in (each, f"personal_{each}", f"worst_tenth_{each}")]
    assert list(first)[1 : 2 + len(entries)] == [entries[0], "loss", *entries[1:]]
    for entry in ("loss", *entries):
        assert one.metric(entry) == pytest.approx(stacked.metric(entry), rel=1e-4)
    assert one.score == one.metric(metrics[0]) == last[metrics[0]]


def test_recorded_values_are_those_of_the_model_and_of_each_clients_samples() -> None:
    made = task("regression", clients=11)
    result = simulate(fedavg(lr=0.1), made, rounds=1)
    errors = (result.model(made.data.test.x)[:, 0] - made.data.test.y).double().square().detach()
    each = sorted(math.sqrt(errors[torch.from_numpy(made.split.test(c))].mean().item()) for c in range(11))
    assert result.score == pytest.approx(errors.mean().sqrt().item())
    assert result.metric("personal_rmse") == pytest.approx(np.mean(each))
    assert result.metric("worst_tenth_rmse") == pytest.approx(np.mean(each[-2:])), "the clients with the largest error"
    with pytest.raises(RunError, match="the run has no metric accuracy: it has loss, rmse, personal_rmse"):
        _ = result.accuracy


def test_the_worst_tenth_follows_the_direction() -> None:
    values = [float(n) for n in range(20)]
    assert worst_tenth(values) == 0.5
    assert worst_tenth(values, "lower") == 18.5
    assert personal_figures(METRICS["auroc"], [0.5, math.nan, 0.7]) == {
        "personal_auroc": pytest.approx(0.6),
        "worst_tenth_auroc": 0.5,
    }
    assert list(figures([METRICS["rmse"]], [1.0, 2.0], {0: (3.0,)}, 1)) == [
        "rmse", "loss", "personal_rmse", "worst_tenth_rmse", "personal",
    ]  # fmt: skip


def test_a_record_has_the_value_of_every_client() -> None:
    made = task("regression", clients=11)
    result = simulate(fedavg(lr=0.1), made, rounds=2, eval_every=2)
    errors = (result.model(made.data.test.x)[:, 0] - made.data.test.y).double().square().detach()
    each = [math.sqrt(errors[torch.from_numpy(made.split.test(c))].mean().item()) for c in range(11)]
    assert result.metrics[-1]["personal"]["rmse"] == pytest.approx(each, rel=1e-3)
    assert result.metrics[-1]["personal"].keys() == {metric.name for metric in made.metrics}
    assert "personal" not in result.metrics[0]
    assert not [column for column in result.frame() if column.startswith("personal.")]


def test_a_client_without_a_value_has_null_and_many_clients_have_deciles(monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures([METRICS["rmse"]], [1.0, 2.0], {0: (3.0,), 2: (math.nan,)}, 4)["personal"]["rmse"]
    assert found[0] == 3.0
    assert all(math.isnan(value) for value in found[1:])
    assert Ledger().record(1, [], {"personal": {"rmse": found}})["personal"] == {"rmse": [3.0, None, None, None]}
    monkeypatch.setattr(evaluate, "LISTED", 10)
    many = figures([METRICS["rmse"]], [1.0, 2.0], {c: (c / 20,) for c in range(21)}, 21)
    assert "personal" not in many
    assert many["personal_deciles"] == {"rmse": pytest.approx([n / 10 for n in range(11)])}


def test_classification_records_what_it_always_did(tmp_path: Path) -> None:
    y = (X @ WAY).argmax(1)
    made = Task.of(lambda: nn.Linear(6, 3), (X, y), (X, y), clients=5)
    result = simulate(fedavg(), made, rounds=1, out=tmp_path / "run")
    assert list(result.metrics[0])[:5] == [
        "round", "accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy",
    ]  # fmt: skip
    assert not {"metrics", "loss"} & read_about(tmp_path / "run")["task"].keys()
    assert result.score == result.accuracy == (result.model(X).argmax(1) == y).double().mean().item()


def test_a_run_says_its_loss_and_metrics_and_resumes_with_them_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    simulate(fedavg(), task("regression"), rounds=2, out=path)
    about = read_about(path)["task"]
    assert about["loss"] == "mse"
    assert about["metrics"] == [
        {"name": "rmse", "better": "lower", "format": "number"},
        {"name": "mae", "better": "lower", "format": "number"},
    ]
    assert simulate(fedavg(), task("regression"), rounds=2, out=path, resume=True).score > 0
    for other in ({"loss": "l1", "metrics": ["rmse", "mae"]}, {"metrics": "mae"}):
        with pytest.raises(RunError, match="started with another task"):
            simulate(fedavg(), task("regression", **other), rounds=2, out=path, resume=True)


def test_metrics_without_a_global_model() -> None:
    made = task("regression")
    alone = simulate(local(lr=0.1), made, rounds=1)
    errors = []
    for client in range(5):
        guesses = alone.client_model(client)(made.data.test.x)[:, 0]
        errors.append((guesses - made.data.test.y).double().square().mean().sqrt().item())
    assert alone.score == pytest.approx(np.mean(errors))
    clusters = simulate(ifca(clusters=2), made, rounds=1)
    sizes = [len(made.split.test(client)) for client in range(5)]
    own = []
    for client in range(5):
        mine = torch.from_numpy(made.split.test(client))
        guesses = clusters.client_model(client)(made.data.test.x[mine])[:, 0]
        own.append((guesses - made.data.test.y[mine]).double().square().mean().sqrt().item())
    assert clusters.score == pytest.approx(np.average(own, weights=sizes))


def test_a_client_for_which_a_metric_is_undefined_counts_in_no_mean() -> None:
    made = task("binary", metrics=["accuracy", "auroc"])
    same = np.flatnonzero(made.data.test.y.numpy() == 1)[:4]
    others = [made.split.test(client) for client in range(1, 5)]
    start = np.cumsum([0, 4, *map(len, others)])
    split = replace(made.split, test_index=np.concatenate([same, *others]), test_start=start)
    result = simulate(fedavg(lr=0.3), made.with_split(split), rounds=1)
    assert result.metric("personal_auroc") > 0.5
    scores = result.model(made.data.test.x)[:, 0]
    each = [METRICS["auroc"].of_all(scores[t], made.data.test.y[t]) for t in map(torch.from_numpy, others)]
    assert result.metric("personal_auroc") == pytest.approx(np.mean([value for value in each if not math.isnan(value)]))


def test_parts_that_need_accuracy_or_classes_refuse_other_tasks() -> None:
    with pytest.raises(ConfigError, match="Pruned prunes by the accuracy of clients, but the task measures rmse, mae"):
        simulate(sub_fedavg(), task("regression"), rounds=1)
    for name in ("regression", "binary"):
        hidden = replace(task(name), model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
        with pytest.raises(ConfigError, match="labels=own needs targets that are classes"):
            simulate(heterofl(), hidden, rounds=1)
        assert simulate(heterofl(labels="all"), hidden, rounds=1).score > 0
    assert simulate(sub_fedavg(epochs=2), task("binary"), rounds=1).accuracy > 0


def test_an_exported_model_has_the_score_of_the_run(tmp_path: Path) -> None:
    made = task("regression")
    result = simulate(fedavg(lr=0.1), made, rounds=1, out=tmp_path / "run")
    exported = export(stand(tmp_path / "run", fedavg(lr=0.1), made), tmp_path / "model")
    assert exported.score == pytest.approx(result.score)


def test_stability_is_shown_by_the_metric_of_the_task() -> None:
    found = stability(fedavg(lr=0.1), task("regression"), rounds=1, repeats=1)
    assert "rmse gap" in str(found)
    assert "%" not in str(found)
    (moment,) = found.plain()["rounds"]
    assert moment["rmse_gap"] == pytest.approx(moment["test_rmse"] - moment["train_rmse"])
    assert moment["test_loss"] == pytest.approx(moment["test_rmse"] ** 2)


def test_a_metric_of_your_own_is_recorded_by_its_name() -> None:
    def bias(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0] - targets

    size = Metric("bias", bias, better="lower", last=abs)
    result = simulate(fedavg(lr=0.1), task("regression", metrics=[size, "r2"]), rounds=1)
    test = result.run.task.data.test
    assert result.score == pytest.approx(abs((result.model(test.x)[:, 0] - test.y).mean().item()), rel=1e-5)
    assert result.metric("r2") < 1
