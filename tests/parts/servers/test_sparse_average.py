"""FedSparsify: the schedule of the paper, pruning by clients or the server, and the majority vote."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from gossamer import (
    Average,
    Bernoulli,
    MajorityAverage,
    Params,
    Progressive,
    PrunedAverage,
    SparseSGD,
    compose,
    fedsparsify,
    simulate,
)
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Arrival
from gossamer.core.server import Server
from gossamer.core.types import Clock, Part
from gossamer.parts.pruning_schedule import pruned_to
from gossamer.testing import tiny_task
from helpers.gradients import Named
from helpers.vectors import on


def published(t: int, rounds: int, final: float, first: int, every: int, exponent: float) -> float:
    """The schedule as in the authors' code, ``PurgeByWeightMagnitudeGradual``, for a start without sparsity."""
    if t % every != 0:
        t = (t // every) * every
    if t == first == rounds:
        return final
    sparsity = final + (0 - final) * math.pow(1 - (t - first) / (rounds - first), exponent)
    return sparsity if t >= first and sparsity > 0 else 0.0


@pytest.mark.parametrize("setting", [(0.95, 1, 1, 3.0), (0.9, 1, 5, 3.0), (0.8, 10, 1, 1.0), (0.99, 4, 3, 12.0)])
def test_the_schedule_is_that_of_the_paper(setting: tuple[float, int, int, float]) -> None:
    schedule = Progressive(*setting)
    for rounds in (20, 200):
        wanted = [published(t, rounds, *setting) for t in range(1, rounds + 1)]
        assert [schedule.at(t, rounds) for t in range(rounds)] == pytest.approx(wanted, abs=1e-12)
        assert schedule.at(rounds - 1, rounds) == pytest.approx(setting[0]) or rounds % setting[2]
    assert Progressive(0.5).at(0, 1) == 0.5


def test_the_smallest_weights_are_pruned_and_no_bias() -> None:
    params = {"w": torch.randn(20, 30), "v": torch.randn(7, 3, 2), "b": torch.full((5,), 1e-9)}
    found = pruned_to(params, 0.7)
    sizes = sorted([*params["w"].abs().flatten().tolist(), *params["v"].abs().flatten().tolist()])
    threshold = sizes[int(0.7 * len(sizes))]  # as in the authors' code
    for name in ("w", "v"):
        assert torch.equal(found[name], torch.where(params[name].abs() >= threshold, params[name], 0))
    assert torch.equal(found["b"], params["b"])


def arrival(client: int, w: Tensor, samples: float) -> Arrival:
    return Arrival.of(client, Part(), {"b": w[0] + 1, "w": w}, samples)


def slow_vote(models: list[tuple[Tensor, float]]) -> Tensor:
    """The merge of the authors' code, ``MergeWeightedAverageMajorityVoting``, entry by entry."""
    merged = torch.zeros_like(models[0][0])
    total = sum(samples for _, samples in models)
    for at in range(merged.numel()):
        votes = sum(int(model.view(-1)[at] != 0) for model, _ in models)
        if votes >= math.floor(len(models) / 2):
            merged.view(-1)[at] = sum(float(model.view(-1)[at]) * samples for model, samples in models) / total
    return merged


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_majority_decides_which_weights_are_kept(count: int) -> None:
    torch.manual_seed(count)
    models = [(torch.randn(6, 5) * (torch.rand(6, 5) < 0.4), float(10 + 7 * n)) for n in range(count)]
    server = MajorityAverage()
    state = {"params": {"b": torch.zeros(5), "w": torch.ones(6, 5)}}
    acc = server.begin(state, {})
    for client, (w, samples) in enumerate(models):
        acc = server.fold(acc, arrival(client, w, samples))
    new: Params = server.finish(state, acc, Clock(0, 5, 0))["params"]
    assert torch.allclose(new["w"], slow_vote(models), atol=1e-6)
    total = torch.stack([w[0] * samples for w, samples in models]).sum(0)
    mean = total / sum(samples for _, samples in models)
    assert torch.allclose(new["b"], mean + 1, atol=1e-6)


def test_without_an_arrival_the_model_stays() -> None:
    servers: list[Server] = [MajorityAverage(), PrunedAverage()]
    for server in servers:
        state = {"params": {"w": torch.ones(6, 5)}}
        assert server.finish(state, server.begin(state, {}), Clock(3, 5, 0)) is state


def test_the_server_prunes_the_mean() -> None:
    models = [(torch.randn(6, 5), 1.0), (torch.randn(6, 5), 3.0)]
    state = {"params": {"b": torch.zeros(5), "w": torch.ones(6, 5)}}
    news = []
    for server in (Average(), PrunedAverage(pruning=Progressive(0.5))):
        acc = server.begin(state, {})
        for client, (w, samples) in enumerate(models):
            acc = server.fold(acc, arrival(client, w, samples))
        news.append(server.finish(state, acc, Clock(4, 5, 0))["params"])
    assert torch.equal(news[1]["w"], pruned_to(news[0], 0.5)["w"])
    assert int((news[1]["w"] == 0).sum()) == 15


def test_a_pruned_weight_stays_zero_and_the_rest_is_pruned_after_the_last_step() -> None:
    start = {"w": torch.randn(10, 10), "b": torch.zeros(10)}
    start["w"][:3] = 0
    solver, layout, vector = on(SparseSGD(momentum=0.5, pruning=Progressive(0.8)), start)
    carry = solver.begin(vector, {}, {}, 4)
    hyperparams = solver.hyperparams(Clock(5, 10, 0))
    ones = Named(layout, lambda at: {name: torch.ones_like(t) for name, t in at.items()})
    for number in range(4):
        carry = solver.step(ones, vector, carry, hyperparams)
        after = layout.unflatten(carry["params"])
        assert not after["w"][:3].any()
        assert int((after["w"] == 0).sum()) == (30 if number < 3 else int(100 * hyperparams["share"]))
    assert after["b"].all()


def test_before_the_first_pruning_all_weights_are_trained() -> None:
    solver, layout, start = on(SparseSGD(pruning=Progressive(0.8, first=3)), {"w": torch.zeros(10, 10)})
    ones = Named(layout, lambda _: {"w": torch.ones(10, 10)})
    carry = solver.step(ones, start, solver.begin(start, {}, {}, 1), solver.hyperparams(Clock(1, 10, 0)))
    assert carry["params"].all()


@pytest.mark.parametrize("where", ["local", "global"])
def test_a_run_ends_with_the_final_sparsity_and_short_messages(where: Literal["local", "global"]) -> None:
    result = simulate(fedsparsify(sparsity=0.9, where=where, epochs=1), tiny_task(clients=4), rounds=6, per_round=4)
    weights = torch.cat([t.flatten() for t in result.model.parameters() if t.dim() > 1])
    zeros = float((weights == 0).float().mean())
    assert zeros == pytest.approx(0.9, abs=0.02) if where == "global" else 0.7 < zeros < 0.97
    first, last = (sum(result.metrics[at]["bytes_down"].values()) for at in (0, -1))
    assert last < 0.8 * first


def test_a_vote_needs_clients_that_hold_all_weights() -> None:
    with pytest.raises(ConfigError, match="MajorityAverage needs clients that hold the whole model"):
        simulate(compose(Bernoulli(), SparseSGD(), server=MajorityAverage(), send="model"), tiny_task(), rounds=1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sparsity": 1.0}, "Progressive.sparsity must be in"),
        ({"first": 0}, "Progressive.first must be at least 1"),
        ({"every": 0}, "Progressive.every must be at least 1"),
        ({"exponent": 0.0}, "Progressive.exponent must be positive"),
        ({"where": "here"}, "where must be local or global"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fedsparsify(**given)
