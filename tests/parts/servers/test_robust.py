"""Robust rules against slow versions entry by entry, their breaking points, and what they are combined with."""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import (
    RULES,
    Bucketing,
    CenteredClipping,
    Clip,
    Clock,
    ConfigError,
    Delta,
    Dense,
    Eden,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    Method,
    MultiKrum,
    OnWeights,
    Part,
    PayloadError,
    Robust,
    StochasticSign,
    Task,
    TrimmedMean,
    fedadam,
    fedavg,
    simulate,
)
from gossamer.core.codec import Coding
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.random import fold, key, permutation
from gossamer.core.specs import parse
from gossamer.core.types import Layout, Payload, State
from gossamer.methods import METHODS
from gossamer.parts.servers import Rule
from gossamer.parts.servers.robust import updates as memory
from gossamer.parts.servers.robust.server import Waiting
from gossamer.runs.report import AggregationReport
from gossamer.testing import bound, check_method, tiny_task

Array = npt.NDArray[np.float64]
Over = Literal["cohort", "holders"]

KEY = key(3)
CLOCK = Clock(4, 9, -1)
ALL: list[Rule] = [
    Clip(),
    Clip("median", 2.0),
    Clip(0.7),
    Median(),
    TrimmedMean(0.3),
    GeometricMedian(iterations=4),
    Krum(1),
    MultiKrum(1),
    MultiKrum(1, 2),
    CenteredClipping(),
    CenteredClipping(0.5, 3),
    Bucketing(2, Median()),
    Bucketing(2, GeometricMedian(3)),
]


def arrivals(rows: Array, weights: Sequence[float] | None = None, held: Array | None = None) -> list[Arrival]:
    """One arrival per row, of float64."""
    found = []
    for client, row in enumerate(rows):
        part = Part() if held is None else Part(keep={"w": torch.from_numpy(held[client])})
        change = {"w": torch.from_numpy(row if held is None else row * held[client])}
        found.append(Arrival.of(client, part, change, weights[client] if weights else 1.0))
    return found


def folded(server: Robust, state: State, found: Sequence[Arrival]) -> Waiting:
    acc = server.begin(state, dict.fromkeys(range(len(found)), GLOBAL))
    for arrival in found:
        acc = server.fold(acc, arrival)
    return acc


def aggregate(rule: Rule, found: Sequence[Arrival], size: int, over: Over = "holders", start: Any = None) -> Array:
    server = Robust(rule, Mean(over=over)).filled(key=KEY)
    state = {"params": {"w": torch.zeros(size, dtype=torch.float64)}, **(start or {})}
    moved: Tensor = server.finish(state, folded(server, state, found), CLOCK)["params"]["w"]
    return moved.numpy()


# Slow versions. ``held`` has 1 for each entry that a client holds; weights have the sum 1.


def slow_mean(rows: Array, weights: Array, held: Array) -> Array:
    found = np.zeros(rows.shape[1])
    for j in range(rows.shape[1]):
        total = sum(weights[k] for k in range(len(rows)) if held[k, j])
        found[j] = sum(weights[k] * rows[k, j] for k in range(len(rows)) if held[k, j]) / total if total else 0
    return found


def slow_norms(rows: Array, held: Array) -> Array:
    return np.array(
        [
            math.sqrt(sum(x * x for x in row * mask) * len(row) / mask.sum())
            for row, mask in zip(rows, held, strict=True)
        ]
    )


def slow_clip(rows: Array, weights: Array, held: Array, most: float | None, multiple: float = 1.0) -> Array:
    norms = slow_norms(rows, held)
    limit = sorted(norms)[(len(rows) - 1) // 2] * multiple if most is None else most
    return slow_mean(rows * np.minimum(1, limit / norms)[:, None], weights, held)


def slow_entries(rows: Array, held: Array, of: Callable[[list[float]], float], least: int) -> Array:
    weaker = slow_clip(rows, np.full(len(rows), 1 / len(rows)), held, None)
    found = np.zeros(rows.shape[1])
    for j in range(rows.shape[1]):
        values = sorted(rows[k, j] for k in range(len(rows)) if held[k, j])
        found[j] = of(values) if len(values) >= least else weaker[j]
    return found


def slow_trimmed(share: float) -> Callable[[list[float]], float]:
    def of(values: list[float]) -> float:
        out = math.floor(share * len(values) + 1e-9)
        return float(np.mean(values[out : len(values) - out]))

    return of


def slow_geometric(rows: Array, weights: Array, held: Array, iterations: int) -> Array:
    z = slow_clip(rows, weights, held, None)
    for _ in range(iterations):
        near = weights / np.maximum(slow_norms(rows - z, held), 1e-6)
        z = slow_mean(rows, near, held)
    return z


def slow_krum(rows: Array, held: Array, f: int, m: int) -> Array:
    n, d = rows.shape
    apart = np.full((n, n), np.inf)
    for i, j in combinations(range(n), 2):
        common = held[i] * held[j]
        if common.any():
            apart[i, j] = apart[j, i] = ((rows[i] - rows[j]) ** 2 * common).sum() * d / common.sum()
    scores = [sum(sorted(apart[i, j] for j in range(n) if j != i)[: n - f - 2]) for i in range(n)]
    best = sorted(range(n), key=lambda i: scores[i])[:m]
    weights = np.array([1 / m if i in best else 0.0 for i in range(n)])
    return slow_mean(rows, weights, held)


def slow_centered(rows: Array, held: Array, radius: float | None, iterations: int, start: Array) -> Array:
    v, equal = start, np.full(len(rows), 1 / len(rows))
    for _ in range(iterations):
        apart = slow_norms(rows - v, held)
        limit = sorted(apart)[(len(rows) - 1) // 2] if radius is None else radius
        v = v + slow_mean((rows - v) * np.minimum(1, limit / apart)[:, None], equal, held)
    return v


def slow(rule: Rule, rows: Array, weights: Array, held: Array) -> Array:
    n, d = rows.shape
    if isinstance(rule, Clip):
        return slow_clip(rows, weights, held, None if rule.norm == "median" else float(rule.norm), rule.multiple)
    if isinstance(rule, Median):
        return slow_entries(rows, held, lambda values: float(np.median(values)), 3)
    if isinstance(rule, TrimmedMean):
        return slow_entries(rows, held, slow_trimmed(rule.share), math.ceil(1 / rule.share))
    if isinstance(rule, GeometricMedian):
        return slow_geometric(rows, weights, held, rule.iterations)
    if isinstance(rule, MultiKrum):
        return slow_krum(rows, held, rule.f, min(rule.m or n, n - rule.f - 2))
    if isinstance(rule, Krum):
        return slow_krum(rows, held, rule.f, 1)
    if isinstance(rule, CenteredClipping):
        radius = None if rule.radius == "median" else float(rule.radius)
        return slow_centered(rows, held, radius, rule.iterations, np.zeros(d))
    assert isinstance(rule, Bucketing)
    order = permutation(fold(KEY, "aggregation", CLOCK.round), n)
    groups = [order[i : i + rule.size] for i in range(0, n, rule.size)]
    means = np.stack([slow_mean(rows[g], np.ones(len(g)), held[g]) for g in groups])
    some = np.stack([held[g].max(0) for g in groups])
    return slow(rule.rule, means, np.full(len(groups), 1 / len(groups)), some)


def drawn(seed: int, clients: int, share: float, size: int = 9) -> tuple[Array, Array, list[float]]:
    """Updates, masks of which every client holds an entry, and weights."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(clients, size)) * draw.uniform(0.1, 3, (clients, 1))
    held = (draw.random((clients, size)) < share).astype(np.float64)
    held[np.arange(clients), draw.integers(0, size, clients)] = 1
    return rows * held, held, draw.integers(1, 9, clients).astype(float).tolist()


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.to_text())
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), clients=st.integers(9, 12))
def test_whole_models(rule: Rule, seed: int, clients: int) -> None:
    rows, _, weights = drawn(seed, clients, 1.0)
    wanted = slow(rule, rows, np.array(weights) / sum(weights), np.ones_like(rows))
    np.testing.assert_allclose(aggregate(rule, arrivals(rows, weights), 9), wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.to_text())
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.2, 0.5, 0.8]), over=st.sampled_from(["cohort", "holders"]))
def test_parts_of_the_model(rule: Rule, seed: int, share: float, over: Over) -> None:
    """Over the holders of an entry; over the cohort, that times the holders' share. Without holders, nothing moves."""
    rows, held, weights = drawn(seed, 10, share)
    p = np.array(weights) / sum(weights)
    wanted = slow(rule, rows, p, held)
    own = p if rule.weighted else np.full(10, 0.1)
    wanted = wanted * ((own[:, None] * held).sum(0) if over == "cohort" else held.any(0))
    found = aggregate(rule, arrivals(rows, weights, held), 9, over)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.to_text())
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_small_chunks_change_nothing(rule: Rule, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, held, weights = drawn(5, 11, share)
    given_rows = arrivals(rows, weights, None if share == 1 else held)
    at_once = aggregate(rule, given_rows, 9)
    monkeypatch.setattr(memory, "ENTRIES", 1)
    monkeypatch.setattr(memory, "MODELS", 2)
    np.testing.assert_allclose(aggregate(rule, given_rows, 9), at_once, rtol=1e-12, atol=1e-14)


# Breaking points.

HOSTILE = st.sampled_from([0.0, 1e30, -1e30, 3e38, -3e38, 1e-40, 2.0, -7.0])


@pytest.mark.parametrize(
    ("rule", "clients"), [(Median(), 9), (Median(), 10), (TrimmedMean(0.2), 10), (TrimmedMean(0.45), 9)]
)
@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_hostile_values_do_not_leave_the_honest_range(rule: Rule, clients: int, data: Any, seed: int) -> None:
    f = rule.tolerates(clients)
    honest = np.random.default_rng(seed).normal(size=(clients - f, 4))
    hostile = np.array(data.draw(st.lists(st.lists(HOSTILE, min_size=4, max_size=4), min_size=f, max_size=f)))
    found = aggregate(rule, arrivals(np.concatenate([hostile.reshape(f, 4), honest])), 4)
    assert np.all(found >= honest.min(0) - 1e-12)
    assert np.all(found <= honest.max(0) + 1e-12)


def test_one_more_hostile_client_leaves_it() -> None:
    """The breaking points are tight."""
    for rule, clients in ((Median(), 9), (TrimmedMean(0.2), 10)):
        hostile = rule.tolerates(clients) + 1
        rows = np.concatenate([np.full((hostile, 2), 1e30), np.ones((clients - hostile, 2))])
        assert aggregate(rule, arrivals(rows), 2).min() > 1e28


@pytest.mark.parametrize("rule", [Krum(2), MultiKrum(2), MultiKrum(2, 2)], ids=lambda rule: rule.to_text())
@given(seed=st.integers(0, 10**6), far=st.sampled_from([1e2, -1e6, 1e30, -1e150]))
@settings(max_examples=20)
def test_krum_takes_no_distant_update(rule: Krum, seed: int, far: float) -> None:
    honest = np.random.default_rng(seed).normal(size=(5, 4))
    rows = np.concatenate([np.full((1, 4), far), honest, np.full((1, 4), far)])
    server = Robust(rule, Mean()).filled(key=KEY)
    state = {"params": {"w": torch.zeros(4, dtype=torch.float64)}}
    acc = folded(server, state, arrivals(rows))
    server.finish(state, acc, CLOCK)
    figures = server.measure(state, acc)["aggregation"]
    assert set(figures["used"]) <= {1, 2, 3, 4, 5}
    assert len(figures["used"]) == {Krum(2): 1, MultiKrum(2): 3, MultiKrum(2, 2): 2}[rule]


@pytest.mark.parametrize(
    "rule", [Clip(), GeometricMedian(), CenteredClipping(), Bucketing(2, Median())], ids=lambda rule: rule.to_text()
)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), far=st.sampled_from([1e2, -1e6, 1e30, -3e38]))
def test_a_minority_does_not_carry_the_others_away(rule: Rule, seed: int, far: float) -> None:
    f = rule.tolerates(11)
    honest = np.random.default_rng(seed).normal(size=(11 - f, 4))
    found = aggregate(rule, arrivals(np.concatenate([honest, np.full((f, 4), far)])), 4)
    assert np.linalg.norm(found) <= 2 * np.linalg.norm(honest, axis=1).max()


def test_float32_updates_near_the_largest_number_stay_finite() -> None:
    rows = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    rows[0], rows[1] = 3e38, -3e38
    found = [Arrival.of(client, Part(), {"w": row}, 1.0) for client, row in enumerate(rows)]
    for rule in (*ALL, Krum(2)):
        server, state = Robust(rule, Mean()).filled(key=KEY), {"params": {"w": torch.zeros(6)}}
        if rule.tolerates(9) >= 2:
            moved = server.finish(state, folded(server, state, found), CLOCK)["params"]["w"]
            assert moved.norm() < 2 * rows[2:].norm(dim=1).max(), rule


def test_the_geometric_median_minimizes_the_sum_of_distances() -> None:
    rows, _, weights = drawn(1, 10, 1.0, 4)
    found = aggregate(GeometricMedian(200), arrivals(rows, weights), 4)

    def cost(z: Array) -> float:
        return float((np.array(weights) * np.linalg.norm(rows - z, axis=1)).sum())

    steps = np.random.default_rng(0).normal(size=(200, 4)) * 1e-3
    assert cost(found) <= min(cost(found + step) for step in steps)


def test_tolerated_numbers() -> None:
    wanted = {
        "median": [9, 4],
        "trimmed-mean:0.2": [4, 2],
        "trimmed-mean:0.29": [5, 2],
        "geometric-median": [9, 4],
        "clip:1.0": [9, 4],
        "krum:f=2": [2, 2],
        "krum:f=4": [4, 0],
        "multi-krum:f=3,m=2": [3, 3],
        "centered-clipping": [9, 4],
        "bucketing:2/median": [4, 2],
        "bucketing:2/krum:f=1": [1, 1],
    }
    assert {text: [parse(text, RULES, "server").tolerates(n) for n in (20, 10)] for text in wanted} == wanted
    assert TrimmedMean(0.2).tolerates(10) < 0.3 * 10  # a share of 0.2 does not hold 30 %


# Bucketing.


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_buckets_of_equal_size_keep_the_mean(seed: int) -> None:
    rows, _, _ = drawn(seed, 12, 1.0)
    found = aggregate(Bucketing(3, Clip(1e9)), arrivals(rows), 9)
    np.testing.assert_allclose(found, rows.mean(0), rtol=1e-9, atol=1e-12)


def test_buckets_are_unbiased_over_rounds() -> None:
    """Seven updates in buckets of two: the last bucket has one, which differs from round to round."""
    rows = np.eye(7)
    server = Robust(Bucketing(2, Clip(1e9)), Mean()).filled(key=KEY)
    state, total, rounds = {"params": {"w": torch.zeros(7, dtype=torch.float64)}}, torch.zeros(7), 800
    acc = folded(server, state, arrivals(rows))
    for number in range(rounds):
        total = total + server.finish(state, acc, Clock(number, rounds, -1))["params"]["w"]
    # Each client is alone with probability 1/7: its weight is 1/4 then, else 1/8. The mean has the error below.
    spread = 0.125 * math.sqrt(6 / 49 / rounds)
    assert float((total / rounds - 1 / 7).abs().max()) < 5 * spread


# The server.


def test_fewer_updates_than_needed_keep_the_model_and_say_why() -> None:
    server = Robust(Krum(2), Mean()).filled(key=KEY)
    state = {"params": {"w": torch.ones(3, dtype=torch.float64)}}
    acc = folded(server, state, arrivals(np.ones((6, 3))))
    assert server.finish(state, acc, CLOCK) is state
    wanted = "6 updates arrived, and krum:f=2 needs 7: the model was kept"
    assert server.measure(state, acc) == {"aggregation": {"updates": 6, "tolerated": 0, "kept_model": wanted}}


def test_a_run_whose_updates_are_lost_goes_on() -> None:
    method = fedavg(steps=1)
    method = method.with_parts(server=Robust(Median(), method.server))
    result = simulate(method, tiny_task(4), rounds=6, failure_rate=0.5, seed=1)
    kept = [record["figures"]["aggregation"].get("kept_model", "") for record in result.metrics]
    folded_in = [record["exchanges"][-1]["folded"] for record in result.metrics]
    assert [bool(text) for text in kept] == [count < 3 for count in folded_in]
    assert 0 < sum(map(bool, kept)) < 6
    rows = dict(AggregationReport("aggregation").rows(result.summary()["figures"]["aggregation"]))
    last = next(text for text in reversed(kept) if text)
    assert rows["model kept"] == f"in {sum(map(bool, kept))} rounds; the last: {last}"


@pytest.mark.parametrize(
    ("rule", "size", "needed"),
    [
        (Krum(2), 6, 7),
        (Median(), 2, 3),
        (TrimmedMean(0.2), 4, 5),
        (MultiKrum(2, 5), 8, 9),
        (Bucketing(3, Median()), 6, 7),
        (Clip(), 2, 3),
    ],
)
def test_rounds_that_are_too_small_are_refused_before_training(rule: Rule, size: int, needed: int) -> None:
    method = fedavg().with_parts(server=Robust(rule))
    with pytest.raises(ConfigError, match=f"needs at least {needed} clients per round, and a round has {size}"):
        simulate(method, tiny_task(10), rounds=1, per_round=size)
    simulate(method, tiny_task(10), rounds=1, per_round=needed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(0.5), "TrimmedMean.share must be above 0 and below 0.5, got 0.5"),
        (lambda: Krum(0), "Krum.f must be at least 1, got 0"),
        (lambda: MultiKrum(1, 0), "MultiKrum.m must be at least 1, got 0"),
        (lambda: Clip(-1.0), "Clip.norm must be a positive number or median, got -1.0"),
        (lambda: Clip("mean"), "Clip.norm must be a positive number or median, got 'mean'"),  # type: ignore[arg-type]
        (lambda: Clip(1.0, 2.0), "Clip.multiple must be 1 with a number as norm, got 2.0"),
        (lambda: CenteredClipping(0.0), "CenteredClipping.radius must be a positive number or median, got 0.0"),
        (lambda: CenteredClipping(iterations=0), "CenteredClipping.iterations must be at least 1, got 0"),
        (lambda: GeometricMedian(smoothing=0.0), "GeometricMedian.smoothing must be a positive number, got 0.0"),
        (lambda: Bucketing(1, Median()), "Bucketing.size must be at least 2, got 1"),
        (lambda: Robust("median"), "Robust.rule must be a Rule, got 'median'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == message


def test_which_methods_take_a_rule() -> None:
    """Those whose server is a mean or a server optimizer. The others are refused by name."""
    refused = {}
    for name, recipe in METHODS.items():
        try:
            Robust(Median(), recipe().server)
        except ConfigError as error:
            refused[name] = str(error)
    assert refused.keys() == {
        *("scaffold", "fednova", "feddyn", "ifca", "ef21", "perm", "perm-two-stage", "fedpm", "klms"),
        *("fedsparsify", "fedavg-pruned", "onebit-cs", "onebit-cs-paper", "dp-fedavg", "dp-ftrl"),
        *("decomfl", "fedkseed", "hiso", "flora"),
    }
    assert "and Scaffold uses the updates in another way" in refused["scaffold"]


def test_a_message_that_cannot_be_decoded_is_refused_on_arrival() -> None:
    def broken(vector: Tensor, weight: float) -> None:
        raise PayloadError("change is not finite")

    server, state = Robust(Median(), Mean()).filled(key=KEY), {"params": {"w": torch.zeros(2, dtype=torch.float64)}}
    acc = folded(server, state, arrivals(np.ones((2, 2))))
    bad = Arrival(5, Part(), Layout.of(state["params"]), 1.0, broken)
    with pytest.raises(PayloadError, match="not finite"):
        server.fold(acc, bad)
    assert len(acc.kept) == 2


def test_the_learning_rate_and_the_optimizer_of_the_mean_hold() -> None:
    rows, _, _ = drawn(2, 9, 1.0)
    middle = torch.from_numpy(np.median(rows, 0))
    state = {"params": {"w": torch.ones(9, dtype=torch.float64)}}
    server = Robust(Median(), Mean(server_lr=0.5)).filled(key=KEY)
    moved = server.finish(state, folded(server, state, arrivals(rows)), CLOCK)["params"]["w"]
    torch.testing.assert_close(moved, 1 + 0.5 * middle)

    method = fedadam()
    found = bound(method.with_parts(server=Robust(Median(), method.server)).training)
    params = found.context.network.initial()
    state = found.server.init(params)
    acc = found.server.begin(state, {})
    for client in range(3):
        change = {name: torch.full_like(t, float(client)) for name, t in params.items()}
        acc = found.server.fold(acc, Arrival.of(client, Part(), change, 1.0))
    after = found.server.finish(state, acc, CLOCK)
    adam, alone = bound(method.training).server, {name: torch.ones_like(t) for name, t in params.items()}
    wanted = adam.finish(state, adam.fold(adam.begin(state, {}), Arrival.of(0, Part(), alone, 1.0)), CLOCK)
    for name in params:
        torch.testing.assert_close(after["params"][name], wanted["params"][name])
    assert after.keys() == wanted.keys()


def test_the_center_is_kept_from_round_to_round() -> None:
    rows, _, _ = drawn(7, 9, 1.0)
    server = Robust(CenteredClipping(0.5), Mean()).filled(key=KEY)
    state: State = server.init({"w": torch.zeros(9, dtype=torch.float64)})
    first = server.finish(state, folded(server, state, arrivals(rows)), CLOCK)
    again = server.finish(first, folded(server, first, arrivals(rows)), CLOCK)
    center = slow_centered(rows, np.ones_like(rows), 0.5, 1, np.zeros(9))
    wanted = slow_centered(rows, np.ones_like(rows), 0.5, 1, center)
    np.testing.assert_allclose((again["params"]["w"] - first["params"]["w"]).numpy(), wanted, rtol=1e-9)


def coded(clients: int) -> tuple[Robust, State, list[Arrival], int]:
    """A server and the encoded updates of clients, one bit per entry."""
    data = torch.zeros(40, 500), torch.arange(40) % 20
    task = Task.of(lambda: nn.Linear(500, 20, bias=False), data, data, clients=4)
    exchange = bound(fedavg().with_parts(codec=StochasticSign(), server=Robust(Median())).training, task)
    layout, server = Layout.of(exchange.outline), exchange.server
    assert isinstance(server, Robust)
    found = []
    for client in range(clients):
        vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(client))
        payload = exchange.codec.encode(vector, Coding(layout, fold(KEY, client)))
        found.append(exchange.arrival(client, Part(), Coding(layout, fold(KEY, client)), 3.0, payload))
    return server, server.init(exchange.context.network.initial()), found, layout.size


@dataclass(frozen=True)
class Hostile(Dense):
    """Dense updates. Those of client 0 are multiplied by 1000."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the values."""
        return super().encode(x * 1000 if ctx.client == 0 else x, ctx)


def test_the_median_is_that_of_decoded_updates() -> None:
    server, state, found, _ = coded(5)
    rows = torch.stack([arrival.vector(torch.device("cpu")) for arrival in found])
    moved = server.finish(state, folded(server, state, found), CLOCK)["params"]["weight"]
    torch.testing.assert_close(moved.flatten(), state["params"]["weight"].flatten() + rows.median(0).values)


def floats(size: int) -> int:
    """The number of vectors of floats in memory that are as long as the model."""
    gc.collect()
    found = (each for each in gc.get_objects() if type(each) is Tensor)
    return sum(each.is_floating_point() and each.numel() >= size for each in found)


def test_messages_wait_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    server, state, found, size = coded(30)
    before = floats(size)
    acc = folded(server, state, found)
    assert floats(size) == before
    assert sum(t.nbytes for kept in acc.kept for t in kept.arrival.payload.values()) < 30 * size / 7
    monkeypatch.setattr(memory, "ENTRIES", 1)
    updates = memory.Received(acc.kept, acc.model)
    shapes = [chunk.rows.shape for chunk in updates.chunks()]
    assert all(math.prod(shape) <= 4 * size for shape in shapes)
    assert sum(shape[1] for shape in shapes) == size
    assert len(shapes) == math.ceil(30 / 4)
    updates.mean(updates.equal_weights)
    assert not updates.decoded


SUBMODELS: list[tuple[str, Rule]] = [
    ("heterofl", Median()),
    ("heterofl", Krum(1)),
    ("fedrolex", TrimmedMean(0.3)),
    ("submodel-random", GeometricMedian(2)),
    ("fedspa", CenteredClipping()),
    ("sub-fedavg", MultiKrum(1)),
    ("fiarse", Bucketing(2, Clip())),
]


@pytest.mark.parametrize(("name", "rule"), SUBMODELS)
def test_methods_with_parts_of_the_model(name: str, rule: Rule) -> None:
    """Rounds with a hostile client end near those without a rule and without the client."""
    method = METHODS[name](epochs=2)
    robust = method.with_parts(server=Robust(rule, method.server), codec=Hostile())
    found, plain = (simulate(each, tiny_task(6), rounds=2) for each in (robust, method))
    assert not any(record["failures"] for record in found.metrics)
    wanted, start = plain.model.state_dict(), tiny_task(6).model().state_dict()
    for tensor_name, tensor in found.model.state_dict().items():
        away = (tensor - wanted[tensor_name]).norm()
        assert away < 3 * (1 + start[tensor_name].norm()), tensor_name


@pytest.mark.parametrize("rule", [CenteredClipping(), Bucketing(2, Clip(0.5))], ids=lambda rule: rule.to_text())
def test_runs_can_be_resumed(rule: Rule, tmp_path: Path) -> None:
    check_method(fedavg(steps=2).with_parts(server=Robust(rule)), tmp_path)


def test_delta_downlinks() -> None:
    """Clients cannot repeat the aggregation: they would need the updates of all others, decoded."""
    method: Method = fedavg(steps=1).with_parts(codec=OnWeights(Eden(1)), server=Robust(Median()))
    with pytest.raises(ConfigError, match="Delta cannot repeat the aggregation: Robust does not declare"):
        simulate(method.with_parts(down=Delta()), tiny_task(), rounds=1)
    result = simulate(method.with_parts(down=Delta(OnWeights(Eden(2)))), tiny_task(), rounds=3)
    assert not any(record["failures"] for record in result.metrics)


# Specs.


@pytest.mark.parametrize("rule", [*ALL, Bucketing(3, Bucketing(2, Krum(2)))], ids=repr)
def test_specs_and_back(rule: Rule) -> None:
    assert parse(rule.to_text(), RULES, "server") == rule


def test_short_specs() -> None:
    wanted: dict[str, Rule] = {
        "trimmed-mean:0.2": TrimmedMean(0.2),
        "krum:2": Krum(2),
        "multi-krum:f=2,m=5": MultiKrum(2, 5),
        "clip": Clip(),
        "clip:median,multiple=3": Clip("median", 3.0),
        "clip:1": Clip(1.0),
        "centered-clipping:10,iterations=2": CenteredClipping(10.0, 2),
        "bucketing:2/trimmed-mean:0.2": Bucketing(2, TrimmedMean(0.2)),
    }
    assert {text: parse(text, RULES, "server") for text in wanted} == wanted


@pytest.mark.parametrize(
    "text", ["bucketing", "bucketing:2", "bucketing:/median", "bucketing:x/median", "bucketing:2/"]
)
def test_wrong_buckets(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as bucketing:SIZE/RULE such as bucketing:2/median"):
        parse(text, RULES, "server")


def test_the_report_has_a_row_for_kept_models_only_if_there_are_some() -> None:
    report, figures = AggregationReport("aggregation"), {"updates": 5, "tolerated": 2}
    quiet = [{"round": 1, "figures": {"aggregation": figures}}]
    assert [name for name, _ in report.rows(report.summary(quiet, 5) or {})] == ["hostile tolerated"]
    few = {"round": 2, "figures": {"aggregation": {**figures, "kept_model": "1 update arrived"}}}
    (_, (name, text)) = report.rows(report.summary([*quiet, few], 5) or {})
    assert name == "model kept"
    assert text == "in 1 rounds; the last: 1 update arrived"
