"""FIARSE: the largest weights are held, described and trained above a threshold, as a plain loop does it."""

from typing import Any

import pytest
import torch

from gossamer import ConfigError, LargestWeights, Mean, Method, PayloadError, Task, ThresholdSGD, compose, fiarse, ifca
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.codecs import Dense, TopK
from gossamer.testing import check_method, tiny_task
from helpers.gradients import Named
from helpers.vectors import on

WEIGHTS = ("0.weight", "2.weight")
LAYER: Any = "layer"


def task() -> Task:
    return tiny_task(4, torch.float64)


def begun(method: Method, rounds: int = 1, **options: Any) -> Simulation:
    return Simulation(method, task(), Options(rounds=rounds, **{"executor": "one-by-one", **options}))


def view_of(run: Simulation) -> Any:
    return run.method.training.view


# The view.


@pytest.mark.parametrize("by", ["model", "tensor"])
@pytest.mark.parametrize("share", [1 / 16, 0.3, 0.9])
def test_the_largest_weights_are_held(by: Any, share: float) -> None:
    run = begun(fiarse(capacities=(share,), by=by))
    model = run.model()
    keep = view_of(run).part(model, Clock(0, 1, 0), Key(0, 0)).keep
    assert sorted(keep) == sorted(WEIGHTS), "biases are held whole"
    for group in [WEIGHTS] if by == "model" else [(name,) for name in WEIGHTS]:
        sizes = torch.cat([model[name].abs().flatten() for name in group])
        mask = torch.cat([keep[name].flatten() for name in group]).bool()
        assert int(mask.sum()) == -int(-share * len(sizes) // 1)
        assert float(sizes[~mask].max()) <= float(sizes[mask].min())


def test_a_smaller_part_is_contained_in_a_larger_one_and_capacity_one_is_whole() -> None:
    run = begun(fiarse(capacities=(1.0, 0.5, 0.1)))
    whole, half, tenth = (view_of(run).part(run.model(), Clock(0, 1, client), Key(0, 0)) for client in range(3))
    assert whole.whole
    assert all(bool((tenth.keep[name] <= half.keep[name]).all()) for name in WEIGHTS)


def test_the_sub_model_follows_the_model() -> None:
    run = begun(fiarse(capacities=(0.5,)))
    model = run.model()
    before = view_of(run).part(model, Clock(0, 1, 0), Key(0, 0)).keep["0.weight"]
    index = tuple((before == 0).nonzero()[0])
    model["0.weight"][index] = 9.0
    assert view_of(run).part(model, Clock(0, 1, 0), Key(0, 0)).keep["0.weight"][index] == 1


def test_both_directions_carry_the_held_entries_and_the_download_a_mask() -> None:
    run = begun(fiarse(capacities=(0.1,), epochs=1))
    record = run.round(0, None)
    model, clients = run.model(), len(record["clients"])
    weights = sum(model[name].numel() for name in WEIGHTS)
    rest = sum(tensor.numel() for name, tensor in model.items() if name not in WEIGHTS)
    values = 8 * clients * (-int(-0.1 * weights // 1) + rest)
    assert record["bytes_up"]["codec.values"] == record["bytes_down"]["down.values"] == values
    assert 0 < record["bytes_down"]["view.part"] <= clients * (weights // 8 + 1)
    assert "view.part" not in record["bytes_up"]
    assert record["useful_flops"] < record["flops"]


@pytest.mark.parametrize("marked", [0, 1.0])
def test_a_mask_of_nothing_or_of_everything_is_refused(marked: float) -> None:
    run = begun(fiarse(capacities=(0.5,)))
    view, model = view_of(run), run.model()
    part = view.part(model, Clock(0, 1, 0), Key(0, 0))
    wrong = {name: torch.full_like(mask, marked) for name, mask in part.keep.items()}
    payload = view.describe(part.__class__(keep=wrong), model)
    with pytest.raises(PayloadError, match="the mask of the sub-model holds"):
        view.restore(payload, model)


def test_it_works_with_lossy_downloads_and_with_several_models() -> None:
    lossy = fiarse(epochs=1).with_parts(down=TopK(0.5))
    several = fiarse(epochs=1).with_parts(server=ifca().server)
    for method in (lossy, several):
        assert not begun(method).round(0, None)["failures"]


# The solver: against the formula, written out with autograd.


def one_client(start: Params, run: Simulation, client: int, steps: int, lr: float, by: str) -> Params:
    """Threshold-controlled biased gradient descent as in the paper, one step after the other."""
    data, rows = run.task.data.train, torch.from_numpy(run.task.split.train(client))
    keep = view_of(run).part(start, Clock(0, 1, client), Key(0, 0)).keep
    held = {name: tensor * keep[name] if name in keep else tensor.clone() for name, tensor in start.items()}
    least = {name: float(held[name][keep[name] > 0].abs().min()) if keep else 0.0 for name in WEIGHTS}
    threshold = dict.fromkeys(WEIGHTS, min(least.values())) if by == "model" else least
    for _ in range(steps):
        masks = {n: (held[n].abs() >= threshold[n]) & (held[n] != 0) for n in WEIGHTS}
        at = {name: tensor * masks[name] if name in masks else tensor for name, tensor in held.items()}
        _, grads, _ = run.objective.gradient(at, data.x[rows], data.y[rows])
        for name, grad in grads.items():
            if name in masks and keep:
                w, t = held[name].abs(), threshold[name]
                grad = grad * masks[name] * keep[name] * (1 + 2 * w * t / (w + t) ** 2)
            held[name] = held[name] - lr * grad
    return {n: (held[n] - start[n]) * keep[n] if n in keep else held[n] - start[n] for n in start}


@pytest.mark.parametrize("by", ["model", "tensor"])
def test_a_round_is_that_of_a_plain_loop(by: Any) -> None:
    shares, steps, lr = (0.6, 0.2), 4, 0.5
    method = fiarse(lr=lr, steps=steps, batch=None, capacities=shares, by=by)
    run = begun(method)
    start = {name: tensor.clone() for name, tensor in run.model().items()}
    changes = [one_client(start, run, client, steps, lr, by) for client in range(4)]
    parts = [view_of(run).part(start, Clock(0, 1, client), Key(0, 0)) for client in range(4)]
    run.round(0, None)
    for name, tensor in run.model().items():
        holders = sum(part.coverage(start)[name] for part in parts)
        wanted = start[name] + sum(change[name] for change in changes) / holders.clamp(min=1)
        assert torch.allclose(tensor, wanted, rtol=0, atol=1e-12)


def test_weights_fall_below_the_threshold_and_then_stay() -> None:
    """A gradient of 1 everywhere lowers positive weights by 1.5 lr at the threshold, and by less above it."""
    start = {"w": torch.tensor([[0.5, 2.0, 0.0]]), "b": torch.zeros(1)}
    solver, layout, vector = on(ThresholdSGD(lr=0.1, steps=3), start)
    carry, seen = solver.begin(vector, {}, {}, 3), []

    def ones(params: Params) -> Params:
        seen.append(params["w"].clone())
        return {"w": torch.tensor([[1.0, 1.0, 0.0]]), "b": torch.ones(1)}

    for _ in range(3):
        carry = solver.step(Named(layout, ones), vector, carry, {"rate": 0.1})
    after = layout.unflatten(carry["params"])
    assert [float(at[0, 0]) for at in seen] == [0.5, 0.0, 0.0]
    assert float(after["w"][0, 0]) == pytest.approx(0.35)
    assert float(seen[1][0, 1]) == pytest.approx(2 - 0.1 * (1 + 2 * 2 * 0.5 / 2.5**2))
    assert float(after["b"]) == pytest.approx(-0.3)


def test_weights_that_start_at_zero_are_trained_without_a_threshold() -> None:
    solver, layout, start = on(ThresholdSGD(lr=0.1, steps=1), {"w": torch.zeros(1, 2)})
    ones = Named(layout, lambda _: {"w": torch.ones(1, 2)})
    carry = solver.step(ones, start, solver.begin(start, {}, {}, 1), {"rate": 0.1})
    assert torch.equal(layout.unflatten(carry["params"])["w"], torch.full((1, 2), -0.1))


# The method.


@pytest.mark.parametrize("over", ["holders", "cohort"])
def test_at_capacity_one_only_the_bias_of_the_gradient_remains(over: Any) -> None:
    """The threshold is the smallest weight of all, so that the factor is 1 for almost every weight."""
    with_threshold = begun(fiarse(capacities=(1.0,), steps=1, batch=None, lr=0.1, over=over))
    plain = compose(LargestWeights((1.0,)), ThresholdSGD(lr=0.1, steps=1, batch=None), Dense(), Mean("uniform"))
    other = begun(plain)
    for run in (with_threshold, other):
        run.round(0, None)
    assert all(torch.equal(tensor, other.model()[name]) for name, tensor in with_threshold.model().items())


def test_it_keeps_the_contract_by_tensor_and_with_own_labels(tmp_path: Any) -> None:
    check_method(fiarse(epochs=1, by="tensor", drawn=True, labels="own", over="cohort"), tmp_path)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: fiarse(capacities=(0.0,)), r"LargestWeights.capacities must be in \(0, 1\], got 0.0"),
        (lambda: fiarse(by=LAYER), "LargestWeights.by must be model or tensor, got 'layer'"),
        (lambda: ThresholdSGD(by=LAYER), "ThresholdSGD.by must be model or tensor, got 'layer'"),
    ],
)
def test_wrong_values_are_refused(call: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        call()
