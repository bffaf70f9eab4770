"""The rules by which samples are dealt to clients, each with the paper it comes from.

A rule is a frozen dataclass whose ``deal`` names the owner of every sample, or ``NOBODY``; so no sample can be dealt
twice. The literature has three different "Dirichlet" splits and three different "k labels a client": they are separate
rules here, because results on one do not carry over to another. Classes are looped over, clients never.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import ConfigError, require
from gossamer.core.random import Key, choice, fold, generator, permutation
from gossamer.tasks.data.class_draws import draw_until_empty
from gossamer.tasks.data.partition import NOBODY, Index, even, grouped, order_of

REDRAWS = 20
HOPELESS = 20


class Rule(Protocol):
    """How samples are dealt to clients, with the smallest number of samples a client."""

    @property
    def min_samples(self) -> int:
        """The smallest number of samples a client."""
        ...

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """The owner of each sample: a client, or ``NOBODY``."""
        ...


def shuffled_by_class(labels: Index, classes: int, key: Key) -> tuple[Index, Index]:
    """All samples, class after class and in random order within each, and the offsets of the classes."""
    order = permutation(fold(key, "shuffle"), len(labels))
    index, start = grouped(labels[order], classes)
    return order[index], start


def _check_least(rule: Rule) -> tuple[bool, str]:
    return rule.min_samples >= 1, f"{type(rule).__name__}.min_samples must be >= 1, got {rule.min_samples}"


def _check_alpha(rule: "Dirichlet | DirichletClient") -> tuple[bool, str]:
    return rule.alpha > 0, f"{type(rule).__name__}.alpha must be > 0, got {rule.alpha:g}"


def _check_k(rule: "Labels | Shards | Slices") -> tuple[bool, str]:
    return rule.k >= 1, f"{type(rule).__name__}.k must be >= 1, got {rule.k}"


def _check_classes(rule: "Labels | Shards", classes: int) -> None:
    name = type(rule).__name__
    require((rule.k <= classes, f"{name}.k must be at most the number of classes, {classes}, got {rule.k}"))


def _dirichlet(draw: np.random.Generator, alpha: float, size: int, rows: int) -> npt.NDArray[np.float64]:
    # Beyond 1e9 all shares are equal for any data set, and NumPy's draw overflows in the end.
    return draw.dirichlet(np.full(size, min(alpha, 1e9)), rows)


@dataclass(frozen=True)
class Iid:
    """A random permutation of all samples, cut into equal pieces."""

    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Sizes differ by one at most, and every sample is used."""
        owner = np.empty(len(labels), dtype=np.int64)
        owner[permutation(key, len(labels))] = np.repeat(np.arange(clients), even(len(labels), clients))
        return owner


@dataclass(frozen=True)
class Dirichlet:
    """Every class is shared out over the clients by a Dirichlet draw: NIID-Bench's rule, FedMRN's "Non-IID-1".

    A client that holds n/N samples or more gets nothing of the classes still to come, so sizes are unequal but none
    passes the cap by more than its share of one class. The draw is repeated while a client has fewer than
    ``min_samples``.
    """

    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_alpha(self), _check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """At most ``REDRAWS`` repetitions; what is then still missing is moved by the caller.

        A draw that leaves twenty clients short is kept: another would leave none short about once in e^20 times.
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
        """How many samples of each class every client gets, [classes, clients]."""
        draw, cap = generator(key), pools.sum() / clients
        shares = np.zeros((len(pools), clients), dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        for label in np.flatnonzero(pools):
            # Zeroing the capped clients' shares and renormalising is a Dirichlet draw over the others; drawing it
            # so also serves when all the mass would have fallen on capped clients. Some client is below the mean.
            room = np.flatnonzero(held < cap)
            cuts = np.cumsum(_dirichlet(draw, self.alpha, len(room), 1)[0]) * pools[label]
            cuts = np.minimum(cuts.astype(np.int64), pools[label])
            cuts[-1] = pools[label]
            shares[label, room] = np.diff(cuts, prepend=0)
            held += shares[label]
        return shares


@dataclass(frozen=True)
class DirichletClient:
    """Every client draws its own class shares and all clients have equal size: FedSpa's rule (from DisPFL).

    Samples are handed out one at a time, in random order of clients, each of a class drawn from the client's shares
    among the classes that have samples left. When a client's shares have no mass on what is left, it draws in
    proportion to what is left, where the original can loop for ever.
    """

    alpha: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_alpha(self), _check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Sizes differ by one at most, and every sample is used."""
        index, start = shuffled_by_class(labels, classes, key)
        prior = _dirichlet(generator(fold(key, "prior")), self.alpha, classes, clients)
        turns = np.repeat(np.arange(clients), even(len(labels), clients))
        turns = turns[permutation(fold(key, "turns"), len(turns))]
        drawn = draw_until_empty(turns, prior, np.diff(start), generator(fold(key, "draws")))
        owner = np.empty(len(labels), dtype=np.int64)
        owner[index] = turns[order_of(drawn)]
        return owner


@dataclass(frozen=True)
class Labels:
    """Every client holds ``k`` labels, and each label's samples are shared evenly by its holders: FedMRN's "Non-IID-2".

    A client takes the k labels least used so far, the lower first. That is not random: labels go round in a circle, and
    sets of labels repeat. With fewer than classes / k clients some labels have no holder, and their samples no owner.
    """

    k: int
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_k(self), _check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Sizes are as equal as the classes are."""
        _check_classes(self, classes)
        index, start = shuffled_by_class(labels, classes, key)
        # Taking the least used, lower first, leaves a run of labels used once more than the rest: a circle.
        entries, first = grouped(np.arange(clients * self.k) % classes, classes)
        owner = np.full(len(labels), NOBODY, dtype=np.int64)
        for label in range(classes):
            holders = entries[first[label] : first[label + 1]] // self.k
            _share(owner, index[start[label] : start[label + 1]], holders)
        return owner


@dataclass(frozen=True)
class Shards:
    """Every class is cut into equal shards, and ``k`` random shards are dealt to every client: FedRolex's rule.

    A client that draws a label twice keeps one shard of it. The other, and shards left over when the cards do not come
    out even, belong to nobody: as in the original, part of the data is unused.
    """

    k: int
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_k(self), _check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """At most k labels a client."""
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
class Slices:
    """Samples in order of label are cut into ``k`` N equal slices; client c gets slices c, c + N, ...: FedTorch's rule.

    Nothing is random. PERM's CIFAR-10 experiment (two classes a client) is ``slices:2``.
    """

    k: int
    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_k(self), _check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Every sample is used; the key is not."""
        owner = np.empty(len(labels), dtype=np.int64)
        _share(owner, order_of(labels), np.arange(self.k * clients) % clients)
        return owner


@dataclass(frozen=True)
class Natural:
    """The natural owners of the data (writers, speakers, generated clients) are the clients.

    Owners with fewer than ``min_samples`` samples are passed over. Of more owners than clients, some are chosen at
    random.
    """

    min_samples: int = 1

    def __post_init__(self) -> None:
        require(_check_least(self))

    def deal(self, labels: Index, classes: int, clients: int, key: Key, groups: Index | None) -> Index:
        """Clients are numbered in the order of their owners."""
        if groups is None:
            raise ConfigError(
                "split natural: this data has no natural owners; use another split, such as dirichlet:0.3"
            )
        names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        able = np.flatnonzero(sizes >= self.min_samples)
        if len(able) < clients:
            who = f"{len(able)} owners with {self.min_samples} samples or more"
            raise ConfigError(f"split natural: {clients} clients asked, the data has {who}; lower clients or use iid")
        client = np.full(len(names), NOBODY, dtype=np.int64)
        client[able[choice(key, len(able), clients)]] = np.arange(clients)
        return client[group]


def _share(owner: Index, samples: Index, holders: Index) -> None:
    """Give equal runs of ``samples`` to ``holders``, in order; with no holders they stay with nobody."""
    if len(holders):
        owner[samples] = np.repeat(holders, even(len(samples), len(holders)))


SPLITS: dict[str, type[Rule]] = {
    "dirichlet": Dirichlet,
    "dirichlet-client": DirichletClient,
    "iid": Iid,
    "labels": Labels,
    "natural": Natural,
    "shards": Shards,
    "slices": Slices,
}
