"""Mixing weights between clusters: the best of their kind, the same mixture in expectation, and memory by client."""

import doctest
import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer import ConfigError, Full, Method
from gossamer.core.random import fold, generator, key
from gossamer.core.types import Clock
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods import perm, perm_two_stage
from gossamer.parts.servers import GradientSimilarity
from gossamer.parts.servers.mixing import (
    Flags,
    between,
    group,
    hosts,
    looked_up,
    shares,
    square,
    summary,
    waterfill,
)
from gossamer.parts.servers.mixing.weights import VISITS
from gossamer.parts.servers.model_rotation import Epoch, ModelRotation
from gossamer.testing import tiny_task

FEW = 25  # examples


def normal(label: str, *shape: int) -> Tensor:
    return torch.from_numpy(generator(fold(key(6), label)).standard_normal(shape))


def kept(x: Tensor, samples: Tensor, labels: Tensor, count: int, lam: float) -> dict[str, Tensor]:
    """Mixing weights as the server stores them."""
    weights = between(x, samples, labels, count, lam)
    return {"cluster": labels, "share": shares(samples, labels, count), "between": weights}


def loss(weights: Tensor, x: Tensor, samples: Tensor, lam: float) -> Tensor:
    """The objective of each client: Equation 2 of the paper."""
    apart = (x[:, None] - x).square().sum(-1)
    return (weights * apart).sum(1) + lam * (weights.square() / samples).sum(1)


# Weights.


@given(st.integers(2, 8), st.integers(1, 4), st.floats(-2, 4), st.integers(0, 10**4))
@settings(max_examples=FEW)
def test_no_other_weights_of_clusters_are_better(clients: int, count: int, exponent: float, seed: int) -> None:
    """Move some weight from a cluster to another: the mean objective over the samples of any cluster does not fall."""
    x, samples = normal(f"x{seed}", clients, 3), torch.arange(1, clients + 1).double()
    labels, lam = torch.from_numpy(generator(key(seed)).integers(0, count, clients)), 10.0**exponent
    state = kept(x, samples, labels, count, lam)
    best = loss(square(state, clients), x, samples, lam)
    assert torch.allclose(square(state, clients).sum(1), torch.ones(clients).double())
    for way in range(3):
        other = waterfill(normal(f"w{seed}{way}", count, count).square(), torch.ones(count), 0.5)
        other[:, torch.bincount(labels, minlength=count) == 0] = 0
        if not bool((other.sum(1) > 0).all()):
            continue
        moved = {**state, "between": 0.9 * state["between"] + 0.1 * other / other.sum(1, keepdim=True)}
        change = samples * (loss(square(moved, clients), x, samples, lam) - best)
        assert all(float(change[labels == number].sum()) >= -1e-9 for number in range(count))


@pytest.mark.parametrize("lam", [0.0, 2.0, 1e9])
def test_with_identical_gradients_in_each_cluster_nothing_is_lost(lam: float) -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    x, samples = normal("means", 3, 5)[labels], torch.tensor([10.0, 20, 30, 40, 50, 60, 70])
    exact = waterfill((x[:, None] - x).square().sum(-1), samples, lam)
    assert torch.allclose(square(kept(x, samples, labels, 3, lam), 7), exact, atol=1e-12)


def test_stored_forms_agree() -> None:
    labels = torch.tensor([1, 0, -1, 1, 0])
    seen = labels >= 0
    x, samples = normal("x", 5, 4), torch.tensor([1.0, 2, 3, 4, 5])
    state = kept(x[seen], samples[seen], labels[seen], 3, 5.0)
    share = torch.zeros(5).double()
    share[seen] = state["share"]
    state |= {"cluster": labels, "share": share}
    weights = square(state, 5)
    assert not bool(weights[2].any()), "a client that was not compared has no weight"
    assert not bool(weights[:, 2].any()), "and none has a weight for it"
    rows, columns = torch.arange(5).repeat_interleave(5).tolist(), list(range(5)) * 5
    found = looked_up(state, rows, columns, 5).view(5, 5)
    assert torch.equal(found[seen], weights[seen])
    own, peers = summary(state)
    assert own == pytest.approx(float(weights.diagonal()[seen].median()))
    assert peers == pytest.approx(float((1 / weights[seen].square().sum(1)).median()))


# Clusters.


def test_groups_that_are_far_apart_are_found() -> None:
    truth = torch.arange(90) % 3
    x = 20 * normal("means", 3, 8)[truth] + normal("noise", 90, 8)
    found = group(x, torch.ones(90), 3, key(1))
    assert torch.equal(found[:, None] == found, truth[:, None] == truth)
    assert torch.equal(found, group(x, torch.ones(90), 3, key(1)))


@given(st.integers(1, 12), st.integers(1, 14), st.integers(0, 10**4))
@settings(max_examples=FEW)
def test_each_client_is_in_the_cluster_with_the_nearest_mean(clients: int, count: int, seed: int) -> None:
    x, samples = normal(f"k{seed}", clients, 2), torch.arange(1, clients + 1).double()
    labels = group(x, samples, count, key(seed))
    used = labels.unique()
    means = torch.stack([(x * samples[:, None])[labels == n].sum(0) / samples[labels == n].sum() for n in used])
    assert torch.equal(used[(x[:, None] - means).square().sum(-1).argmin(1)], labels)


def test_equal_gradients_are_one_cluster() -> None:
    assert group(torch.ones(5, 3), torch.ones(5), 3, key(0)).tolist() == [0] * 5
    with pytest.raises(ConfigError, match="count"):
        group(torch.ones(5, 3), torch.ones(5), 0, key(0))


# Hosts.


def drawn(epochs: int, known: Flags) -> tuple[Tensor, Tensor]:
    """The mean numbers of visits of models at hosts, over some epochs, and the weights."""
    labels, samples = torch.tensor([0, 1, 1, 0, 2, 1]), torch.tensor([1.0, 2, 3, 4, 5, 6])
    state = kept(normal("h", 6, 3), samples, labels, 3, 40.0)
    total = torch.zeros(6, 6).double()
    for epoch in range(epochs):
        pairs = hosts(state["cluster"], state["share"], state["between"], known, key(epoch))
        counts = torch.zeros(6, 6).double()
        np.add.at(counts.numpy(), (pairs.models, pairs.hosts), 1)
        assert counts.sum(1).tolist() == [VISITS * bool(each) for each in known], "all models visit as often"
        expected = VISITS * square(state, 6)
        for number in range(3):
            members = (labels == number) & torch.from_numpy(known)
            if known.all():
                assert bool(((counts - expected)[members].sum(0).abs() < 1).all()), "a host is visited as expected"
        total += counts
    return total / epochs / VISITS, square(state, 6)


def test_a_model_visits_hosts_by_weight() -> None:
    found, weights = drawn(300, np.ones(6, dtype=bool))
    assert torch.allclose(found, weights, atol=0.015)
    assert not bool(found[weights == 0].any())


def test_clients_that_were_not_compared_are_not_visited() -> None:
    found, _ = drawn(3, np.array([True, False, True, True, True, True]))
    assert not bool(found[1].any())
    assert not bool(found[:, 1].any())


# Runs.

PLAIN: dict[str, Any] = {"warmup": 0, "steps": 2, "batch": 8, "lambda_": 3.0}


def ran(method: Method, rounds: int, **options: Any) -> Simulation:
    run = Simulation(method, tiny_task(6, torch.float64), Options(rounds=rounds, executor="one-by-one", **options))
    run.run(None, lambda record: None)
    return run


def test_all_visits_of_an_epoch_count_alike_and_add_up_to_its_length() -> None:
    run = Simulation(perm_two_stage(clusters=2, bound=None, **PLAIN), tiny_task(6, torch.float64), Options(rounds=9))
    run.round(0, None)
    server = run.method.training.server
    assert isinstance(server, ModelRotation)
    assigned = server.assign(run.server, range(6), Clock(1, 9, -1), run.key)
    assert assigned is not None
    epoch = Epoch.of(run.server["rotation"])
    assert {to.loss_scale for to in assigned.values() if to.owner is not None} == {epoch.length / VISITS}
    assert epoch.length == epoch.table.shape[1] >= VISITS
    visits = run.metrics[0]["figures"]["visits"]
    assert (visits["skipped"], visits["capped"], visits["trained"] + visits["idle"]) == (0, 0, 6)


def test_an_epoch_with_few_clients_per_round_ends() -> None:
    """All clients are compared in turn; a new epoch begins with each comparison, and the last one ends."""
    run = ran(perm_two_stage(clusters=2, **PLAIN), 150, per_round=3)
    assert int(run.server["epoch"]) >= 2
    assert "sketches" not in run.server["compared"], "all were compared"
    assert run.models.known() == list(range(6))


def test_as_many_clusters_as_clients_are_the_clients() -> None:
    exact, alone = ran(perm_two_stage(**PLAIN), 1), ran(perm_two_stage(clusters=6, **PLAIN), 1)
    assert torch.allclose(square(alone.server["mixing"], 6), exact.server["mixing"]["weights"], atol=1e-9)


@pytest.mark.parametrize(("clients", "count"), [(2000, None), (2001, 50)])
def test_thousands_of_clients_are_in_clusters(clients: int, count: int | None) -> None:
    server = GradientSimilarity()
    on = SimpleNamespace(clients=clients, exchange=SimpleNamespace(view=Full()), trained=("w",))
    assert server.bind(on).clusters == count  # type: ignore[arg-type]
    assert replace(server, clusters=7).bind(on).clusters == 7  # type: ignore[arg-type]
    for other in (replace(server, keep=7), replace(server, solve=3, lam=1.0)):
        assert other.bind(on).clusters is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"clusters": 0}, "clusters must be at least 1"),
        ({"clusters": 2, "keep": 2}, "give one of them"),
        ({"clusters": 2, "solve": 3}, "needs exact weights"),
        ({"clusters": 2, "capacities": (1.0, 0.5)}, "need full gradients"),
    ],
)
def test_mistakes_are_reported(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        perm(**fields)


@pytest.mark.parametrize("name", ["stored"])
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"gossamer.parts.servers.mixing.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
