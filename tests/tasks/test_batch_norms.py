"""What static batch norms are evaluated by: three choices, each against a plain version of it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import ConfigError, Task, fedavg, simulate
from gossamer.core.random import key
from gossamer.core.specs import parse
from gossamer.core.types import Params
from gossamer.engines.evaluate import Evaluator
from gossamer.tasks.batch_norms import STATISTICS, OfBatch, OfOwnBatch, OfTraining, Statistics, static_norms
from gossamer.tasks.objective import Objective


def network(static: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(6, track_running_stats=not static, momentum=None)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Linear(6, 3)).double()


def some_task(by: Statistics, static: bool = True) -> Task:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(60, 4, generator=draw, dtype=torch.float64) * 3 + 1
    y = (x[:, 0] > 1).long() + (x[:, 1] > 2).long()
    task = Task.of(lambda: network(static), (x, y), (x[:35] + 0.5, y[:35]), clients=4, split="labels:2")
    return Task(task.model, task.data, task.split, statistics=by)


def normalised(net: nn.Sequential, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    first, norm, act, last = net
    assert isinstance(norm, nn.BatchNorm1d)
    out: Tensor = last(act(F.batch_norm(first(x), mean.detach(), var.detach(), norm.weight, norm.bias)))
    return out


def built(objective: Objective, params: Params | None = None) -> nn.Sequential:
    net = objective.build(params)
    assert isinstance(net, nn.Sequential)
    return net


def by_batches(net: nn.Sequential, x: Tensor, size: int) -> Tensor:
    pieces = []
    for piece in x.split(size):
        inner = net[0](piece)
        pieces.append(normalised(net, piece, inner.mean(0), inner.var(0, correction=0)))
    return torch.cat(pieces)


@pytest.mark.parametrize("size", [7, 35, 100])
def test_by_default_each_test_batch_has_its_own_statistics(size: int) -> None:
    objective = Objective(some_task(OfBatch(size)), "cpu", key(0))
    params, test = objective.initial(), objective.task.data.test
    judged = objective.evaluate(params, test.x, test.y)
    wanted = by_batches(built(objective, params), test.x, size)
    assert judged.loss == pytest.approx(F.cross_entropy(wanted, test.y).item(), rel=1e-9)
    assert judged.values() == ((wanted.argmax(1) == test.y).double().mean().item(),)


def test_of_training_is_the_mean_over_batches_of_training_samples() -> None:
    objective = Objective(some_task(OfTraining(10)), "cpu", key(0))
    params, test = objective.initial(), objective.task.data.test
    net = built(objective, params)
    inner = [net[0](piece) for piece in objective.samples.x.split(10)]
    mean = torch.stack([piece.mean(0) for piece in inner]).mean(0)
    var = torch.stack([piece.var(0) for piece in inner]).mean(0)  # as torch keeps it: without bias
    judged = objective.evaluate(params, test.x, test.y)
    wanted = normalised(net, test.x, mean, var)
    assert judged.loss == pytest.approx(F.cross_entropy(wanted, test.y).item(), rel=1e-9)
    assert judged.values() == ((wanted.argmax(1) == test.y).double().mean().item(),)
    assert len(static_norms(objective.build())) == 1, "the network that is trained stays as it was"


def test_statistics_of_training_are_recomputed_for_other_parameters() -> None:
    objective = Objective(some_task(OfTraining(10)), "cpu", key(0))
    test = objective.task.data.test
    first = objective.initial()
    other = {name: tensor * 2 - 0.1 for name, tensor in first.items()}
    alone = Objective(some_task(OfTraining(10)), "cpu", key(0)).evaluate(other, test.x, test.y)[0]
    objective.evaluate(first, test.x, test.y)
    assert objective.evaluate(other, test.x, test.y)[0] == alone


def evaluated(task: Task) -> dict[str, float]:
    objective = Objective(task, "cpu", key(0))
    params = objective.initial()
    return Evaluator(objective)(params, True, lambda client: params)


def test_own_changes_personal_figures_alone() -> None:
    common, own = (evaluated(some_task(by)) for by in (OfBatch(35), OfOwnBatch(35)))
    assert own["accuracy"] == common["accuracy"]
    assert own["loss"] == common["loss"]
    objective = Objective(some_task(OfOwnBatch(35)), "cpu", key(0))
    net, test, split = built(objective), objective.task.data.test, objective.task.split
    shares = []
    for client in range(4):
        rows = torch.from_numpy(split.test(client))
        shares.append((by_batches(net, test.x[rows], 35).argmax(1) == test.y[rows]).double().mean().item())
    assert own["personal_accuracy"] == pytest.approx(sum(shares) / 4)


@pytest.mark.parametrize("by", [OfBatch(), OfOwnBatch(), OfTraining(10)])
def test_other_networks_do_not_depend_on_the_choice(by: Statistics) -> None:
    plain = simulate(fedavg(epochs=1), some_task(OfBatch(), static=False), rounds=2)
    found = simulate(fedavg(epochs=1), some_task(by, static=False), rounds=2)
    for name in ("accuracy", "personal_accuracy"):
        assert found.metrics[-1][name] == plain.metrics[-1][name]


def test_a_run_records_its_choice() -> None:
    result = simulate(fedavg(epochs=1), some_task(OfTraining(10)), rounds=1)
    assert result.about["task"]["statistics"] == "train:size=10"
    assert parse("train:10", STATISTICS, "statistics") == OfTraining(10)


def test_where_there_are_no_training_samples_there_are_no_statistics_of_them() -> None:
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 3
    own = Task.own(network, test=(x, y), client=None, clients=3)
    task = Task(own.model, own.data, own.split, statistics=OfTraining())
    with pytest.raises(ConfigError, match="no training samples"):
        Evaluator(Objective(task, "cpu", key(0)))


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"OfTraining\.size must be at least 1, got 0"):
        OfTraining(0)
