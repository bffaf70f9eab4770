"""The mixing weights of a run's newest checkpoint: groups of clients that learn from each other, and a heat map.

Two clients are joined if the mean of their weights for each other is above 1 / (2 N). That is half of the weight that
each would have if all N compared clients counted alike. A group is a connected component of joined clients.

Where a server has weights between clusters, clients of a cluster have the same weights and stay together. Two clusters
are joined if the mean weight of their clients for each other is above 1 / (2 N).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import RunError
from gossamer.runs.records import last_checkpoint, server_arrays
from gossamer.runs.report import plots
from gossamer.runs.report.heat import chain, heat
from gossamer.runs.report.text import count, percent, ranges

RULE = "two clients are joined if their mean weight for each other is above 1/(2N)"
SAMPLES = "compared/samples"
"""The numbers of samples of compared clients, in the server state."""

NAMED = 5
"""The number of groups that are listed one by one, the largest first."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MixingWeights:
    """Mixing weights as a list of entries.

    Args:
        clients: the number of clients
        known: the clients whose gradients have been compared, in order
        whose: the client of each positive weight
        whom: the client that the weight is for
        much: the weight
    """

    clients: int
    known: list[int]
    whose: Ints
    whom: Ints
    much: Floats

    def joined(self) -> Ints:
        """Return the lowest client of each client's group."""
        low, high = np.minimum(self.whose, self.whom), np.maximum(self.whose, self.whom)
        pairs, index = np.unique(low * self.clients + high, return_inverse=True)
        both = np.bincount(index, self.much)
        one, other = np.divmod(pairs[both / 2 > 1 / (2 * len(self.known))], self.clients)
        return connected(one, other, self.clients)

    def within(self, lowest: Ints) -> Floats:
        """Return the sum of the weights within each group, at its lowest client."""
        together = lowest[self.whose] == lowest[self.whom]
        return np.bincount(lowest[self.whose], self.much * together, self.clients).astype(np.float64)

    def totals(self, block: Ints, size: int) -> Floats:
        """Return the sum of the weights between blocks of clients, [size, size]."""
        cells = block[self.whose] * size + block[self.whom]
        return np.bincount(cells, self.much, size * size).reshape(size, size).astype(np.float64)


@dataclass(frozen=True, eq=False)
class ClusterWeights:
    """Mixing weights between clusters of clients.

    Args:
        clients: the number of clients
        known: the clients whose gradients have been compared, in order
        cluster: the cluster of each known client
        share: its share of a weight for the cluster
        between: the weights of clusters for clusters
    """

    clients: int
    known: list[int]
    cluster: Ints
    share: Floats
    between: Floats

    def joined(self) -> Ints:
        """Return the lowest client of each client's group."""
        count = len(self.between)
        sizes = np.bincount(self.cluster, minlength=count)
        each = self.between / np.maximum(sizes, 1)
        one, other = np.nonzero((each + each.T) / 2 > 1 / (2 * len(self.known)))
        group = connected(one, other, count)[self.cluster]
        lowest = np.arange(self.clients)
        _, first, index = np.unique(group, return_index=True, return_inverse=True)
        lowest[self.known] = np.asarray(self.known)[first][index]
        return lowest

    def within(self, lowest: Ints) -> Floats:
        """Return the sum of the weights within each group, at its lowest client."""
        group = np.full(len(self.between), -1)
        group[self.cluster] = lowest[self.known]
        each = (self.between * (group[:, None] == group)).sum(1)
        return np.bincount(lowest[self.known], each[self.cluster], self.clients).astype(np.float64)

    def totals(self, block: Ints, size: int) -> Floats:
        """Return the sum of the weights between blocks of clients, [size, size]."""
        cells, shape = self.cluster * size + block[self.known], (len(self.between), size)
        rows = np.bincount(cells, minlength=shape[0] * size).reshape(shape)
        columns = np.bincount(cells, self.share, shape[0] * size).reshape(shape)
        total: Floats = rows.T @ self.between @ columns
        return total


Mixing = MixingWeights | ClusterWeights
"""The mixing weights of a run."""


@dataclass(frozen=True)
class WeightCluster:
    """Clients that learn from each other, or one that learns alone.

    Args:
        clients: the clients, in order
        within: the mean fraction of a client's weight that is within the group, itself included
    """

    clients: list[int]
    within: float


def read_mixing(path: Path) -> Mixing:
    """Return the mixing weights at the newest checkpoint of a run."""
    found = server_arrays(path, last_checkpoint(path), lambda name: name.startswith("mixing/") or name == SAMPLES)
    kept = {name.partition("/")[2]: array for name, array in found.items() if name != SAMPLES}
    if SAMPLES not in found or not kept:
        raise RunError("there are no mixing weights at the newest checkpoint")
    return weights_of(kept, found[SAMPLES] > 0)


def weights_of(kept: Mapping[str, Any], known: Any) -> Mixing:
    """Return the entries of a server's weights, without clients that have not been compared yet.

    Args:
        kept: the ``mixing`` entry of the server state, as arrays or tensors
        known: whether each client has been compared
    """
    state, known = {name: np.asarray(value) for name, value in kept.items()}, np.asarray(known)
    if "between" in state:
        found = np.flatnonzero(known)
        fields = (state["cluster"][found], state["share"][found], state["between"])
        return ClusterWeights(len(known), found.tolist(), *fields)
    if "who" in state:
        whose = np.broadcast_to(np.arange(len(state["who"]))[:, None], state["who"].shape).reshape(-1)
        whom, much = state["who"].reshape(-1), state["much"].reshape(-1)
    else:
        whose, whom = np.nonzero(state["weights"])
        much = state["weights"][whose, whom]
    counts = (much > 0) & known[whose] & known[whom]
    entries = (whose[counts], whom[counts], much[counts].astype(np.float64))
    return MixingWeights(len(known), np.flatnonzero(known).tolist(), *entries)


def groups(weights: Mixing) -> list[WeightCluster]:
    """Return the groups, the largest first, ties by lowest client."""
    lowest = weights.joined()
    within = weights.within(lowest)
    members: dict[int, list[int]] = {}
    for client in weights.known:
        members.setdefault(int(lowest[client]), []).append(client)
    found = [
        WeightCluster(clients, min(1.0, float(within[first]) / len(clients))) for first, clients in members.items()
    ]
    return sorted(found, key=lambda group: -len(group.clients))


def connected(one: Ints, other: Ints, count: int) -> Ints:
    """Return the lowest vertex that each of ``count`` vertices is connected with, by edges of ``one`` and ``other``.

    >>> connected(np.array([1, 3]), np.array([2, 2]), 5).tolist()
    [0, 1, 1, 1, 4]
    """
    lowest = np.arange(count)
    while True:
        new = lowest.copy()
        np.minimum.at(new, one, lowest[other])
        np.minimum.at(new, other, lowest[one])
        new = new[new]  # pointer jumping, so that long chains take few passes
        if np.array_equal(new, lowest):
            return lowest
        lowest = new


def described(found: Sequence[WeightCluster], clients: int) -> Iterator[str]:
    """Yield a few lines on the groups, whatever the number of clients."""
    shared = [group for group in found if len(group.clients) > 1]
    alone = [group for group in found if len(group.clients) == 1]
    yield f"{count(len(shared), 'group')} of clients that learn from each other ({RULE})"
    for group in shared[:NAMED]:
        size = count(len(group.clients), "client")
        yield f"{ranges(group.clients)}: {size}, {percent(group.within)} of their weight within the group"
    if more := shared[NAMED:]:
        smallest, largest = len(more[-1].clients), len(more[0].clients)
        sizes = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        yield f"and {count(len(more), 'more group')} of {sizes} clients"
    if alone:
        within = sum(group.within for group in alone) / len(alone)
        numbers = ranges([group.clients[0] for group in alone])
        yield f"alone: {numbers}: {count(len(alone), 'client')}, {percent(within)} of their weight on themselves"
    if left := clients - sum(len(group.clients) for group in found):
        yield f"not compared yet: {count(left, 'client')}"


SHOWN = 200
"""The largest number of rows and columns. Of more clients, several share one."""

TITLE = "mixing weights by client"


def mixing_map(path: Path) -> str:
    """Return the heat map with notes as HTML, or the reason why there is none."""
    try:
        weights = read_mixing(path)
    except RunError as error:
        return plots.card(f"No picture of mixing weights: {error}")
    found = groups(weights)
    each = -(-len(weights.known) // SHOWN)
    order = ordered(weights, found) if each == 1 else [client for group in found for client in group.clients]
    shares = blocks(weights, order, each)
    drawn = heat(
        TITLE,
        order[::each],
        shares,
        blank=shares == 0,
        lowest=0.0,
        tip="client {} from client {}" if each == 1 else "clients starting at {}, from clients starting at {}",
        below="client that it learns from" if each == 1 else f"client that it learns from ({each} per column)",
    )
    title = "Weight of each client (row) for each other client (column), and for itself"
    return plots.framed(title, drawn, notes=[*described(found, weights.clients), " ".join(_notes(each))])


def _notes(each: int) -> Iterator[str]:
    yield "Clients are ordered by group, the largest group first. A blank cell is a weight of 0."
    if each == 1:
        yield "In a group, each client is followed by the one with the nearest weights."
    else:
        yield f"In a group, clients are in order of their numbers; {each} neighbours share a row and a column."
        yield "A cell is the mean fraction of weight that a client of the row has for all clients of the column."


def ordered(weights: Mixing, found: Sequence[WeightCluster]) -> list[int]:
    """Return the clients group by group; in a group, neighbours have similar weights."""
    rows = blocks(weights, range(weights.clients))
    return [group.clients[index] for group in found for index in chain(rows[group.clients])]


def blocks(weights: Mixing, order: Sequence[int], each: int = 1) -> Floats:
    """Return the weights in blocks of ``each`` clients: the mean over the rows, summed over the columns."""
    block = np.full(weights.clients, -1)
    block[order] = np.arange(len(order)) // each
    size = block.max() + 1
    return weights.totals(block, size) / np.bincount(block[order])[:, None]
