"""Splits: what every rule must keep, and what is peculiar to each."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core import specs
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.random import Key, fold, generator, key
from gossamer.tasks import data as gd
from gossamer.tasks.data import (
    SPLITS,
    Data,
    Dirichlet,
    DirichletClient,
    Iid,
    Labels,
    Natural,
    Quantile,
    Samples,
    Shards,
    Slices,
    Split,
)
from gossamer.tasks.data.partition import NOBODY, Index, even, order_of, ranges
from gossamer.tasks.data.partitioners import Rule, draw_until_empty
from gossamer.tasks.data.splits import ranks, strata, top_up
from helpers.narrow import present

Case = tuple[Rule, Data, int, Key]


def made(
    labels: npt.ArrayLike,
    classes: int,
    test: npt.ArrayLike = (),
    groups: Index | None = None,
    test_groups: Index | None = None,
) -> Data:
    """A data set with these labels and inputs that do not matter."""

    def samples(values: npt.ArrayLike, group: Index | None) -> Samples:
        y = np.asarray(values, dtype=np.int64)
        return Samples(torch.zeros(len(y), 1), torch.from_numpy(y), group)

    return Data("made", samples(labels, groups), samples(test, test_groups), classes, "iid", "logistic")


def balanced(classes: int, each: int, test_each: int = 20) -> Data:
    return made(np.arange(classes * each) % classes, classes, np.arange(classes * test_each) % classes)


def dealt(split: Split, labels: Index, classes: int) -> list[tuple[int, ...]]:
    """The set of labels of each client."""
    return [tuple(np.flatnonzero(row)) for row in split.counts(labels, classes)]


RULES: dict[str, Callable[[int, int], Rule]] = {
    "dirichlet": lambda least, k: Dirichlet(0.1 * k, least),
    "dirichlet-tiny": lambda least, k: Dirichlet(1e-4, least),
    "dirichlet-client": lambda least, k: DirichletClient(0.1 * k, least),
    "dirichlet-client-tiny": lambda least, k: DirichletClient(1e-4, least),
    "iid": lambda least, k: Iid(least),
    "labels": lambda least, k: Labels(k, least),
    "shards": lambda least, k: Shards(k, least),
    "slices": lambda least, k: Slices(k, least),
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A small data set, often lopsided or with classes missing, with a rule and a number of clients that fit it."""
    classes = draw(st.integers(1, 6))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=60))
    clients = draw(st.integers(1, min(len(labels), 12)))
    least = draw(st.integers(1, len(labels) // clients))
    rule = RULES[draw(st.sampled_from(sorted(RULES)))](least, draw(st.integers(1, classes)))
    test = draw(st.lists(st.integers(0, classes - 1), max_size=30))
    return rule, made(labels, classes, test), clients, key(draw(st.integers(0, 2**32)))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_every_split_ends_deals_no_sample_twice_and_gives_every_client_its_least(case: Case) -> None:
    rule, data, clients, seed = case
    split = gd.split(rule, data, clients, seed)
    assert split.clients == clients
    assert len(np.unique(split.train_index)) == len(split.train_index)
    assert split.sizes().min() >= rule.min_samples
    assert split.unused(len(data.train)) == len(data.train) - len(split.train_index)
    assert all((np.diff(split.train(c)) > 0).all() and (np.diff(split.test(c)) > 0).all() for c in range(clients))
    assert split == gd.split(rule, data, clients, seed)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_rules_that_promise_it_use_every_sample_and_give_equal_sizes(case: Case) -> None:
    rule, data, clients, seed = case
    split = gd.split(rule, data, clients, seed)
    if not isinstance(rule, Labels | Shards):
        assert sorted(split.train_index) == list(range(len(data.train)))
    if isinstance(rule, Iid | DirichletClient):
        assert np.ptp(split.sizes()) <= 1


@settings(max_examples=200, deadline=None)
@given(cases())
def test_personal_tests_follow_label_shares_by_largest_remainder(case: Case) -> None:
    rule, data, clients, seed = case
    split = gd.split(rule, data, clients, seed)
    train, test = data.train.labels, data.test.labels
    supply = np.bincount(test, minlength=data.classes)
    for client in range(clients):
        count = np.bincount(train[split.train(client)], minlength=data.classes)
        quota = len(test) * count.sum() / len(train)
        wanted = min(max(int(np.floor(quota + 0.5)), min(10, len(test))), len(test))
        share = [divmod(int(c) * wanted, int(count.sum())) for c in count]
        up = sorted(range(data.classes), key=lambda c: (-share[c][1], c))[: wanted - sum(s for s, _ in share)]
        expected = [min(share[c][0] + (c in up), supply[c]) for c in range(data.classes)]
        assert list(np.bincount(test[split.test(client)], minlength=data.classes)) == expected


@pytest.mark.parametrize("rule", [Iid(), Dirichlet(0.3), DirichletClient(0.3), Labels(3), Shards(3)], ids=str)
def test_another_key_gives_another_split(rule: Rule) -> None:
    data = balanced(10, 30)
    one, two = (gd.split(rule, data, 10, key(seed)) for seed in (1, 2))
    assert one != two
    assert one.digest() != two.digest()


def test_slices_are_the_same_for_every_key() -> None:
    data = balanced(10, 30)
    one, two = (gd.split(Slices(2), data, 10, key(seed)) for seed in (1, 2))
    assert np.array_equal(one.train_index, two.train_index)


# Dirichlet over clients (FedMRN, NIID-Bench)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.3, 10.0])
def test_dirichlet_gives_nothing_more_to_a_client_at_the_cap(alpha: float) -> None:
    labels = np.arange(2000) % 10
    owner = Dirichlet(alpha).deal(labels, 10, 20, key(3), None)
    for client in range(20):
        count = np.bincount(labels[owner == client], minlength=10)
        held = np.flatnonzero(count)
        assert len(held) == 0 or count[: held[-1]].sum() < 2000 / 20


def test_dirichlet_is_uneven_for_small_alpha_and_even_for_large() -> None:
    data = balanced(10, 400)
    spread = {a: np.std(gd.split(Dirichlet(a), data, 20, key(0)).counts(data.train.labels, 10)) for a in (0.1, 1, 1e4)}
    assert spread[0.1] > 2 * spread[1] > 4 * spread[1e4]
    assert np.ptp(gd.split(Dirichlet(np.inf), data, 20, key(0)).sizes()) <= 20


def test_dirichlet_draws_again_until_every_client_has_its_least() -> None:
    labels = np.arange(1000) % 10
    sizes = [np.bincount(Dirichlet(0.5, 30).deal(labels, 10, 10, key(s), None), minlength=10).min() for s in range(20)]
    alone = [np.bincount(Dirichlet(0.5, 1).deal(labels, 10, 10, key(s), None), minlength=10).min() for s in range(20)]
    assert min(sizes) >= 30 > min(alone)


def test_dirichlet_gives_up_redrawing_and_moves_samples() -> None:
    data = balanced(2, 50)
    assert list(gd.split(Dirichlet(0.01, min_samples=10), data, 10, key(0)).sizes()) == [10] * 10


# Dirichlet over classes (FedSpa, DisPFL)


def exact_law(turns: list[int], prior: npt.NDArray[np.float64], left: list[int]) -> dict[tuple[int, ...], float]:
    """Probability of each sequence of classes when turns are taken one by one."""
    if not turns:
        return {(): 1.0}
    mass = np.where(np.array(left) > 0, prior[turns[0]], 0.0)
    law: dict[tuple[int, ...], float] = {}
    for label in np.flatnonzero(mass):
        rest = list(left)
        rest[label] -= 1
        for tail, chance in exact_law(turns[1:], prior, rest).items():
            law[(int(label), *tail)] = mass[label] / mass.sum() * chance
    return law


def test_drawing_in_passes_has_the_law_of_drawing_one_by_one() -> None:
    prior = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.1, 0.3, 0.6]])
    turns, left, draws = [0, 1, 2, 1, 0], [2, 1, 2], 6000
    random = generator(key(5))
    seen = Counter(tuple(draw_until_empty(np.array(turns), prior, np.array(left), random)) for _ in range(draws))
    law = exact_law(turns, prior, left)
    assert set(seen) <= set(law)
    assert sum(abs(seen[s] / draws - law[s]) for s in law) / 2 < 0.03


def test_a_client_whose_classes_have_run_out_takes_what_is_left() -> None:
    prior = np.array([[1.0, 0.0], [1.0, 0.0]])
    drawn = draw_until_empty(np.array([0, 1, 0, 1]), prior, np.array([1, 3]), generator(key(0)))
    assert list(drawn) == [0, 1, 1, 1]


def test_dirichlet_client_makes_shares_uneven_and_sizes_even() -> None:
    data = balanced(10, 1000)
    split = gd.split(DirichletClient(0.1), data, 100, key(0))
    top = split.counts(data.train.labels, 10).max(axis=1) / 100
    assert set(split.sizes()) == {100}
    assert top.mean() > 0.5
    even_split = gd.split(DirichletClient(1e4), data, 100, key(0))
    assert (even_split.counts(data.train.labels, 10).max(axis=1) / 100).mean() < 0.25


# Labels (FedMRN), shards (FedRolex), slices (FedTorch)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.data())
def test_labels_takes_the_least_used_labels_lower_first(classes: int, more: st.DataObject) -> None:
    k, clients = more.draw(st.integers(1, classes)), more.draw(st.integers(1, 20))
    usage, expected = np.zeros(classes, dtype=int), []
    for _ in range(clients):
        mine = np.argsort(usage, kind="stable")[:k]
        usage[mine] += 1
        expected.append(tuple(sorted(mine)))
    data = balanced(classes, 20)
    assert dealt(gd.split(Labels(k), data, clients, key(1)), data.train.labels, classes) == expected


def test_labels_3_of_10_repeats_every_ten_clients_and_uses_labels_equally() -> None:
    data = balanced(10, 300)
    split = gd.split(Labels(3), data, 100, key(0))
    held = dealt(split, data.train.labels, 10)
    assert held == held[:10] * 10
    assert len(set(held)) == 10
    assert set(Counter(label for labels in held for label in labels).values()) == {30}
    assert set(split.sizes()) == {30}


def test_labels_20_of_100_makes_five_groups_of_twenty_clients() -> None:
    data = balanced(100, 40)
    held = Counter(dealt(gd.split(Labels(20), data, 100, key(0)), data.train.labels, 100))
    assert held == {tuple(range(start, start + 20)): 20 for start in range(0, 100, 20)}


def test_labels_without_holder_stay_unused() -> None:
    data = balanced(10, 30)
    split = gd.split(Labels(2), data, 3, key(0))
    assert split.unused(300) == 120
    assert split.counts(data.train.labels, 10)[:, 6:].sum() == 0


def test_shards_deal_k_at_most_and_drop_a_label_drawn_twice() -> None:
    data = balanced(10, 200)
    split = gd.split(Shards(2), data, 50, key(0))
    counts = split.counts(data.train.labels, 10)
    assert set(np.unique(counts)) == {0, 20}
    per_client = (counts > 0).sum(axis=1)
    assert set(per_client) == {1, 2}
    assert split.unused(2000) == 20 * (100 - per_client.sum())
    assert ((counts > 0).sum(axis=0) <= 10).all()


def test_slices_are_contiguous_and_repeat() -> None:
    data = balanced(10, 100)
    split = gd.split(Slices(2), data, 50, key(0))
    assert dealt(split, data.train.labels, 10) == [(c // 10, 5 + c // 10) for c in range(50)]
    assert split.unused(1000) == 0


# Natural owners


def owned(sizes: list[int], test_sizes: list[int] | None = None) -> Data:
    groups = np.repeat(np.arange(len(sizes)) * 7, sizes)
    test = None if test_sizes is None else np.repeat(np.arange(len(test_sizes)) * 7, test_sizes)
    n, t = len(groups), 0 if test is None else len(test)
    order = generator(key(9)).permutation(n)
    return made(np.arange(n) % 2, 2, np.arange(t) % 2, groups[order], test)


def test_natural_owners_become_clients_with_their_own_tests() -> None:
    data = owned([4, 6, 5], [2, 0, 3])
    split = gd.split(Natural(), data, 3, key(0))
    for client, owner in enumerate((0, 7, 14)):
        assert list(split.train(client)) == list(np.flatnonzero(data.train.group == owner))
        assert list(split.test(client)) == list(np.flatnonzero(data.test.group == owner))


def test_fewer_clients_than_owners_are_chosen_by_key_and_small_owners_passed_over() -> None:
    data = owned([4, 1, 6, 5, 1, 8, 9], [1] * 7)
    chosen = set()
    for seed in range(20):
        split = gd.split(Natural(min_samples=2), data, 3, key(seed))
        owners = [set(present(data.train.group)[split.train(c)]) for c in range(3)]
        assert all(len(owner) == 1 for owner in owners)
        assert all(set(present(data.test.group)[split.test(c)]) == owners[c] for c in range(3))
        chosen |= {owner.pop() for owner in owners}
    assert chosen == {0, 14, 21, 35, 42}


def test_natural_owners_without_owned_tests_draw_by_label_share() -> None:
    data = replace(owned([30, 40]), test=made([], 2, np.arange(40) % 2).test)
    assert list(np.diff(gd.split(Natural(), data, 2, key(0)).test_start)) == [17, 23]


# The smallest client


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(0, 10), st.data())
def test_top_up_takes_one_by_one_from_the_largest(sizes: list[int], unused: int, more: st.DataObject) -> None:
    clients, total = len(sizes), sum(sizes) + unused
    least = more.draw(st.integers(0, total // clients))
    owner = np.repeat(np.append(np.arange(clients), NOBODY), [*sizes, unused])
    moved = top_up(owner, clients, least, key(0))
    expected, spare = list(sizes), max(0, clients * least - sum(sizes))
    for _ in range(sum(max(least - s, 0) for s in sizes) - spare):
        expected[expected.index(max(expected))] -= 1
    expected = [max(e, least) for e in expected]
    assert list(np.bincount(moved[moved >= 0], minlength=clients)) == expected
    assert np.count_nonzero(moved == NOBODY) == unused - spare


# Personal test sets


def test_personal_tests_differ_between_clients_and_cover_the_test_set() -> None:
    data = balanced(10, 500, test_each=50)
    split = gd.split(Iid(), data, 50, key(0))
    assert len({split.test(c).tobytes() for c in range(50)}) > 40
    assert len(np.unique(split.test_index)) > 300


def test_personal_tests_take_all_there_is_when_all_is_asked() -> None:
    data = balanced(4, 30, test_each=10)
    assert list(gd.split(Iid(), data, 1, key(0)).test(0)) == list(range(40))


# The value


def test_a_split_survives_being_stored() -> None:
    split = gd.split(Dirichlet(0.3), balanced(10, 30), 7, key(0))
    again = Split.from_tensors(split.tensors())
    assert again == split
    assert hash(again) == hash(split)
    assert again.digest() == split.digest()
    assert split != "a split"


def test_equal_arrays_cut_elsewhere_are_another_split() -> None:
    split = gd.split(Iid(), balanced(10, 30), 7, key(0))
    start = split.train_start.copy()
    start[1] += 1
    assert replace(split, train_start=start) != split


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.pop("test_index"),
        lambda t: t.update(train_index=t["train_index"].float()),
        lambda t: t.update(train_index=t["train_index"][:-1]),
        lambda t: t.update(train_index=-1 - t["train_index"]),
        lambda t: t.update(train_start=t["train_start"].flip(0)),
        lambda t: t.update(test_start=t["test_start"][[0, -1]]),
    ],
)
def test_a_damaged_split_is_refused(damage: Callable[[dict[str, Tensor]], object]) -> None:
    stored = gd.split(Iid(), balanced(2, 30), 3, key(0)).tensors()
    damage(stored)
    with pytest.raises(RunError, match="stored split is damaged"):
        Split.from_tensors(stored)


def test_pooled_is_one_client_with_all_that_is_used() -> None:
    data = balanced(10, 30)
    split = gd.split(Shards(2), data, 20, key(0))
    pooled = split.pooled(len(data.test))
    assert pooled.clients == 1
    assert list(pooled.train(0)) == sorted(split.train_index)
    assert list(pooled.test(0)) == list(range(len(data.test)))


def test_small_helpers() -> None:
    assert list(even(7, 3)) == [3, 2, 2]
    assert list(ranges(np.array([2, 0, 3]))) == [0, 1, 0, 1, 2]
    keys = generator(key(1)).integers(-1, 5, 100)
    assert list(order_of(keys)) == list(np.argsort(keys, kind="stable"))
    assert len(order_of(np.zeros(0, dtype=np.int64))) == 0


# Specs and errors


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("iid", Iid()),
        ("dirichlet:0.3,min_samples=10", Dirichlet(0.3, min_samples=10)),
        ("dirichlet-client:0.1", DirichletClient(0.1)),
        ("labels:3", Labels(3)),
        ("shards:2", Shards(2)),
        ("slices:2", Slices(2)),
        ("natural:min_samples=5", Natural(5)),
    ],
)
def test_specs_read_and_write(text: str, rule: Rule) -> None:
    assert specs.parse(text, SPLITS, "split") == rule
    assert specs.parse(specs.spec(rule, SPLITS), SPLITS, "split") == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet:-1", r"alpha must be a positive number, got -1.0$"),
        ("dirichlet-client:nan", r"alpha must be a positive number, got nan"),
        ("labels:0", r"k must be at least 1, got 0"),
        ("slices:0,min_samples=0", r"(?s)k must be at least 1.*min_samples must be at least 1, got 0"),
        ("dirchlet:1", r"did you mean dirichlet\?"),
        ("labels", r"labels:K"),
    ],
)
def test_wrong_specs_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        specs.parse(text, SPLITS, "split")


@pytest.mark.parametrize(
    ("rule", "clients", "message"),
    [
        (Labels(11), 5, r"Labels.k must be at most the number of classes, 10, got 11"),
        (Shards(11), 5, r"Shards.k must be at most the number of classes, 10, got 11"),
        (Iid(min_samples=7), 50, r"50 clients with 7 samples or more need 350 samples, made has 300"),
        (Iid(), 0, r"clients must be >= 1, got 0"),
        (Natural(), 5, r"no natural owners"),
    ],
)
def test_what_cannot_be_split_is_refused(rule: Rule, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gd.split(rule, balanced(10, 30), clients, key(0))


def test_more_clients_than_owners_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"4 clients need 4 owners, the data has 3 owners with 1 samples or more; lower"
    ):
        gd.split(Natural(), owned([4, 6, 5]), 4, key(0))


# The picture


@pytest.mark.parametrize("clients", [1, 7, 60, 450])
def test_the_picture_is_drawn_for_few_and_many_clients(clients: int, tmp_path: Path) -> None:
    data = balanced(10, 200)
    split = gd.split(Dirichlet(0.3), data, clients, key(0))
    path = gd.draw(split, data, tmp_path / "split.png", spec="dirichlet:0.3")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_table_counts() -> None:
    data = balanced(10, 30)
    numbers = gd.table(gd.split(Labels(2), data, 3, key(0)), data)
    assert numbers == {
        "clients": 3,
        "samples": 180,
        "unused": 120,
        "smallest": 60,
        "median": 60.0,
        "largest": 60,
        "labels_per_client": 2.0,
        "tests_per_client": 40.0,
    }


def test_the_keys_of_a_split_are_independent() -> None:
    """A longer test set changes nothing for training."""
    data = balanced(10, 30)
    longer = replace(data, test=balanced(10, 1, test_each=40).test)
    one, two = (gd.split(Dirichlet(0.3), d, 5, fold(key(0), "split")) for d in (data, longer))
    assert np.array_equal(one.train_index, two.train_index)


# Numbers instead of classes.


def numbers(values: npt.ArrayLike, test: npt.ArrayLike = ()) -> Data:
    """A data set with these targets and inputs that do not matter."""
    both = [torch.as_tensor(np.asarray(y, dtype=np.float64)) for y in (values, test)]
    train, held = (Samples(torch.zeros(len(y), 1), y) for y in both)
    return Data("numbers", train, held, 0, "iid", "linear", loss="mse")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=80), st.integers(1, 6), st.integers(1, 4), st.integers(0, 9))
def test_quantile_gives_every_client_k_runs_of_neighbouring_targets(
    values: list[int], clients: int, k: int, seed: int
) -> None:
    clients = min(clients, len(values))
    rule, data = Quantile(k), numbers(values, values)
    owner = rule.deal(ranks(data, 0), 0, clients, key(seed), None)
    sizes = np.bincount(owner, minlength=clients)
    assert len(sizes) == clients
    assert sizes.max() - sizes.min() <= k
    # Sorted by target, with equal targets in the best order, owners change at most k N - 1 times.
    by_value = [sorted(owner[np.array(values) == value].tolist()) for value in sorted(set(values))]
    if max(map(len, by_value)) == 1:
        order = [held for (held,) in by_value]
        assert sum(a != b for a, b in pairwise(order)) <= k * clients - 1
    split = gd.split(rule, data, clients, key(seed))
    assert sorted(split.train_index) == list(range(len(values)))


def test_quantile_1_cuts_the_targets_into_ranges_and_tests_come_from_the_same_range() -> None:
    values = permutation_of(200)
    split = gd.split(Quantile(1), numbers(values, values), 10, key(0))
    trained = sorted((values[split.train(c)].min(), values[split.train(c)].max()) for c in range(10))
    assert trained == [(20 * c, 20 * c + 19) for c in range(10)]
    for client in range(10):
        low, high = values[split.train(client)].min(), values[split.train(client)].max()
        assert all(low - 1 <= value <= high + 1 for value in values[split.test(client)])
        assert len(split.test(client)) == 20


def test_larger_k_is_closer_to_iid() -> None:
    values = permutation_of(400)

    def spread(k: int) -> float:
        split = gd.split(Quantile(k), numbers(values), 10, key(0))
        return float(np.std([values[split.train(c)].mean() for c in range(10)]))

    assert spread(1) > spread(4) > spread(40)


def permutation_of(n: int) -> npt.NDArray[np.float64]:
    return generator(key(3)).permutation(n).astype(np.float64)


def test_quantile_orders_by_the_chosen_number_and_works_with_classes() -> None:
    pairs = np.stack([np.zeros(40), np.arange(40)], 1)
    split = gd.split(Quantile(1, column=1), numbers(pairs, pairs), 4, key(0))
    assert sorted(split.train(c).tolist() for c in range(4)) == [list(range(10 * c, 10 * c + 10)) for c in range(4)]
    with pytest.raises(ConfigError, match="column must be from 0 to 1, got 2"):
        gd.split(Quantile(1, column=2), numbers(pairs, pairs), 4, key(0))
    sorted_by_class = gd.split(Quantile(1), balanced(4, 10), 4, key(0))
    assert sorted(np.unique(np.arange(40)[sorted_by_class.train(c)] % 4).tolist() for c in range(4)) == [
        [0],
        [1],
        [2],
        [3],
    ]


@pytest.mark.parametrize("name", [name for name, rule in SPLITS.items() if rule.reads == "classes"])
def test_splits_that_need_classes_refuse_numbers_and_say_which_work(name: str) -> None:
    rule = specs.parse(f"{name}:1", SPLITS, "split")
    with pytest.raises(ConfigError, match=f"split {name} needs classes, .* numbers .* use iid, natural, quantile"):
        gd.split(rule, numbers(range(20), range(20)), 4, key(0))


def test_other_splits_serve_numbers_and_their_tests_follow_the_quantiles_of_the_target() -> None:
    values = permutation_of(300)
    data = numbers(values, values)
    split = gd.split(Iid(), data, 3, key(0))
    parts = strata(data)
    assert np.bincount(parts.train).tolist() == [30] * 10
    for client in range(3):
        mine, tested = (np.bincount(parts.train[at], minlength=10) for at in (split.train(client), split.test(client)))
        assert np.abs(mine - tested).max() <= 1
    assert gd.table(split, data)["quantiles_per_client"] == 10


def test_the_picture_of_numbers_is_drawn(tmp_path: Path) -> None:
    data = numbers(range(40), range(40))
    assert gd.draw(gd.split(Quantile(1), data, 4, key(0)), data, tmp_path / "split.png").stat().st_size > 0
