"""Mixing weights, distances between gradients, sparse weights of thousands of clients, and the rotation schedule."""

import doctest
import gc
import importlib
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import choice, fold, generator, key
from gossamer.parts.servers.mixing import (
    Flags,
    GradientTable,
    Pairs,
    Sketch,
    Table,
    carried,
    complexity,
    dense,
    descend,
    nearest,
    pending,
    simplex,
    slot,
    usual_lambda,
    visits,
    waterfill,
)
from gossamer.parts.servers.mixing import distances as pairs
from gossamer.parts.servers.mixing import draw as schedule
from gossamer.parts.servers.mixing import schedule as colouring
from gossamer.tasks.data.datasets import two_populations

FEW = 40  # examples, where each takes a while
DISTANCES = st.one_of(st.floats(0, 1e3), st.integers(0, 3).map(float), st.just(math.inf))
PEERS = st.lists(st.tuples(DISTANCES, st.integers(1, 1000)), max_size=9)
LAMBDAS = st.floats(-12, 12).map(lambda exponent: 10.0**exponent)


def row(peers: Sequence[tuple[float, int]], own: int = 10) -> tuple[Tensor, Tensor]:
    """Distances and samples of a client and its peers."""
    return torch.tensor([[0.0, *(z for z, _ in peers)]]).double(), torch.tensor([own, *(n for _, n in peers)])


def normal(label: str, *shape: int) -> Tensor:
    return torch.from_numpy(generator(fold(key(5), label)).standard_normal(shape))


def apart(x: Tensor) -> Tensor:
    """Squared distances of all rows, the obvious way."""
    return (x[:, None] - x).square().sum(-1)


def peers(weights: Tensor) -> Tensor:
    """The effective number of clients that each one learns from."""
    return 1 / weights.square().sum(-1)


def exact_weights(z: list[float], samples: list[int], lam: float) -> list[float]:
    """Try all numbers of clients with a weight, in rational numbers."""
    order = sorted((j for j in range(len(z)) if z[j] < math.inf and samples[j]), key=lambda j: z[j])
    while order:
        volume = sum(samples[j] * Fraction(z[j]) for j in order) + 2 * Fraction(lam)
        surface = volume / sum(samples[j] for j in order)
        if Fraction(z[order[-1]]) < surface:
            break
        order.pop()
    weight = {j: samples[j] * (surface - Fraction(z[j])) / (2 * Fraction(lam)) for j in order}
    return [float(weight.get(j, 0)) for j in range(len(z))]


# Mixing weights.


@given(PEERS, st.integers(0, 1000), LAMBDAS, st.sampled_from([0.0, 1.0, 1e6]))
def test_water_filling_is_exact(others: list[tuple[float, int]], own: int, lam: float, lift: float) -> None:
    z, samples = row(others, own)
    z = z + lift
    if all(n == 0 or d == math.inf for n, d in zip(samples, z[0], strict=True)):
        return
    found = waterfill(z, samples, lam)
    expected = exact_weights(z[0].tolist(), samples.tolist(), lam)
    assert found[0].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert found.dtype == torch.float64


@given(PEERS, LAMBDAS)
@settings(max_examples=FEW)
def test_nothing_can_be_gained_by_moving_weight(others: list[tuple[float, int]], lam: float) -> None:
    z, samples = row(others)
    weights = waterfill(z, samples, lam)
    price = z + 2 * lam * weights / samples  # what a little more weight on each client costs: KKT
    assert weights.sum().item() == pytest.approx(1)
    assert bool((weights >= 0).all())
    level = price[weights > 0].max()
    assert bool((price >= level - 1e-9 * (1 + level)).all()), "nobody is cheaper than those with a weight"


@given(PEERS, st.lists(st.floats(0, 1), min_size=10, max_size=10), st.floats(-3, 5))
@settings(max_examples=FEW)
def test_projected_gradients_find_the_same(
    others: list[tuple[float, int]], start: list[float], exponent: float
) -> None:
    z, samples = row([(distance, 10 + n % 21) for distance, n in others], 20)
    lam = 10.0**exponent
    begin = simplex(torch.tensor([start[: z.shape[1]]]))
    # What is missing shrinks by 1 - n_min / n_max <= 2/3 in each step: 50 leave 2e-9 of it.
    assert torch.allclose(descend(z, samples, lam, begin, 50), waterfill(z, samples, lam), atol=1e-6, rtol=0)


@given(PEERS, st.integers(1, 1000), LAMBDAS, st.integers(0, 9))
@settings(max_examples=FEW)
def test_one_step_is_exact_for_equal_samples(others: list[tuple[float, int]], n: int, lam: float, start: int) -> None:
    z, samples = row([(distance, n) for distance, _ in others], n)
    begin = torch.nn.functional.one_hot(torch.tensor([start % z.shape[1]]), z.shape[1])
    assert torch.allclose(descend(z, samples, lam, begin, 1), waterfill(z, samples, lam), atol=1e-12, rtol=0)


def test_steps_shrink_what_is_missing_as_is_proved() -> None:
    z, samples = torch.tensor([[0.0, 0.2, 0.3, 0.1]]), torch.tensor([10, 20, 30, 40])
    best, begin = waterfill(z, samples, 10.0), torch.full((1, 4), 0.25)
    missing = [(descend(z, samples, 10.0, begin, steps) - best).norm().item() for steps in range(12)]
    assert all(after <= (1 - 10 / 40) * before + 1e-15 for before, after in pairwise(missing))
    assert missing[1] > 1e-3, "one step is not enough for unequal samples"


def test_a_large_common_distance_changes_nothing() -> None:
    z, samples, begin = (
        torch.tensor([[0.0, 1, 2, 1]]).double(),
        torch.tensor([10, 20, 30, 40]),
        torch.full((1, 4), 0.25),
    )
    best = waterfill(z, samples, 10.0)
    assert int((best > 0).sum()) == 3
    assert torch.allclose(waterfill(z + 2**40, samples, 10.0), best, atol=1e-15)
    assert torch.allclose(descend(z + 2**40, samples, 10.0, begin, 200), best, atol=1e-12)


def test_limits_of_lambda() -> None:
    z, samples = torch.tensor([[0.0, 0.5, 2.0, math.inf]]), torch.tensor([10, 20, 30, 40])
    itself, by_samples = torch.tensor([[1.0, 0, 0, 0]]).double(), torch.tensor([[1.0, 2, 3, 0]]).double() / 6
    assert torch.equal(waterfill(z, samples, 0), itself)
    assert torch.equal(waterfill(z, samples, 1e-12), itself)
    assert torch.equal(waterfill(z, samples, 5e-324), itself)
    assert torch.equal(waterfill(z, samples, math.inf), by_samples)
    assert torch.allclose(waterfill(z, samples, 1e12), by_samples, atol=1e-9, rtol=0)
    assert not torch.allclose(waterfill(z, samples, 1e3), by_samples, atol=1e-3)
    ties = waterfill(torch.tensor([[1.0, 3.0, 1.0, 1.0]]), samples, 0)
    assert torch.equal(ties, torch.tensor([[1.0, 0, 3, 4]]).double() / 8)


def test_those_without_samples_have_no_weight() -> None:
    z, samples = torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([0, 5, 5])
    for lam in (0, 1.0, math.inf):
        assert waterfill(z, samples, lam).tolist() == [[0, 0.5, 0.5]]
    assert descend(z, samples, 1.0, torch.full((1, 3), 1 / 3), 9)[0].tolist() == pytest.approx([0, 0.5, 0.5])


@given(PEERS, LAMBDAS, st.randoms(use_true_random=False))
@settings(max_examples=FEW)
def test_names_of_clients_do_not_matter(others: list[tuple[float, int]], lam: float, random: Any) -> None:
    z, samples = row(others)
    order = list(range(len(samples)))
    random.shuffle(order)
    moved = waterfill(z[:, order], samples[order], lam)
    assert torch.allclose(moved, waterfill(z, samples, lam)[:, order], atol=1e-14, rtol=1e-12)


def test_rows_are_independent() -> None:
    z, samples = normal("rows", 30, 12).square(), torch.arange(1, 13)
    together = waterfill(z, samples, 3.0)
    assert torch.equal(together, torch.cat([waterfill(z[i : i + 1], samples, 3.0) for i in range(30)]))
    assert len({tuple(weights) for weights in together.tolist()}) == 30


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9))
@settings(max_examples=FEW)
def test_the_projection_is_the_nearest_point(entries: list[float]) -> None:
    v = torch.tensor([entries], dtype=torch.float64)
    low, high = v.min() - 1, v.max()  # the projection is max(0, v - t) for one t
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (v - middle).clamp(min=0).sum() > 1 else (low, middle)
    assert torch.allclose(simplex(v), (v - low).clamp(min=0), atol=1e-12)
    assert torch.allclose(simplex(simplex(v)), simplex(v), atol=1e-14)


def test_wrong_weights_are_refused() -> None:
    z, n = torch.tensor([[0.0, 1.0]]), torch.tensor([1, 2])
    for wrong in (
        lambda: waterfill(torch.tensor([[0.0, math.nan]]), n, 1.0),
        lambda: waterfill(torch.tensor([[0.0, -math.inf]]), n, 1.0),
        lambda: waterfill(torch.tensor([[0.0, 1.0], [math.inf, math.inf]]), n, 1.0),
        lambda: waterfill(z, torch.tensor([0, 0]), 1.0),
        lambda: waterfill(z, torch.tensor([1, -1]), 1.0),
        lambda: waterfill(z, torch.tensor([1, 2, 3]), 1.0),
        lambda: waterfill(z, n, -1.0),
        lambda: waterfill(z, n, math.nan),
        lambda: descend(z, n, 0.0, z, 1),
        lambda: descend(z, n, 1.0, z[0], 1),
        lambda: descend(z, n, 1.0, z, -1),
        lambda: complexity(n, torch.tensor([1, -1])),
        lambda: usual_lambda(torch.tensor([0.1, -0.1]), n),
        lambda: usual_lambda(torch.tensor([0.1]), n),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_a_larger_model_is_farther_away() -> None:
    z, samples = torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([100, 100, 25])
    term = complexity(torch.tensor([400, 100, 100]), samples)
    assert term.tolist() == [2, 1, 2]
    weights = waterfill(z + term, samples, 112.5)[0]
    surface = (2 * 112.5 + 100 * 2 + 100 * 2 + 25 * 3) / 225  # above all three, which are 2, 2 and 3 high
    assert weights.tolist() == pytest.approx([100 * (surface - 2) / 225] * 2 + [25 * (surface - 3) / 225])
    assert complexity(torch.tensor([3]), torch.tensor([0])).tolist() == [math.inf]


# The default of lambda.


class Problem(NamedTuple):
    gradients: Tensor
    noise: Tensor
    halves: Tensor
    samples: Tensor


def logistic(clients: int, take: int | None = None, seed: int = 1, n: int = 400) -> Problem:
    """Gradients of logistic regression at the best model for all, and their variance, guessed in two ways."""
    data = two_populations(clients, key(seed), samples=n)
    x = torch.from_numpy(data.x).double().view(clients, n, -1)[:take]
    y = torch.from_numpy(data.y).double().view(clients, n)[:take]
    every, labels, w = x.flatten(0, 1), y.flatten(), torch.zeros(x.shape[-1], dtype=torch.float64)
    for _ in range(8):  # Newton's method
        chance = torch.sigmoid(every @ w)
        slope, curve = every.T @ (chance - labels), (every.T * (chance * (1 - chance))) @ every
        w = w - torch.linalg.solve(curve, slope)
    each = (torch.sigmoid(x @ w) - y)[..., None] * x
    first, second = each[:, : n // 2].mean(1), each[:, n // 2 :].mean(1)
    halves = (first - second).square().sum(-1) / 4
    return Problem(each.mean(1), each.var(1).sum(-1) / n, halves, torch.full((len(x),), n))


def test_the_usual_lambda_is_the_mean_over_pairs() -> None:
    noise, samples = torch.tensor([0.1, 0.4, 0.7, 0.2]).double(), torch.tensor([10, 20, 60, 30])
    both = [noise[i] + noise[j] for i in range(4) for j in range(4) if i != j]
    assert usual_lambda(noise, samples) == pytest.approx(30 * 4 * float(sum(both)) / len(both) / 2)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_populations_learn_from_their_own_half(seed: int) -> None:
    problem, half = logistic(50, seed=seed), torch.arange(50) < 25
    for noise in (problem.noise, problem.halves):
        weights = waterfill(apart(problem.gradients), problem.samples, usual_lambda(noise, problem.samples))
        assert weights[half[:, None] != half].max() == 0
        assert peers(weights).min() > 50 / 3, "and not from themselves alone"
    assert float(problem.halves.mean() / problem.noise.mean()) == pytest.approx(1, abs=0.15)


def test_homogeneous_clients_learn_from_many() -> None:
    problem = logistic(100, take=50)
    lam = usual_lambda(problem.noise, problem.samples)
    assert peers(waterfill(apart(problem.gradients), problem.samples, lam)).min() > 50 / 3
    assert peers(waterfill(apart(problem.gradients), problem.samples, lam / 100)).max() < 50 / 3


@pytest.mark.parametrize("group", [2, 10, 25])
def test_when_the_usual_lambda_keeps_strangers_out(group: int) -> None:
    clients, noise, n = 50, 0.3, 40
    samples = torch.full((clients,), n)
    lam = usual_lambda(torch.full((clients,), noise, dtype=torch.float64), samples)
    border = 2 * noise * (clients - 1) / group
    for gap, strangers in ((border * 1.001, False), (border * 0.999, True)):
        z = torch.full((1, clients), 2 * noise + gap, dtype=torch.float64)
        z[0, :group], z[0, 0] = 2 * noise, 0
        weights = waterfill(z, samples, lam)[0]
        assert bool((weights[group:] > 0).any()) == strangers
        assert weights[0] - weights[1] == pytest.approx(1 / clients), "noise gives it no more than that over its like"


# Distances.


def gradient_table(
    vectors: Tensor, held: Tensor | None = None, order: Sequence[int] | None = None, **fields: Any
) -> GradientTable:
    made = GradientTable(**fields)
    for client in order or range(len(vectors)):
        made.add(client, vectors[client], None if held is None else held[client])
    return made


@given(
    st.integers(1, 7),
    st.integers(1, 40),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
    st.integers(1, 60),
    st.integers(0, 10**4),
)
@settings(max_examples=FEW)
def test_distances_are_those_of_the_definition(
    clients: int, size: int, dtype: torch.dtype, masked: bool, entries: int, seed: int
) -> None:
    x = (normal(f"x{seed}", clients, size) + 3).to(dtype)
    held = (normal(f"m{seed}", clients, size) > -0.5).int() if masked else None
    common = torch.ones(clients, clients, size) if held is None else held[:, None] * held
    expected = ((x[:, None].double() - x.double()).square() * common).sum(-1)
    expected[(common.sum(-1) == 0) & ~torch.eye(clients, dtype=torch.bool)] = math.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ENTRIES", entries)
        who, found = gradient_table(x, held).distances()
    assert who == list(range(clients))
    assert torch.allclose(found, expected, rtol=1e-10, atol=0)
    assert torch.equal(found, found.T)
    assert found.diagonal().tolist() == [0] * clients
    assert found.min() >= 0


@pytest.mark.parametrize("entries", [100, pairs.ENTRIES])
def test_close_vectors_far_from_zero_have_a_distance(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ENTRIES", entries)
    x = 1e6 + 1e3 * torch.tensor([0, 0, 0, 1, 1]).double()[:, None] + 1e-4 * normal("close", 5, 300)
    x[1] = x[0]
    exact = x.numpy().astype(np.longdouble)
    expected = torch.from_numpy(((exact[:, None] - exact) ** 2).sum(-1).astype(np.float64))
    naive = x.square().sum(1)[:, None] + x.square().sum(1) - 2 * x @ x.T
    assert not torch.allclose(naive, expected, rtol=0.1), "which products alone would not do"
    assert torch.allclose(gradient_table(x).distances()[1], expected, rtol=1e-12, atol=0)
    found = nearest(range(5), x, torch.full((5,), 10), 1e-4, 5)
    assert torch.allclose(dense(*found, 5), waterfill(expected, torch.full((5,), 10), 1e-4), atol=1e-9)


def test_what_all_have_in_common_costs_nothing() -> None:
    x = normal("spread", 6, 40) + 1e4
    for rows, again in ((x, 30), (pairs.centred(x, masked=False), 0)):
        apart, squares, _ = pairs.products(rows, rows, masked=False)
        assert len(pairs.close(apart, squares)) == again + 6, "pairs to be done again, besides each with itself"


def test_squares_too_large_for_a_float_are_not_nan() -> None:
    x = torch.tensor([[1e200, 0], [1e200, 1], [-1e200, 0]], dtype=torch.float64)
    for held in (None, torch.ones(3, 2)):
        assert gradient_table(x, held).distances()[1].tolist() == [
            [0, 1, math.inf],
            [1, 0, math.inf],
            [math.inf] * 2 + [0],
        ]


def test_distances_do_not_depend_on_storage_or_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ENTRIES", 100)
    x, held = normal("where", 9, 50).float(), (normal("held", 9, 50) > 0).int()
    order = [4, 0, 8, 2, 1, 3, 7, 6, 5]
    for mask in (None, held):
        expected = gradient_table(x, mask).distances()[1]
        for limit in (0, 200, 700, 10**6):
            assert torch.equal(gradient_table(x, mask, order, limit=limit).distances()[1], expected)
    assert torch.equal(gradient_table(x, order=order, limit=300).vectors()[1], x.double())


def test_memory_is_bounded_and_the_file_is_removed_with_the_table() -> None:
    kept = gradient_table(normal("file", 6, 10).float(), limit=95)  # a vector has 40 bytes
    rows = kept._rows
    assert rows is not None
    assert (len(rows._near), rows._far) == (2, 4)
    file = rows._file
    assert isinstance(file, Path)
    assert file.stat().st_size == 4 * 40
    del kept, rows
    gc.collect()
    assert not file.parent.exists()


def test_a_table_keeps_its_vectors() -> None:
    vector, kept = torch.zeros(3), GradientTable()
    kept.add(0, vector)
    kept.add(1, torch.ones(3))
    vector += 1
    assert kept.distances()[1][0, 1] == 3


def test_blocks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some pairs are close to each other, so that they are computed again."""
    x = normal("blocks", 9, 20) + 1e6 * (torch.arange(9) % 2)[:, None]
    whole = gradient_table(x).distances()[1]
    monkeypatch.setattr(pairs, "BLOCK", 20)
    assert torch.equal(gradient_table(x).distances()[1], whole)


def test_unequal_parts_are_compared_where_both_hold_something() -> None:
    kept = GradientTable()
    kept.add(5, torch.tensor([1.0, 2, 3, 4]))
    kept.add(6, torch.tensor([2.0, 9, 9, 6]), torch.tensor([1, 0, 0, 1]))
    kept.add(7, torch.tensor([9.0, 0, math.nan, 9]), torch.tensor([0, 1, 0, 0]))
    who, found = kept.distances()
    assert who == [5, 6, 7]
    assert found.tolist() == [[0, 1 + 4, 4], [5, 0, math.inf], [4, math.inf, 0]]
    with pytest.raises(ConfigError, match="unequal"):
        kept.vectors()


@pytest.mark.parametrize("kind", ["whole", "held", "sketched"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_table_continues_from_saved_vectors(kind: str, dtype: torch.dtype) -> None:
    """Three clients in one round and two in the next: the distances of five in one, to the bit."""
    vectors = torch.from_numpy(generator(key(8)).normal(size=(5, 30))).to(dtype)
    parts = torch.ones(5, 30)
    parts[1::2, 15:] = 0
    fields: dict[str, Any] = {"sketch": Sketch(7, key(2))} if kind == "sketched" else {}

    def filled(store: GradientTable, clients: Sequence[int]) -> GradientTable:
        for client in clients:
            store.add(client, vectors[client], parts[client] if kind == "held" else None)
        return store

    before, after = filled(GradientTable(**fields), [4, 0, 3]), GradientTable(**fields)
    after.recall(*before.kept())
    who, found = filled(after, [2, 1]).distances()
    wanted = filled(GradientTable(**fields), range(5)).distances()
    assert who == wanted[0] == [0, 1, 2, 3, 4]
    assert torch.equal(found, wanted[1])
    assert before.kept()[0] == [0, 3, 4]
    with pytest.raises(ConfigError, match="was added before"):
        after.add(3, vectors[3])


def test_an_empty_table_has_no_distances() -> None:
    who, found = GradientTable().distances()
    assert (who, found.shape) == ([], (0, 0))


def test_wrong_vectors_are_refused() -> None:
    kept = gradient_table(torch.ones(1, 3))
    for vector, held, message in (
        (torch.ones(2), None, "2 entries"),
        (torch.ones(3).double(), None, "float64"),
        (torch.ones(3, 1), None, "flat"),
        (torch.ones(3).int(), None, "floating-point"),
        (torch.ones(3), torch.ones(2), "held must have the shape"),
        (torch.ones(3), torch.tensor([0, 1, 2]), "0 or 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            kept.add(1, vector, held)
    with pytest.raises(ConfigError, match="client 0 was added before"):
        kept.add(0, torch.ones(3))
    with pytest.raises(PayloadError, match="client 1 is not finite"):
        kept.add(1, torch.tensor([1, 2, math.nan]))
    with pytest.raises(ConfigError, match="sketch"):
        GradientTable(Sketch(2, key(1))).add(0, torch.ones(3), torch.ones(3))
    with pytest.raises(ConfigError, match="size"):
        Sketch(0, key(1))
    assert kept.distances()[0] == [0], "and nothing of them is kept"


# Sketches.


@pytest.mark.parametrize("spread", ["even", "one layer", "one entry"])
def test_sketches_keep_squared_distances_on_average(spread: str) -> None:
    size, keys, x = 20, 800, torch.zeros(400, dtype=torch.float64)
    count = {"even": 400, "one layer": 12, "one entry": 1}[spread]
    x[:count] = normal("layer", count).abs()  # without random signs, entries with one index would add up
    y = normal("common", 400)
    square = x.square().sum().item()
    variance = 2 / size * max(0, square**2 - x.pow(4).sum().item())
    drawn = [Sketch(size, fold(key(3), draw)) for draw in range(keys)]
    found = np.array([(s.reduce(x + y) - s.reduce(y)).square().sum().item() for s in drawn])
    assert found.mean() == pytest.approx(square, abs=4 * math.sqrt(variance / keys) + 1e-9)
    assert found.var() == pytest.approx(variance, rel=0.25, abs=1e-9)
    assert found.std() <= 1.15 * drawn[0].error * square
    assert drawn[0].error == math.sqrt(2 / size)


def test_a_table_of_sketches_holds_few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x, reduced = normal("long", 4, 5000).float(), Sketch(64, key(2))
    kept = gradient_table(x, sketch=reduced)
    vectors = kept.vectors()[1]
    assert vectors.shape == (4, 64)
    assert torch.allclose(kept.distances()[1], apart(vectors))
    monkeypatch.setattr(pairs, "CHUNK", 999)
    assert torch.equal(torch.stack([reduced.reduce(vector) for vector in x]), vectors), "blocks make no difference"
    assert not torch.equal(Sketch(64, key(3)).reduce(x[0]), vectors[0])


def test_short_vectors_stay_as_they_are() -> None:
    x = normal("short", 3, 64)
    assert torch.equal(gradient_table(x, sketch=Sketch(64, key(1))).vectors()[1], x)


def test_groups_are_found_through_sketches() -> None:
    half = torch.arange(40) < 20
    x = 0.1 * normal("groups", 40, 3000) + half[:, None] * normal("shift", 3000)
    samples = torch.full((40,), 100)
    lam = usual_lambda(torch.full((40,), 0.1**2 * 3000), samples)
    for kept in (GradientTable(), GradientTable(Sketch(256, key(4)))):
        for client, vector in enumerate(x):
            kept.add(client, vector)
        weights = waterfill(kept.distances()[1], samples, lam)
        assert weights[half[:, None] != half].max() == 0
        assert peers(weights).min() > 15


# Thousands of clients.


class Largest(TorchFunctionMode):
    """Notes the size of the largest tensor that any operation returns."""

    entries = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.numel())
        return made


def test_what_is_lost_is_what_is_dropped() -> None:
    problem = logistic(200, n=100)
    lam = usual_lambda(problem.noise, problem.samples) / 10
    best = waterfill(apart(problem.gradients), problem.samples, lam)
    ranked, support = best.sort(1, descending=True).values, int((best > 0).sum(1).max())
    means = []
    for keep in (1, 10, 25, support, 300):
        indices, values = nearest(range(200), problem.gradients, problem.samples, lam, keep)
        assert indices.shape == values.shape == (200, min(keep, 200))
        assert indices[:, 0].tolist() == list(range(200)), "itself first"
        assert torch.allclose(values.sum(1), torch.ones(200).double())
        lost = (dense(indices, values, 200) - best).abs().sum(1) / 2
        assert torch.allclose(lost, ranked[:, keep:].sum(1), atol=1e-12)
        means.append(lost.mean().item())
    assert 25 < support <= 100
    assert means[0] > 0.9
    assert means[:-1] == sorted(means[:-1], reverse=True)
    assert max(means[-2:]) < 1e-12


def test_two_thousand_clients_never_meet_in_one_matrix() -> None:
    clients, chosen = 2000, list(range(0, 2000, 5))
    vectors = normal("many", clients, 61) + 9.0 * (torch.arange(clients) % 40)[:, None]
    samples = torch.full((clients,), 50)
    lam = usual_lambda(torch.full((clients,), 61.0), samples) / 40
    with Largest() as largest:
        indices, values = nearest(chosen, vectors, samples, lam, keep=50)
    assert largest.entries <= 3 * pairs.ENTRIES < clients**2
    assert bool((indices % 40 == torch.tensor(chosen)[:, None] % 40)[values > 0].all())
    assert peers(values).min() > 20
    with Largest() as largest, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ENTRIES", 2**17)
        again = nearest(chosen, vectors, samples, lam, keep=50)
    assert largest.entries <= 3 * 2**17, "smaller blocks take less"
    assert torch.allclose(again[1], values, atol=1e-12)


def test_a_client_is_always_among_its_neighbours() -> None:
    vectors, samples = torch.zeros(6, 2), torch.tensor([1, 9, 9, 9, 9, 0])
    indices, values = nearest([5, 0], vectors, samples, 1.0, keep=2)
    assert indices.tolist() == [[5, 1], [0, 1]]
    assert values.tolist() == [[0, 1], [0.1, 0.9]]
    assert nearest([], vectors, samples, 1.0, keep=2)[0].shape == (0, 2)
    assert dense(indices, values, 6).tolist() == [[0, 1, 0, 0, 0, 0], [0.1, 0.9, 0, 0, 0, 0]]


def test_wrong_rows_are_refused() -> None:
    vectors, samples = torch.zeros(3, 2), torch.ones(3)
    for rows, given_vectors, keep in (([3], vectors, 1), ([-1], vectors, 1), ([0], vectors, 0), ([0], vectors[0], 1)):
        with pytest.raises(ConfigError, match="nearest"):
            nearest(rows, given_vectors, samples, 1.0, keep)


# The rotation schedule.


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Pairs]:
    """Some clients, and pairs of them; a pair may occur several times."""
    clients = draw(st.integers(1, 9))
    ends = st.integers(0, clients - 1)
    found = draw(st.lists(st.tuples(ends, ends), max_size=60))
    models, hosts = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return clients, Pairs(models, hosts)


def degree(pairs: Pairs) -> int:
    """The largest number of pairs of a model or a host, counted one by one."""
    ends = [("model", model) for model in pairs.models] + [("host", host) for host in pairs.hosts]
    return max((ends.count(end) for end in set(ends)), default=0)


@pytest.mark.parametrize("many", [colouring.MANY, 1])
@given(drawn=graphs(), seed=st.integers(0, 10**6))
def test_a_schedule_has_every_pair_once_in_as_few_rounds_as_possible(
    many: int, drawn: tuple[int, Pairs], seed: int
) -> None:
    """``latin`` comes first with 1, as it does for many edges."""
    clients, pairs = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colouring, "MANY", many)
        table = schedule(pairs, clients, fold(key(seed), many))
        schedule(pairs, clients, fold(key(seed), "another"))
        assert np.array_equal(table, schedule(pairs, clients, fold(key(seed), many)))
    assert table.shape == (clients, degree(pairs))
    found = [(int(table[host, at]), int(host)) for host, at in np.argwhere(table >= 0)]
    assert sorted(found) == sorted(zip(pairs.models.tolist(), pairs.hosts.tolist(), strict=True))
    for column in table.T:
        models = column[column >= 0].tolist()
        assert len(set(models)) == len(models), "no model is at two hosts"


@pytest.mark.parametrize("clients", [1, 2, 7, 50])
def test_with_all_weights_positive_rounds_are_a_latin_square(clients: int) -> None:
    table = schedule(Pairs(*np.nonzero(np.ones((clients, clients)))), clients, key(clients))
    assert all(sorted(lane) == list(range(clients)) for lane in (*table.tolist(), *table.T.tolist()))


@pytest.mark.parametrize("sizes", [[150], [100, 60, 1]])
def test_groups_of_clients_that_all_meet_need_no_swaps(sizes: list[int]) -> None:
    """A Latin square per group, with clients in any order: all pairs have a colour at once."""
    who = generator(key(3)).permuted(np.repeat(np.arange(len(sizes)), sizes))
    models, hosts = np.nonzero(who[:, None] == who)
    assert len(models) >= colouring.MANY
    assert colouring.latin(models, hosts, max(sizes), key(1)).min() >= 0
    table = schedule(Pairs(models, hosts), len(who), key(1))
    assert table.shape == (len(who), max(sizes))
    assert all(np.bincount(column[column >= 0]).max() == 1 for column in table.T)


@pytest.mark.parametrize("many", [colouring.MANY, 1])
def test_a_model_visits_its_hosts_in_any_order_with_equal_chance(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts 0 and 1 are wanted by all models, host 2 by model 0 only: it comes first, second and last equally often."""
    monkeypatch.setattr(colouring, "MANY", many)
    pairs, draws = Pairs(np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 0, 1, 0, 1])), 3000
    orders = [tuple(np.argwhere(schedule(pairs, 3, key(seed)).T == 0)[:, 1].tolist()) for seed in range(draws)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert sum((count - draws / 6) ** 2 / (draws / 6) for count in counts) < 20.5, "chi-squared, 5 degrees, 0.1 %"


def test_two_thousand_clients_with_twenty_weights_each() -> None:
    clients, keep = 2_000, 20
    hosts = generator(key(3)).permuted(np.tile(np.arange(clients), (keep, 1)), axis=1).T.reshape(-1)
    pairs = Pairs(np.repeat(np.arange(clients), keep), hosts)
    table = schedule(pairs, clients, key(1))
    assert table.shape == (clients, pairs.most)
    assert pairs.most <= keep + 3, "each host is in twenty permutations, apart from pairs that are drawn twice"
    assert all(np.bincount(column[column >= 0]).max() == 1 for column in table.T)


def largest_matching(table: Table, done: Flags, present: Sequence[int]) -> int:
    """The largest number of hosts with different pending models, by trying all choices."""

    def best(hosts: Sequence[int], taken: frozenset[int]) -> int:
        if not hosts:
            return 0
        mine = {int(model) for model in table[hosts[0]][~done[hosts[0]]] if model >= 0} - taken
        return max([best(hosts[1:], taken), *(1 + best(hosts[1:], taken | {model}) for model in mine)])

    return best(list(present), frozenset())


@given(graphs(), st.integers(0, 10**6))
@settings(max_examples=FEW)
def test_absent_hosts_catch_up_and_as_many_as_possible_train(drawn: tuple[int, Pairs], seed: int) -> None:
    clients, pairs = drawn
    table, rounds = schedule(pairs, clients, key(seed)), 0
    done = np.zeros_like(table, dtype=bool)
    while ((table >= 0) & ~done).any():
        share = int(choice(fold(key(seed), "share", rounds), clients + 1, 1)[0])
        present = choice(fold(key(seed), "present", rounds), clients, share).tolist()
        found = visits(table, done, rounds, present)
        assert set(found) <= set(present)
        assert len(set(found.values())) == len(found), "no model is at two hosts"
        if len(present) < min(clients, 6):
            assert len(found) == largest_matching(table, done, present)
        for host, model in found.items():
            done[host, slot(table, done, rounds, host, model)] = True
        rounds += 1
        assert rounds < 1000
    assert pending(table, done, clients).tolist() == [0] * clients


@given(graphs(), st.integers(0, 10**6))
def test_with_all_present_each_round_is_a_colour(drawn: tuple[int, Pairs], seed: int) -> None:
    clients, pairs = drawn
    table = schedule(pairs, clients, key(seed))
    done = np.zeros_like(table, dtype=bool)
    for turn, column in enumerate(table.T):
        assert visits(table, done, turn, range(clients)) == {h: m for h, m in enumerate(column.tolist()) if m >= 0}
        done[:, turn] = True
    assert visits(table, done, table.shape[1], range(clients)) == {}


@given(graphs(), st.integers(0, 10**6))
def test_a_new_table_within_an_epoch_keeps_what_is_done(drawn: tuple[int, Pairs], seed: int) -> None:
    clients, pairs = drawn
    before, after = (schedule(pairs, clients, fold(key(seed), label)) for label in ("before", "after"))
    done = (generator(key(seed)).random(before.shape) < 0.5) & (before >= 0)
    now = carried(after, before, done)
    assert np.array_equal(pending(after, now, clients), pending(before, done, clients))
    for host in range(clients):
        assert sorted(after[host][now[host]]) == sorted(before[host][done[host]])


def test_wrong_rounds_are_refused() -> None:
    table, done = np.zeros((3, 2), dtype=np.int32), np.zeros((3, 2), dtype=bool)
    for given_table, given_done, present in (
        (table, done[:2], [0]),
        (table[0], done[0], [0]),
        (table, done, [3]),
        (table, done, [1, 1]),
    ):
        with pytest.raises(ConfigError, match="visits"):
            visits(given_table, given_done, 0, present)


@pytest.mark.parametrize("name", ["distances", "schedule", "weights"])
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"gossamer.parts.servers.mixing.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
