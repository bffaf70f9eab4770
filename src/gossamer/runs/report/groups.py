"""Who learns from whom, in words: groups of clients, by the mixing weights of a run's newest checkpoint.

Two clients are joined if the mean of their weights for each other is above 1 / (2 N), half of what each would have if
all N that have been compared counted alike. A group is all who are joined, directly or through others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gossamer.core.errors import RunError
from gossamer.core.types import State
from gossamer.runs.folder import read_server
from gossamer.runs.report.text import count, percent, ranges

RULE = "two clients are in one if their mean weight for each other is above 1/(2N), or through others"
NAMED = 5
"""So many groups are told one by one, the largest first."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MixingWeights:
    """Mixing weights one by one.

    clients: how many clients there are
    known: those of them whose gradients have been compared, in order
    whose, whom, much: of each weight above 0 whose it is, for whom, and how large
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
        clients: who, in order
        within: which share of its weight a client has for the group, itself included, on average
    """

    clients: list[int]
    within: float


def read(path: Path) -> MixingWeights:
    """The mixing weights at the newest checkpoint of a run."""
    try:
        server = read_server(path)
        return weights_of(server["mixing"], server["compared"]["samples"] > 0)
    except KeyError:
        raise RunError("there are no mixing weights at the newest checkpoint") from None
    except (OSError, ValueError) as error:
        raise RunError(f"mixing weights cannot be read: {error}") from error


def weights_of(kept: State, known: torch.Tensor) -> MixingWeights:
    """Weights as a server keeps them, without those of clients that have not been compared yet."""
    if "who" in kept:
        whose = torch.arange(len(kept["who"]))[:, None].expand_as(kept["who"]).reshape(-1)
        whom, much = kept["who"].reshape(-1), kept["much"].reshape(-1)
    else:
        whose, whom = kept["weights"].nonzero(as_tuple=True)
        much = kept["weights"][whose, whom]
    counts = (much > 0) & known[whose] & known[whom]
    who = (whose[counts].numpy(), whom[counts].numpy(), much[counts].double().numpy())
    return MixingWeights(len(known), known.nonzero().view(-1).tolist(), *who)


def groups(weights: MixingWeights) -> list[WeightCluster]:
    """The groups, the largest first; of equally large ones that with the lowest number."""
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
    """For each client the lowest number in its group."""
    low, high = np.minimum(weights.whose, weights.whom), np.maximum(weights.whose, weights.whom)
    pairs, place = np.unique(low * weights.clients + high, return_inverse=True)
    both = np.bincount(place, weights.much)
    one, other = np.divmod(pairs[both / 2 > 1 / (2 * len(weights.known))], weights.clients)
    lowest = np.arange(weights.clients)
    while True:
        new = lowest.copy()
        np.minimum.at(new, one, lowest[other])
        np.minimum.at(new, other, lowest[one])
        new = new[new]  # the lowest of the lowest, so that long chains take few turns
        if np.array_equal(new, lowest):
            return lowest
        lowest = new


def told(found: Sequence[WeightCluster], clients: int) -> Iterator[str]:
    """Groups in a few lines, however many clients there are."""
    shared = [group for group in found if len(group.clients) > 1]
    alone = [group for group in found if len(group.clients) == 1]
    yield f"{count(len(shared), 'group')} of clients that learn from each other ({RULE})"
    for group in shared[:NAMED]:
        many = count(len(group.clients), "client")
        yield f"{ranges(group.clients)}: {many}, {percent(group.within)} of their weight within"
    if more := shared[NAMED:]:
        smallest, largest = len(more[-1].clients), len(more[0].clients)
        size = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        yield f"and {count(len(more), 'more group')} of {size} clients"
    if alone:
        within = sum(group.within for group in alone) / len(alone)
        numbers = ranges([group.clients[0] for group in alone])
        yield f"alone: {numbers}: {count(len(alone), 'client')}, {percent(within)} of their weight for themselves"
    if left := clients - sum(len(group.clients) for group in found):
        yield f"not compared yet: {count(left, 'client')}"
