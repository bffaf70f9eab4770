"""Groups of clients that learn from each other, by the mixing weights of a run's newest checkpoint.

Two clients are joined if the mean of their weights for each other is above 1 / (2 N). That is half of the weight that
each would have if all N compared clients counted alike. A group is a connected component of joined clients.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import RunError
from gossamer.runs.arrays import server_arrays
from gossamer.runs.records import checkpoints
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


@dataclass(frozen=True)
class WeightCluster:
    """Clients that learn from each other, or one that learns alone.

    Args:
        clients: the clients, in order
        within: the mean fraction of a client's weight that is within the group, itself included
    """

    clients: list[int]
    within: float


def read(path: Path) -> MixingWeights:
    """Return the mixing weights at the newest checkpoint of a run."""
    done = checkpoints(path)
    if not done:
        raise RunError(f"{path} has no finished round yet")
    try:
        found = server_arrays(path, done[0], lambda name: name.startswith("mixing/") or name == SAMPLES)
    except (OSError, ValueError) as error:
        raise RunError(f"mixing weights cannot be read: {error}") from error
    kept = {name.partition("/")[2]: array for name, array in found.items() if name != SAMPLES}
    if SAMPLES not in found or not kept:
        raise RunError("there are no mixing weights at the newest checkpoint")
    return weights_of(kept, found[SAMPLES] > 0)


def weights_of(kept: Mapping[str, Any], known: Any) -> MixingWeights:
    """Return the entries of a server's weights, without clients that have not been compared yet.

    Args:
        kept: the ``mixing`` entry of the server state, as arrays or tensors
        known: whether each client has been compared
    """
    state, known = {name: np.asarray(value) for name, value in kept.items()}, np.asarray(known)
    if "who" in state:
        whose = np.broadcast_to(np.arange(len(state["who"]))[:, None], state["who"].shape).reshape(-1)
        whom, much = state["who"].reshape(-1), state["much"].reshape(-1)
    else:
        whose, whom = np.nonzero(state["weights"])
        much = state["weights"][whose, whom]
    counts = (much > 0) & known[whose] & known[whom]
    entries = (whose[counts], whom[counts], much[counts].astype(np.float64))
    return MixingWeights(len(known), np.flatnonzero(known).tolist(), *entries)


def groups(weights: MixingWeights) -> list[WeightCluster]:
    """Return the groups, the largest first, ties by lowest client."""
    lowest = _joined(weights)
    together = lowest[weights.whose] == lowest[weights.whom]
    within = np.bincount(lowest[weights.whose], weights.much * together, weights.clients)
    members: dict[int, list[int]] = {}
    for client in weights.known:
        members.setdefault(int(lowest[client]), []).append(client)
    found = [
        WeightCluster(clients, min(1.0, float(within[first]) / len(clients))) for first, clients in members.items()
    ]
    return sorted(found, key=lambda group: -len(group.clients))


def _joined(weights: MixingWeights) -> Ints:
    """Return the lowest client of each client's group."""
    low, high = np.minimum(weights.whose, weights.whom), np.maximum(weights.whose, weights.whom)
    pairs, index = np.unique(low * weights.clients + high, return_inverse=True)
    both = np.bincount(index, weights.much)
    one, other = np.divmod(pairs[both / 2 > 1 / (2 * len(weights.known))], weights.clients)
    lowest = np.arange(weights.clients)
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
