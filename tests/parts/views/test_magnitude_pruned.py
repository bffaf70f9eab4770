"""Weights that are left out by their size, and means that are taken of codes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import ConfigError, Method, Task, compose, simulate
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.codecs import Codec, Dense, Feedback, OnWeights, TopK
from gossamer.parts.servers import Mean, SumThenDecode, WeightedMean
from gossamer.parts.solvers import SGD
from gossamer.parts.views import Full, MagnitudePruned
from gossamer.testing import check_method, check_value, tiny_task

WEIGHTS = ("0.weight", "2.weight")


def task() -> Task:
    return tiny_task(4, torch.float64)


def ran(method: Method, rounds: int = 1, **options: Any) -> Simulation:
    run = Simulation(method, task(), Options(rounds=rounds, **{"executor": "one-by-one", **options}))
    run.run(None, lambda record: None)
    return run


def pruned(ratio: tuple[float, ...] = (0.5,), server: WeightedMean | None = None, **more: Any) -> Method:
    solver = SGD(0.3, steps=1, batch=None)
    return compose(MagnitudePruned(ratio, **more), solver, server=server or Mean("uniform"))


# The view.


@pytest.mark.parametrize("by", ["model", "tensor"])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.9])
def test_the_smallest_weights_are_left_out(by: str, ratio: float) -> None:
    run = Simulation(pruned((ratio,), by=by), task(), Options(rounds=1))
    model = run.model()
    keep = run.method.training.view.part(model, Clock(0, 1, 0), Key(0, 0)).keep
    if ratio == 0:
        assert keep == {}
        return
    assert sorted(keep) == sorted(WEIGHTS), "biases are kept"
    groups = [WEIGHTS] if by == "model" else [(name,) for name in WEIGHTS]
    for group in groups:
        sizes = torch.cat([model[name].abs().flatten() for name in group])
        mask = torch.cat([keep[name].flatten() for name in group]).bool()
        assert int((~mask).sum()) == int(ratio * len(sizes))
        assert float(sizes[~mask].max()) <= float(sizes[mask].min())


def test_clients_differ_by_their_share_and_rounds_by_how_it_rises() -> None:
    run = Simulation(pruned((0.2, 0.8), rise=4), task(), Options(rounds=9))
    view, model = run.method.training.view, run.model()
    assert isinstance(view, MagnitudePruned)
    total = sum(model[name].numel() for name in WEIGHTS)
    for client, round_, share in ((0, 0, 0.05), (1, 0, 0.2), (1, 1, 0.4), (1, 3, 0.8), (3, 8, 0.8), (2, 8, 0.2)):
        part = view.part(model, Clock(round_, 9, client), Key(0, 0))
        assert sum(int((1 - mask).sum()) for mask in part.keep.values()) == int(share * total)


def test_one_step_is_that_of_the_pruned_network() -> None:
    """Against autograd: the gradient at the pruned weights, for what is left, on the whole model's values."""
    before = Simulation(pruned(), task(), Options(rounds=1))
    run, on = ran(pruned()), before.task
    model = before.model()
    keep = before.method.training.view.part(model, Clock(0, 1, 0), Key(0, 0)).keep
    cut = {name: tensor * keep[name] if name in keep else tensor for name, tensor in model.items()}
    wanted = {name: tensor.clone() for name, tensor in model.items()}
    for client in range(4):
        rows = torch.from_numpy(on.split.train(client))
        _, grads, _ = before.objective.gradient(cut, on.data.train.x[rows], on.data.train.y[rows])
        for name, grad in grads.items():
            wanted[name] -= 0.3 / 4 * grad * keep.get(name, torch.ones(()))
    assert all(torch.allclose(run.model()[name], wanted[name], atol=1e-12) for name in wanted)


def test_the_model_comes_down_whole_and_what_is_left_goes_up() -> None:
    record = ran(pruned()).metrics[0]
    whole = sum(tensor.numel() for tensor in task().model().parameters())
    weights = sum(p.numel() for p in task().model().parameters() if p.dim() == 2)
    assert record["bytes_down"]["down.values"] == 4 * 8 * whole
    assert record["bytes_up"]["codec.values"] == 4 * 8 * (whole - weights // 2)
    assert record["useful_flops"] < record["flops"]


METHODS = {
    "shared": pruned(),
    "own": pruned((0.3, 0.6)),
    "coded": pruned((0.3, 0.6), SumThenDecode("uniform")),
    "compressed": pruned().with_parts(codec=OnWeights(TopK(0.2))),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    check_method(METHODS[name], tmp_path, tiny_task(4), rounds=4)


@pytest.mark.parametrize("name", METHODS)
def test_deployed_it_is_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.flower_runs import agree, deploy, nodes, simulated
    from helpers.local_grid import LocalGrid

    on, method = tiny_task(4), METHODS[name]
    deployed = deploy(method, on, LocalGrid(nodes(method, on, tmp_path)), rounds=3)
    agree(deployed, simulated(method, on, rounds=3), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["side-by-side", "stacked"])
def test_executors_agree(executor: str) -> None:
    one, other = ran(METHODS["own"], 3), ran(METHODS["own"], 3, executor=executor)
    assert all(torch.allclose(one.model()[name], tensor, atol=1e-9) for name, tensor in other.model().items())


# Means of codes.


class Thrice(Codec):
    """A codec whose code is three times as long as the vector, so that a decoding before the mean would be seen."""

    restored = 0

    @property
    def common(self) -> bool:
        return True

    def encode(self, x: Any, ctx: Any) -> Params:
        return {"values": x}

    def decode(self, payload: Params, ctx: Any) -> Any:
        return payload["values"]

    def sum_size(self, layout: Any) -> int:
        return 3 * int(layout.size)

    def to_sum(self, payload: Params, ctx: Any) -> Any:
        return payload["values"].repeat(3)

    def from_sum(self, mean: Any, ctx: Any) -> Any:
        Thrice.restored += 1
        return mean.view(3, -1).mean(0)

    def __repr__(self) -> str:
        return "Thrice()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thrice)

    def __hash__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "codec", [Dense(), Thrice(), OnWeights(Thrice()), OnWeights(Thrice(), per_tensor=True), Feedback(Thrice())]
)
@pytest.mark.parametrize("over", ["cohort", "holders"])
def test_the_mean_of_codes_stands_for_the_mean(codec: Codec, over: Any) -> None:
    for view in (Full(), MagnitudePruned((0.3, 0.6))):
        solver = SGD(0.3, steps=1, batch=8)
        plain = ran(compose(view, solver, codec, Mean("samples", over)), 2)
        coded = ran(compose(view, solver, codec, SumThenDecode("samples", over)), 2)
        assert all(torch.allclose(plain.model()[name], tensor, atol=1e-12) for name, tensor in coded.model().items())


def test_clients_with_equal_parts_are_decoded_once() -> None:
    for ratio, times in (((0.5,), 1), ((0.3, 0.6), 2), ((0.1, 0.2, 0.3, 0.4), 4)):
        Thrice.restored = 0
        ran(pruned(ratio, SumThenDecode()).with_parts(codec=Thrice()))
        assert Thrice.restored == times


def test_they_are_values() -> None:
    check_value(SumThenDecode())
    check_value(MagnitudePruned())


# Mistakes.


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ratio": ()}, "at least one value"),
        ({"ratio": (1.0,)}, "must be in"),
        ({"by": "row"}, "model or tensor"),
        ({"rise": -1}, "must not be negative"),
    ],
)
def test_mistakes_are_reported(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MagnitudePruned(**given)


def test_a_lossy_downlink_is_refused() -> None:
    with pytest.raises(ConfigError, match="lossless downlink codec"):
        simulate(pruned().with_parts(down=Dense("float16")), task(), rounds=1)
