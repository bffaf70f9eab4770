"""Data sets: shapes, held-out sets, and the facts of the generated ones."""

import dataclasses
import inspect
import itertools
import re
import subprocess
import sys
import typing
from typing import Any, cast

import numpy as np
import pytest
import torch

from gossamer import Task, fedavg, simulate
from gossamer.core import specs
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks import data as gd
from gossamer.tasks import nets
from gossamer.tasks.data import DATASETS, SPLITS, Samples, datasets, image_sets
from gossamer.tasks.data.datasets import DIMENSIONS, hold_out, two_populations
from gossamer.tasks.data.image_sets import ImageSet
from helpers.narrow import present
from helpers.paths import ROOT

DOCS = ROOT / "docs/data.md"
GENERATED = ("digits", "two-populations", "two-populations-literal")


@pytest.mark.parametrize("name", GENERATED)
def test_data_without_files_comes_with_a_split_and_a_model_that_fit(name: str) -> None:
    data = gd.load(name, clients=6, key=key(1))
    assert data.name == name
    assert data.train.x.dtype == torch.float32
    assert data.train.y.dtype == torch.int64
    assert 0 <= int(data.train.y.min()) <= int(data.train.y.max()) < data.classes
    split = gd.split(specs.parse(data.split, SPLITS, "split"), data, 6, key(2))
    assert split.clients == 6
    assert np.diff(split.test_start).min() > 0
    assert nets.build(data.model, data.shape, data.classes)(data.train.x[:3]).shape == (3, data.classes)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_a_docstring_and_is_in_the_table(name: str) -> None:
    assert inspect.getdoc(DATASETS[name])
    (row,) = re.findall(rf"^\| `{name}` \|.*$", DOCS.read_text().partition("## Files")[0], re.M)
    for option in dataclasses.fields(cast(Any, DATASETS[name])):
        assert f"`{option.name}=" in row
        for choice in typing.get_args(typing.get_type_hints(DATASETS[name])[option.name]):
            assert f"`{option.name}={choice}`" in row


@pytest.mark.parametrize("image_set", [value for value in vars(image_sets).values() if isinstance(value, ImageSet)])
def test_every_normalization_is_in_the_table(image_set: ImageSet) -> None:
    table = DOCS.read_text().partition("## Normalization")[2].partition("## Augmentation")[0]
    lines = table.partition(f"| `{image_set.name}` |")[2].split("\n")
    rows = [lines[0], *itertools.takewhile(lambda line: line.startswith("| |"), lines[1:])]
    assert len(rows) == len(image_set.norms)
    for row, (train, test) in zip(rows, image_set.norms.values(), strict=True):
        for ours, theirs, cell in zip(train, test, row.rstrip(" |").split(" | ")[-2:], strict=True):
            numbers = [float(word) for word in re.findall(r"[\d.]+", cell)]
            assert numbers == [*ours, *(theirs if theirs != ours else ())]


def test_digits_are_images_between_zero_and_one_with_a_fifth_of_each_class_held_out() -> None:
    data = gd.load("digits", key=key(0))
    assert data.shape == (1, 8, 8)
    assert len(data.train) + len(data.test) == 1797
    assert (float(data.train.x.min()), float(data.train.x.max())) == (0.0, 1.0)
    held, all_ = (np.bincount(np.concatenate(y), minlength=10) for y in ([data.test.y], [data.train.y, data.test.y]))
    assert (np.abs(held - all_ / 5) <= 0.5).all()


def test_digits_do_not_depend_on_the_seed() -> None:
    one, two = (gd.load("digits", key=key(seed), clients=seed + 1) for seed in (0, 1))
    assert one.digest() == two.digest()


def test_the_digest_depends_on_inputs_labels_owners_and_shapes() -> None:
    def digest(**changes: Any) -> str:
        train: dict[str, Any] = {
            "x": torch.zeros(4, 2),
            "y": torch.zeros(4, dtype=torch.int64),
            "group": None,
            **changes,
        }
        return gd.Data("made", Samples(**train), Samples(torch.zeros(0, 2), torch.zeros(0)), 2, "iid", "mlp").digest()

    others: list[dict[str, Any]] = [
        {"x": torch.ones(4, 2)},
        {"x": torch.zeros(4, 2, 1)},
        {"y": torch.arange(4)},
        {"group": np.zeros(4, int)},
    ]
    assert len({digest(), *(digest(**other) for other in others)}) == 5
    assert digest() == digest()


def test_taking_samples_keeps_owners() -> None:
    samples = Samples(torch.arange(4.0)[:, None], torch.arange(4), np.array([5, 6, 7, 8]))
    taken = samples.take(np.array([3, 1]))
    assert len(taken) == 2
    assert (taken.x.flatten().tolist(), taken.y.tolist(), present(taken.group).tolist()) == ([3, 1], [3, 1], [8, 6])


def test_hold_out_is_stratified_and_complete() -> None:
    labels = np.repeat([0, 1, 2], [10, 50, 5])
    train, test = hold_out(labels, 0.2, key(0))
    assert sorted([*train, *test]) == list(range(65))
    assert list(np.bincount(labels[test])) == [2, 10, 1]


def test_an_unknown_data_set_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"unknown data set 'digit': did you mean digits\?"):
        gd.load("digit", key=key(0))
    with pytest.raises(ConfigError, match="clients must be >= 1, got 0"):
        gd.load("two-populations", clients=0, key=key(0))


def test_more_samples_than_memory_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "two_populations", lambda *given, **more: pytest.fail("samples were made"))
    for name in ("two-populations", "two-populations-literal"):
        with pytest.raises(ConfigError, match=r"take 12\.0 GB for 100,000 clients: use at most 20,000 clients"):
            gd.load(name, clients=100_000, key=key(0))


def test_importing_needs_torch_and_numpy_alone() -> None:
    heavy = {"sklearn", "scipy", "matplotlib", "pooch"}
    check = f"import sys, gossamer.tasks.data, gossamer.tasks.nets; sys.exit({heavy} & set(sys.modules) and 1 or 0)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


# Two populations (PERM)


@pytest.mark.parametrize("name", ["two-populations", "two-populations-literal"])
def test_two_populations_are_400_and_100_samples_per_client(name: str) -> None:
    data = gd.load(name, clients=5, key=key(0))
    assert data.shape == (60,)
    assert list(np.bincount(present(data.train.group))) == [400] * 5
    assert list(np.bincount(present(data.test.group))) == [100] * 5
    assert data.digest() == gd.load(name, clients=5, key=key(0)).digest()
    assert data.digest() != gd.load(name, clients=5, key=key(1)).digest()


def test_inputs_have_the_mean_and_spread_of_their_population() -> None:
    drawn = two_populations(40, key(0))
    first = drawn.x[drawn.client < 20]
    second = drawn.x[drawn.client >= 20]
    assert np.abs(first.mean(axis=0) - 0.2).max() < 0.05
    assert np.abs(second.mean(axis=0) + 0.2).max() < 0.05
    assert np.allclose(first.var(axis=0), np.arange(1.0, DIMENSIONS + 1) ** -1.2, rtol=0.1)


def test_the_halves_label_in_opposite_ways_and_the_first_half_has_the_odd_client() -> None:
    drawn = two_populations(5, key(0))
    agrees = drawn.y == (drawn.x.astype(float) @ drawn.direction >= 0)
    assert agrees[drawn.client < 3].all()
    assert not agrees[drawn.client >= 3].any()


def test_one_client_belongs_to_the_first_population() -> None:
    assert two_populations(1, key(0)).x.mean() > 0


def test_balanced_labels_are_even_and_literal_ones_often_are_not() -> None:
    def positives(seed: int, balanced: bool) -> list[float]:
        drawn = two_populations(20, key(seed), balanced=balanced)
        return [drawn.y[drawn.client < 10].mean(), drawn.y[drawn.client >= 10].mean()]

    even, literal = (np.array([positives(seed, b) for seed in range(30)]) for b in (True, False))
    assert np.abs(even - 0.5).max() < 0.03
    assert np.abs(literal - 0.5).max() > 0.3
    # The trap: mean and labels flip together, so both halves share the majority class.
    assert (np.sign(literal[:, 0] - 0.5) == np.sign(literal[:, 1] - 0.5)).mean() > 0.9


def test_balancing_removes_the_mean_of_the_direction_alone() -> None:
    even, literal = (two_populations(2, key(4), balanced=b) for b in (True, False))
    assert abs(even.direction.sum()) < 1e-12
    assert np.allclose(literal.direction - literal.direction.mean(), even.direction)
    assert np.array_equal(even.x, literal.x)


def test_direction_is_drawn_around_a_tenth() -> None:
    means = [two_populations(1, key(seed), balanced=False, samples=1).direction.mean() for seed in range(300)]
    assert np.mean(means) == pytest.approx(0.1, abs=0.03)


# Tables of scikit-learn.


@pytest.mark.parametrize(
    ("name", "train", "test", "targets", "outputs"),
    [("diabetes", 354, 88, (), 1), ("breast-cancer", 455, 114, (), 1), ("linnerud", 16, 4, (3,), 3)],
)
def test_tables_are_standardised_and_have_a_model_and_a_split_that_fit(
    name: str, train: int, test: int, targets: tuple[int, ...], outputs: int
) -> None:
    data = gd.load(name, key=key(1))
    assert data.digest() == gd.load(name, key=key(2)).digest(), "the test set does not depend on the run's seed"
    assert (len(data.train), len(data.test), data.train.y.shape[1:], data.outputs) == (train, test, targets, outputs)
    columns = [data.train.x] if data.classes else [data.train.x, data.train.y]
    for column in columns:
        assert column.dtype == torch.float32
        torch.testing.assert_close(column.mean(0), torch.zeros(column.shape[1:]), atol=1e-5, rtol=0)
        torch.testing.assert_close(column.std(0, correction=0), torch.ones(column.shape[1:]))
    split = gd.split(specs.parse(data.split, SPLITS, "split"), data, 6, key(2))
    assert np.diff(split.test_start).min() > 0
    for model in ("linear", "mlp"):
        assert nets.build(model, data.shape, data.outputs)(data.train.x[:3]).shape == (3, outputs)


def test_fedavg_learns_the_tables_and_beats_what_needs_no_features() -> None:
    diabetes = Task.named("diabetes", clients=10)
    learned = simulate(fedavg(), diabetes, rounds=5, executor="one-by-one")
    mean = diabetes.data.test.y.square().mean().sqrt().item()  # the mean of the training targets is 0
    assert learned.score < 0.85 * mean
    tumours = simulate(fedavg(), Task.named("breast-cancer", clients=10), rounds=5, executor="one-by-one")
    assert tumours.accuracy > 0.9
    assert tumours.metric("auroc") > 0.95
