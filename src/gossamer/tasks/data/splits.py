"""From a partition rule and a data set to a split: assign owners, fill up small clients, draw personal test sets; a
figure.

Every client gets at least ``rule.min_samples`` training samples: missing ones are moved from the largest clients. A
client's test set is that of its natural owner, or a draw from the test set with the client's label distribution. If
targets are numbers, quantiles of the target take the place of labels: both are strata. The order of training samples is
not part of a split.

``table`` and ``draw`` show a split: the number of samples by client and class. In the figure, the x axis shows clients,
the y axis classes; darker cells have more samples. The bars above show the numbers of samples per client. With more
than two hundred clients, each column shows the mean of several.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gossamer.core.errors import ConfigError, require
from gossamer.core.extras import need
from gossamer.core.random import Key, fold, generator, permutation
from gossamer.tasks.data.partition import NOBODY, Index, Split, grouped, offsets, order_of, ranges
from gossamer.tasks.data.partitioners import SPLITS, Natural, Quantile, Rule, shuffled_by_class
from gossamer.tasks.data.samples import Data

MOST = 10
"""The largest number of quantiles."""

LEAST = 10
"""The number of test samples per quantile, at least."""


class Strata(NamedTuple):
    """The stratum of each sample.

    Args:
        train: strata of the training samples
        test: strata of the test samples
        number: number of strata
        name: what a stratum is
    """

    train: Index
    test: Index
    number: int
    name: str


def strata(data: Data, column: int = 0) -> Strata:
    """Return the classes of samples or, where targets are no classes, the quantiles of one number of the target.

    Quantiles are those of the training samples: each holds an equal part of them if no two are equal.
    """
    if data.classes:
        return Strata(data.train.labels, data.test.labels, data.classes, "class")
    train, test = numbers(data.train.y, column), numbers(data.test.y, column)
    parts = max(1, min(MOST, len(test) // LEAST)) if len(test) else MOST
    edges = np.quantile(train, np.arange(1, parts) / parts, method="inverted_cdf") if len(train) else np.empty(0)
    found = [np.searchsorted(edges, values).astype(np.int64) for values in (train, test)]
    return Strata(found[0], found[1], parts, "quantile of the target")


def ranks(data: Data, column: int) -> Index:
    """Return the rank of each training sample by one number of its target; equal targets have equal ranks."""
    rank: Index = np.unique(numbers(data.train.y, column), return_inverse=True)[1].astype(np.int64)
    return rank


def numbers(targets: Tensor, column: int) -> npt.NDArray[np.float64]:
    """Return one number of each target."""
    rows = targets.reshape(len(targets), targets.shape[1:].numel())
    require((0 <= column < rows.shape[1], f"column must be from 0 to {rows.shape[1] - 1}, got {column}"))
    values: npt.NDArray[np.float64] = rows[:, column].cpu().double().numpy()
    return values


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
        # The test samples of each client's natural owner; an owner may have none. Names of owners are ascending.
        names, owned = data.train.group[train[0][train[1][:-1]]], data.test.group
        client = np.minimum(np.searchsorted(names, owned), len(names) - 1)
        return Split(*train, *grouped(np.where(names[client] == owned, client, NOBODY), len(names)))
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


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 200
WRITTEN = 20
INK = "#1f3b5c"
PAPER = "#eef1f5"

Floats = npt.NDArray[np.float64]


def table(split: Split, data: Data) -> dict[str, float]:
    """Return summary numbers of a split: clients, samples, sizes, labels per client, test samples per client.

    If targets are numbers, quantiles of the target take the place of labels.
    """
    sizes, groups = split.sizes(), strata(data)
    cells = np.sort(split.owners() * groups.number + groups.train[split.train_index])
    held = "labels_per_client" if data.classes else "quantiles_per_client"
    return {
        "clients": split.clients,
        "samples": len(split.train_index),
        "unused": split.unused(len(data.train)),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        held: int(np.count_nonzero(np.diff(cells, prepend=-1))) / split.clients,
        "tests_per_client": len(split.test_index) / split.clients,
    }


def draw(split: Split, data: Data, path: str | Path, *, spec: str = "") -> Path:
    """Draw clients by classes to ``path``, in the format of its suffix; ``spec`` is part of the title."""
    need("matplotlib")
    from matplotlib.figure import Figure  # it has no global state, unlike pyplot
    from matplotlib.ticker import MaxNLocator

    groups = strata(data)
    counts = split.counts(groups.train, groups.number).astype(np.float64)  # [clients, classes]
    each = -(-split.clients // COLUMNS)  # clients per column
    first = np.arange(0, split.clients, each)
    members = np.diff(np.append(first, split.clients))
    counts = np.add.reduceat(counts, first, axis=0) / members[:, None]  # [columns, classes]
    sizes = counts.sum(axis=1)
    width = float(np.clip(3.2 + 0.16 * len(counts), 6.4, 15.0))
    figure = Figure(figsize=(width, float(np.clip(2.4 + 0.28 * groups.number, 3.6, 9.0))), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3.2])
    above.bar(np.arange(len(sizes)), sizes, width=0.8 if len(sizes) <= 60 else 1.0, color=INK)
    above.set_ylabel("samples")
    above.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    above.spines[["top", "right", "bottom"]].set_visible(False)
    above.tick_params(bottom=False, labelbottom=False)
    _draw_cells(figure, below, counts, groups.name)
    below.set_xlabel("client" if each == 1 else f"client (each column is the mean of {each})")
    step = next(step for step in (1, 2, 5, 10, 20, 50) if len(counts) / step <= 25)
    ticks = np.arange(0, len(counts), step)
    below.set_xticks(ticks, [f"{tick * each:,}" for tick in ticks])
    below.set_xlim(-0.5, len(counts) - 0.5)
    names = [data.name, spec, f"{split.clients:,} client{'s' if split.clients > 1 else ''}"]
    above.set_title("  ·  ".join(name for name in names if name), loc="left", color=INK, fontsize=11)
    figure.savefig(path, dpi=150)
    return Path(path)


def _draw_cells(figure: "Figure", axes: "Axes", counts: Floats, name: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    # Empty cells are blank, not merely pale.
    colours = LinearSegmentedColormap.from_list("counts", ["#cfe0f1", "#4f8fc4", INK]).with_extremes(bad=PAPER)
    shown = np.ma.masked_less_equal(counts.T, 0)
    top = max(float(counts.max()), 1.0)
    image = axes.imshow(shown, origin="lower", aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=top)
    bar = figure.colorbar(image, ax=axes, label=f"samples of a {name}", pad=0.015, fraction=0.05)
    bar.outline.set_visible(False)
    axes.set_ylabel(name)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylim(-0.5, counts.shape[1] - 0.5)
    axes.spines[:].set_visible(False)
    if len(counts) <= WRITTEN >= counts.shape[1]:
        for client, label in zip(*np.nonzero(counts), strict=True):
            count = counts[client, label]
            colour = "white" if count > 0.45 * top else INK
            axes.text(client, label, f"{count:.0f}", ha="center", va="center", fontsize=7, color=colour)
