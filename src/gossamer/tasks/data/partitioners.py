"""Partition rules: how samples are assigned to clients, each with the paper that uses it.

A rule is a frozen dataclass. Its ``deal`` returns one owner for every sample, or ``NOBODY``.
The literature has several "Dirichlet" splits and several splits with "k labels per client". They are separate rules
here, because results on one do not carry over to another. Code loops over classes, never over clients.

``draw_until_empty`` draws classes from pools that run out: each turn draws from its client's prior over the classes
that remain. A loop over turns would be slow. Until a class runs out, the draws are independent of each other. So all
turns draw at once, and the draws before the next exhausted class are kept.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, choice, fold, generator, permutation
from gossamer.tasks.data.partition import NOBODY, Index, even, grouped, order_of

REDRAWS = 20
HOPELESS = 20

Reads = Literal["classes", "targets", "nothing"]
"""What a rule needs to know of the targets: their classes, their order, or nothing."""


class Rule(Protocol):
    """A partition rule.

    Args:
        reads: what ``deal`` receives as labels: classes, ranks of the targets, or zeros
    """

    reads: ClassVar[Reads]

    @property
    def min_samples(self) -> int:
        """Minimum number of samples per client."""
        ...

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Return the owner of each sample: a client, or ``NOBODY``."""
        ...


def shuffled_by_class(labels: Index, classes: int, key: Key) -> tuple[Index, Index]:
    """Return all samples by class, in random order within each, and the offsets of the classes."""
    order = permutation(fold(key, "shuffle"), len(labels))
    index, start = grouped(labels[order], classes)
    return order[index], start


def _check_min_samples(rule: Rule) -> tuple[bool, str]:
    return rule.min_samples >= 1, wrong(rule, "min_samples", "must be at least 1")


def _check_alpha(rule: "Dirichlet | DirichletClient") -> tuple[bool, str]:
    return rule.alpha > 0, wrong(rule, "alpha", "must be a positive number")


def _check_k(rule: "Labels | Quantile | Shards | Slices") -> tuple[bool, str]:
    return rule.k >= 1, wrong(rule, "k", "must be at least 1")


def _check_classes(rule: "Labels | Shards", classes: int) -> None:
    name = type(rule).__name__
    require((rule.k <= classes, f"{name}.k must be at most the number of classes, {classes}, got {rule.k}"))


def _dirichlet(draw: np.random.Generator, alpha: float, size: int, rows: int) -> npt.NDArray[np.float64]:
    # Above 1e9 all shares are equal, and NumPy's draw would overflow.
    return draw.dirichlet(np.full(size, min(alpha, 1e9)), rows)


@dataclass(frozen=True)
class Iid(CheckedFields):
    """A random permutation of all samples, cut into equal pieces."""

    reads: ClassVar[Reads] = "nothing"
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign all samples; sizes differ by at most one."""
        owner = np.empty(len(labels), dtype=np.int64)
        owner[permutation(key, len(labels))] = np.repeat(np.arange(clients), even(len(labels), clients))
        return owner


@dataclass(frozen=True)
class Dirichlet(CheckedFields):
    """A Dirichlet draw over clients for every class: the rule of NIID-Bench, FedMRN's "Non-IID-1".

    A client with n/N samples or more gets nothing of the remaining classes. So sizes are unequal, but exceed this cap
    by at most one class share. The draw is repeated while a client has fewer than ``min_samples``. See
    https://arxiv.org/abs/2102.02079.

    Args:
        alpha: concentration of the Dirichlet distribution; smaller is more non-IID
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "classes"
    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_alpha(self), _check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Draw at most ``REDRAWS`` more times; the caller moves samples that are still missing.

        A draw with twenty small clients is kept: another would have none about once in e^20 times.
        """
        index, start = shuffled_by_class(labels, classes, key)
        for attempt in range(REDRAWS + 1):
            shares = self._draw(np.diff(start), clients, fold(key, "shares", attempt))
            short = np.count_nonzero(shares.sum(axis=0) < self.min_samples)
            if not 0 < short < HOPELESS:
                break
        owner = np.empty(len(labels), dtype=np.int64)
        owner[index] = np.repeat(np.tile(np.arange(clients), classes), shares.ravel())
        return owner

    def _draw(self, pools: Index, clients: int, key: Key) -> Index:
        """Return the number of samples by class and client, [classes, clients]."""
        draw, cap = generator(key), pools.sum() / clients
        shares = np.zeros((len(pools), clients), dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        for label in np.flatnonzero(pools):
            # Setting the shares of capped clients to 0 and renormalizing is a Dirichlet draw over the others. This
            # also works if all mass would fall on capped clients. At least one client is below the mean.
            room = np.flatnonzero(held < cap)
            cuts = np.cumsum(_dirichlet(draw, self.alpha, len(room), 1)[0]) * pools[label]
            cuts = np.minimum(cuts.astype(np.int64), pools[label])
            cuts[-1] = pools[label]
            shares[label, room] = np.diff(cuts, prepend=0)
            held += shares[label]
        return shares


@dataclass(frozen=True)
class DirichletClient(CheckedFields):
    """A Dirichlet draw over classes for every client, with equal sizes: FedSpa's rule (from DisPFL).

    Samples are assigned one at a time, in random order of clients. Each has a class drawn from the client's shares over
    the classes with samples left. If these have no mass, the draw is proportional to the samples left; the original
    code can loop forever here. See https://arxiv.org/abs/2206.00187.

    Args:
        alpha: concentration of the Dirichlet distribution; smaller is more non-IID
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "classes"
    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_alpha(self), _check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign all samples; sizes differ by at most one."""
        index, start = shuffled_by_class(labels, classes, key)
        prior = _dirichlet(generator(fold(key, "prior")), self.alpha, classes, clients)
        turns = np.repeat(np.arange(clients), even(len(labels), clients))
        turns = turns[permutation(fold(key, "turns"), len(turns))]
        drawn = draw_until_empty(turns, prior, np.diff(start), generator(fold(key, "draws")))
        owner = np.empty(len(labels), dtype=np.int64)
        owner[index] = turns[order_of(drawn)]
        return owner


@dataclass(frozen=True)
class Labels(CheckedFields):
    """``k`` labels per client; the clients of a label share its samples evenly: FedMRN's "Non-IID-2".

    A client takes the k labels least used so far, lower ones first. This is not random: labels repeat cyclically. With
    fewer than classes / k clients, some labels and their samples are unused.

    Args:
        k: number of labels per client
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "classes"
    k: int
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_k(self), _check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign the samples; sizes are as equal as the classes."""
        _check_classes(self, classes)
        index, start = shuffled_by_class(labels, classes, key)
        # The least used labels, lower first, are the next ones in cyclic order.
        entries, first = grouped(np.arange(clients * self.k) % classes, classes)
        owner = np.full(len(labels), NOBODY, dtype=np.int64)
        for label in range(classes):
            holders = entries[first[label] : first[label + 1]] // self.k
            _share(owner, index[start[label] : start[label + 1]], holders)
        return owner


@dataclass(frozen=True)
class Shards(CheckedFields):
    """Every class is cut into equal shards; every client gets ``k`` random shards: FedRolex's rule.

    A client that draws a label twice keeps only one shard of it. The other shard is unused, as are surplus shards. So
    part of the data is unused, as in the original code.

    Args:
        k: number of shards per client
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "classes"
    k: int
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_k(self), _check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign at most k labels to each client."""
        _check_classes(self, classes)
        index, start = shuffled_by_class(labels, classes, key)
        each = -(-self.k * clients // classes)
        dealt = permutation(fold(key, "deal"), each * classes)[: self.k * clients]
        hands = np.sort(dealt.reshape(clients, self.k), axis=1)
        kept = np.diff(hands // each, axis=1, prepend=-1) > 0
        holder = np.full(each * classes, NOBODY, dtype=np.int64)
        holder[hands[kept]] = np.nonzero(kept)[0]
        owner = np.full(len(labels), NOBODY, dtype=np.int64)
        for label in range(classes):
            _share(owner, index[start[label] : start[label + 1]], holder[label * each : (label + 1) * each])
        return owner


@dataclass(frozen=True)
class Slices(CheckedFields):
    """Samples sorted by label are cut into ``k`` N equal slices; client c gets slices c, c + N, ...: FedTorch's rule.

    The rule is deterministic. PERM's CIFAR-10 experiment with two classes per client is ``slices:2``.

    Args:
        k: number of slices per client
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "classes"
    k: int
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_k(self), _check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign all samples, without randomness."""
        owner = np.empty(len(labels), dtype=np.int64)
        _share(owner, order_of(labels), np.arange(self.k * clients) % clients)
        return owner


@dataclass(frozen=True)
class Quantile(CheckedFields):
    """Samples sorted by a number are cut into ``k`` N equal pieces; every client gets ``k`` random pieces.

    A piece holds neighbouring quantiles of the target, so that clients see different ranges of it: a split for
    regression. With ``k=1`` a client has one range; larger ``k`` are closer to IID.

    Args:
        k: number of pieces per client
        min_samples: minimum number of samples per client
        column: which number of the target, if it has several
    """

    reads: ClassVar[Reads] = "targets"
    k: int
    min_samples: int = 1
    column: int = 0

    def __post_init__(self) -> None:
        require(_check_k(self), _check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign all samples; sizes differ by at most ``k``. Equal targets are in random order."""
        order = permutation(fold(key, "shuffle"), len(labels))
        owner = np.empty(len(labels), dtype=np.int64)
        holders = permutation(fold(key, "deal"), self.k * clients) % clients
        _share(owner, order[order_of(labels[order])], holders)
        return owner


@dataclass(frozen=True)
class Natural(CheckedFields):
    """The natural owners of the data (writers, speakers, generated clients) are the clients.

    Owners with fewer than ``min_samples`` samples are skipped. If there are more owners than clients, a random choice
    of them is used.

    Args:
        min_samples: minimum number of samples per client
    """

    reads: ClassVar[Reads] = "nothing"
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_min_samples(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Assign owners to clients, in the order of owners."""
        if groups is None:
            raise ConfigError(
                "split natural: this data has no natural owners: write Task.of(..., groups=owners), with one number or "
                "name per sample, or give a list or mapping of one data set per client; or use another split, such as "
                "dirichlet:0.3"
            )
        names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        able = np.flatnonzero(sizes >= self.min_samples)
        if len(able) < clients:
            raise ConfigError(
                f"split natural: {clients} clients need {clients} owners, the data has {len(able)} owners with "
                f"{self.min_samples} samples or more; lower clients or use iid"
            )
        client = np.full(len(names), NOBODY, dtype=np.int64)
        client[able[choice(key, len(able), clients)]] = np.arange(clients)
        return client[group]


def _share(owner: Index, samples: Index, holders: Index) -> None:
    """Assign equal runs of ``samples`` to ``holders``, in order; without holders they have no owner."""
    if len(holders):
        owner[samples] = np.repeat(holders, even(len(samples), len(holders)))


def draw_until_empty(turns: Index, prior: npt.NDArray[np.float64], pools: Index, draw: np.random.Generator) -> Index:
    """Return the class of each turn, as if drawn one after the other, with one pass per exhausted class.

    All turns draw at once. The first turn with an exhausted class ends the pass. Earlier draws are kept; later draws of
    this class are repeated without it. Each pass exhausts a class, so there are few.
    """
    left, done = pools.copy(), 0
    drawn = _draw_classes(turns, prior, left, draw)
    while (empty := _first_refusal(drawn[done:], left)) is not None:
        stop = done + empty
        left -= np.bincount(drawn[done:stop], minlength=len(pools))
        again = stop + np.flatnonzero(drawn[stop:] == drawn[stop])
        drawn[again] = _draw_classes(turns[again], prior, left, draw)
        done = stop
    return drawn


def _first_refusal(drawn: Index, left: Index) -> int | None:
    """Return the index of the first draw of an exhausted class, if there is one."""
    demand = np.bincount(drawn, minlength=len(left))
    refused = [np.flatnonzero(drawn == label)[left[label]] for label in np.flatnonzero(demand > left)]
    return int(min(refused)) if refused else None


def _draw_classes(turns: Index, prior: npt.NDArray[np.float64], left: Index, draw: np.random.Generator) -> Index:
    """Draw one class per turn, from its client's prior over the classes with samples left."""
    order = order_of(turns)
    client = turns[order]
    new = np.diff(client, prepend=-1) > 0
    rows, row = client[new], np.cumsum(new) - 1
    mass = np.where(left > 0, prior[rows], 0.0)
    mass[mass.sum(axis=1) <= 0] = left
    upto = np.cumsum(mass, axis=1)
    upto = upto / upto[:, -1:] + np.arange(len(rows))[:, None]
    # One sorted row for all clients: client r's cumulative shares are in (r, r + 1]. Rounding must not reach r + 1.
    point = np.minimum(row + draw.random(len(row)), np.nextafter(row + 1.0, 0.0))
    drawn = np.empty_like(turns)
    drawn[order] = np.searchsorted(upto.ravel(), point, side="right") - row * len(left)
    return drawn


SPLITS: dict[str, type[Rule]] = {
    "dirichlet": Dirichlet,
    "dirichlet-client": DirichletClient,
    "iid": Iid,
    "labels": Labels,
    "natural": Natural,
    "quantile": Quantile,
    "shards": Shards,
    "slices": Slices,
}
"""Partitions by their name on the command line."""
