"""From a partition rule and a data set to a split: assign owners, fill up small clients, draw personal test sets.

Every client gets at least ``rule.min_samples`` training samples: missing ones are moved from the largest clients. A
client's test set is that of its natural owner, or a draw from the test set with the client's label distribution. If
targets are numbers, quantiles of the target take the place of labels. The order of training samples is not part of a
split.
"""

import numpy as np

from gossamer.core.errors import ConfigError, require
from gossamer.core.random import Key, fold, generator, permutation
from gossamer.tasks.data.partition import NOBODY, Index, Split, grouped, offsets, order_of, ranges
from gossamer.tasks.data.partitioners import SPLITS, Natural, Quantile, Rule, shuffled_by_class
from gossamer.tasks.data.samples import Data
from gossamer.tasks.data.strata import Strata, ranks, strata

SMALLEST_TEST = 10


def split(rule: Rule, data: Data, clients: int, key: Key) -> Split:
    """Split ``data`` over ``clients`` clients, with the random key ``key``."""
    n = len(data.train)
    require(
        (clients >= 1, f"clients must be >= 1, got {clients}"),
        (
            clients * rule.min_samples <= n,
            f"{clients} clients with {rule.min_samples} samples or more need {clients * rule.min_samples} samples, "
            f"{data.name} has {n}: lower clients or min_samples",
        ),
    )
    owner = rule.deal(_labels(rule, data), data.classes, clients, fold(key, "deal"), data.train.group)
    owner = top_up(owner, clients, rule.min_samples, fold(key, "top-up"))
    train = grouped(owner, clients)
    if isinstance(rule, Natural) and data.train.group is not None and data.test.group is not None:
        return Split(*train, *_own_tests(data.train.group[train[0][train[1][:-1]]], data.test.group))
    groups = strata(data, rule.column if isinstance(rule, Quantile) else 0)
    return Split(*train, *drawn_tests(*train, groups, fold(key, "test")))


def _labels(rule: Rule, data: Data) -> Index:
    """Return what a rule reads of the targets; refuse a rule that needs classes where there are none."""
    if rule.reads == "targets":
        return ranks(data, rule.column if isinstance(rule, Quantile) else 0)
    if data.classes:
        return data.train.labels
    if rule.reads == "classes":
        name = next((name for name, known in SPLITS.items() if type(rule) is known), type(rule).__name__)
        others = ", ".join(name for name, known in SPLITS.items() if known.reads != "classes")
        raise ConfigError(f"split {name} needs classes, but the targets of {data.name} are not classes: use {others}")
    return np.zeros(len(data.train), dtype=np.int64)


def top_up(owner: Index, clients: int, min_samples: int, key: Key) -> Index:
    """Move random samples from the largest clients until every client has ``min_samples``.

    Samples without an owner are used only if the clients' samples do not suffice.
    """
    held = np.where(owner == NOBODY, clients, owner)
    sizes = np.bincount(held, minlength=clients + 1)
    need = np.maximum(min_samples - sizes[:-1], 0)
    if not need.any():
        return owner
    spare = max(0, clients * min_samples - int(sizes[:-1].sum()))
    give = np.append(_from_the_largest(sizes[:-1], int(need.sum()) - spare), spare)
    order = permutation(fold(key, "order"), len(owner))
    order = order[order_of(held[order])]
    moved = order[ranges(sizes) < np.repeat(give, sizes)]
    owner = owner.copy()
    owner[moved[permutation(fold(key, "move"), len(moved))]] = np.repeat(np.arange(clients), need)
    return owner


def _from_the_largest(sizes: Index, total: int) -> Index:
    """Return how many each client gives if ``total`` are taken one by one from the largest, the first among equals."""
    low, high = 0, int(sizes.max())
    while low < high:  # the lowest level to which all larger clients can be reduced
        middle = (low + high) // 2
        if np.maximum(sizes - middle, 0).sum() <= total:
            high = middle
        else:
            low = middle + 1
    give = np.maximum(sizes - low, 0)
    give[np.flatnonzero(sizes >= low)[: total - int(give.sum())]] += 1
    return give


def _own_tests(names: Index, groups: Index) -> tuple[Index, Index]:
    """Return the test samples of each client's natural owner; ``names`` are ascending. An owner may have none."""
    client = np.minimum(np.searchsorted(names, groups), len(names) - 1)
    return grouped(np.where(names[client] == groups, client, NOBODY), len(names))


def drawn_tests(train_index: Index, train_start: Index, groups: Strata, key: Key) -> tuple[Index, Index]:
    """Draw test samples with each client's label distribution, without repetition within a client."""
    clients, trained, total = len(train_start) - 1, len(groups.train), len(groups.test)
    sizes = np.diff(train_start)
    wanted = (2 * sizes * total + trained) // (2 * trained)
    wanted = np.clip(wanted, min(SMALLEST_TEST, total), total)
    cell = np.repeat(np.arange(clients), sizes) * groups.number + groups.train[train_index]
    cell, count = np.unique(cell, return_counts=True)
    client, label = np.divmod(cell, groups.number)
    take = _largest_remainder(client, count, sizes, wanted)
    # A client takes a random run of a class's shuffled test samples, cyclically.
    index, start = shuffled_by_class(groups.test, groups.number, key)
    supply = np.diff(start)[label]
    take = np.minimum(take, supply)
    first = generator(fold(key, "first")).integers(0, np.maximum(supply, 1))
    position = (np.repeat(first, take) + ranges(take)) % np.repeat(supply, take)
    picked = index[np.repeat(start[label], take) + position]
    owner = np.repeat(client, take)
    picked = np.sort(owner * total + picked) - owner * total  # owners ascend already
    return picked, offsets(np.bincount(owner, minlength=clients))


def _largest_remainder(client: Index, count: Index, sizes: Index, wanted: Index) -> Index:
    """Return integers in proportion to each client's ``count`` with sum ``wanted``; the largest remainders round up.

    Integer arithmetic only, so that results do not depend on rounding. Entries are ordered by client, then label.
    """
    take, remainder = np.divmod(count * wanted[client], sizes[client])
    missing = wanted - np.bincount(client, weights=take, minlength=len(sizes)).astype(np.int64)
    order = np.lexsort((-remainder, client))
    rank = np.empty_like(take)
    rank[order] = ranges(np.bincount(client, minlength=len(sizes)))
    return take + (rank < missing[client])
