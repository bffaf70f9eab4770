"""The error of averaging the two matrices of adapters separately: its definition, and where it is zero."""

from typing import Any

import pytest
import torch

from gossamer import LoRA, Method, Options, fedavg, simulate
from gossamer.core.exchange import Arrival
from gossamer.core.types import Clock, Params, Part
from gossamer.engines.simulation import Simulation
from gossamer.methods import flora, lora_truncated
from gossamer.parts.servers import AdapterMean, Mean
from gossamer.parts.servers.low_rank import Product
from gossamer.testing import check_server, tiny_task
from helpers.arrivals import noted_arrivals
from helpers.compare import same

TASK = tiny_task(4)
TINY: dict[str, Any] = {"steps": 2, "batch": 4}
EQUAL = fedavg(**TINY).with_parts(adapter=LoRA(2), server=AdapterMean())


def errors(method: Method, rounds: int = 2, **options: Any) -> list[float]:
    records = simulate(method, TASK, rounds=rounds, executor="one-by-one", **options).metrics
    return [record["figures"]["adapter_error"] for record in records]


@pytest.mark.parametrize("over", ["cohort", "holders"])
def test_the_error_is_that_of_its_definition(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    method = lora_truncated(**TINY, rank=4, capacities=(1.0, 0.5), over=over)
    run = Simulation(method, TASK, Options(rounds=2, executor="one-by-one"))
    folded = noted_arrivals(run, monkeypatch)
    run.round(0, None)
    before = run.server["params"]
    folded.clear()
    run.round(1, None)
    after, total = run.server["params"], sum(arrival.samples for arrival in folded)
    error = step = 0.0
    for layer in ("0", "2"):
        mean = sum(arrival.samples / total * product(before, arrival, layer) for arrival in folded)
        error += float((mean - whole(after, layer)).norm() ** 2)
        step += float((mean - whole(before, layer)).norm() ** 2)
    assert run.metrics[1]["figures"]["adapter_error"] == pytest.approx((error / step) ** 0.5, rel=1e-6)


def whole(model: Params, layer: str) -> torch.Tensor:
    return model[f"{layer}.lora_B"].double() @ model[f"{layer}.lora_A"].double()


def product(start: Params, arrival: Arrival, layer: str) -> torch.Tensor:
    """A client's product in float64."""
    mine, change = arrival.part.take(start), arrival.change(torch.device("cpu"))
    return whole({name: mine[name] + change[name] for name in mine}, layer)


def test_the_model_is_that_of_the_plain_mean() -> None:
    ends = [
        simulate(EQUAL.with_parts(server=server), TASK, rounds=2, executor="one-by-one").model.state_dict()
        for server in (AdapterMean(), Mean())
    ]
    assert same(*ends)


def test_averaging_the_matrices_of_several_clients_is_inexact() -> None:
    assert min(errors(EQUAL)) > 1e-4


def test_the_mean_of_one_client_is_exact() -> None:
    assert max(errors(EQUAL, per_round=1)) < 1e-5


def test_with_a_frozen_matrix_the_mean_is_exact() -> None:
    assert errors(EQUAL.with_parts(adapter=LoRA(2, train="B"))) == [0.0, 0.0]


def test_a_model_without_adapters_has_no_error() -> None:
    record = simulate(fedavg(**TINY).with_parts(server=AdapterMean()), TASK, rounds=1).metrics[0]
    assert "figures" not in record


def test_stacking_is_exact() -> None:
    """The weights move by the mean product: the error is that of rounding."""
    run = Simulation(flora(**TINY, rank=2), TASK, Options(rounds=1, executor="one-by-one"))
    server, before = run.method.training.server, run.objective.initial()
    matrices = [name for name in before if "lora" in name]
    changes = [{n: torch.randn_like(before[n]) if n in matrices else torch.zeros_like(before[n]) for n in before}]
    changes.append({name: -0.3 * tensor for name, tensor in changes[0].items()})
    acc, mean = server.begin(run.server, {}), torch.zeros(8, 6, dtype=torch.float64)
    for client, change in enumerate(changes):
        server.fold(acc, Arrival.of(client, Part(), change, 1.0))
        mean = mean + 0.5 * 2 * whole({n: before[n] + change[n] for n in matrices}, "0")
    after = server.finish(run.server, acc, Clock(0, 1, -1))["params"]
    step = (after["0.weight"].double() - before["0.weight"].double()) - mean
    assert float(step.norm() / mean.norm()) < 1e-6


@pytest.mark.parametrize("shape", [(9, 7), (7, 9), (3, 3)])
def test_sums_of_products_have_their_norm_however_many_there_are(shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    draw, total = torch.Generator().manual_seed(0), torch.zeros(shape, dtype=torch.float64)
    found = Product(total[:, :0], total[:0])
    for _ in range(7):
        left, right = torch.randn(outputs, 2, generator=draw), torch.randn(2, inputs, generator=draw)
        found, total = found.plus(left, right), total + left.double() @ right.double()
        assert found.norm() == pytest.approx(float(total.norm()))
        assert found.left.shape[1] <= min(shape)


def test_the_server_keeps_the_contract() -> None:
    check_server(AdapterMean())
