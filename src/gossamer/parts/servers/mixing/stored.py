"""Mixing weights as a server stores them, in one of three forms.

    weights                   [clients, clients], one row per client
    who, much                 [clients, keep]: indices of the kept clients and their weights; all other weights are 0
    cluster, share, between   the cluster of each client, its share of the samples of the cluster, and the weights of
                              clusters for clusters: client i has the weight between[A, B] share_j for client j, where A
                              and B are their clusters; see ``weights``

Before the first comparison a server stores none of them, and all clients have equal weights.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.mixing.schedule import Flags, Pairs
from gossamer.parts.servers.mixing.weights import VISITS, hosts

Weights = npt.NDArray[np.float64]
"""The weight of each pair."""


def even(clients: int) -> Tensor:
    """Return equal weights, [clients, clients]."""
    return torch.full((clients, clients), 1 / clients, dtype=torch.float64)


def dense(indices: Tensor, values: Tensor, n: int) -> Tensor:
    """Return kept weights as full rows, [rows, n], with 0 for all other clients.

    >>> dense(torch.tensor([[2, 0]]), torch.tensor([[0.75, 0.25]]), 4)
    tensor([[0.2500, 0.0000, 0.7500, 0.0000]])
    """
    return values.new_zeros(len(indices), n).scatter_(1, indices, values)


def square(kept: State, clients: int) -> Tensor:
    """Return stored mixing weights as a matrix, [clients, clients]."""
    if "who" in kept:
        return dense(kept["who"], kept["much"], clients)
    if "between" in kept:
        cluster = kept["cluster"]
        shared: Tensor = kept["between"][cluster][:, cluster] * kept["share"] * (cluster >= 0)[:, None]
        return shared
    weights: Tensor = kept.get("weights", even(clients))
    return weights


def looked_up(kept: State, models: Sequence[int], hosts: Sequence[int], clients: int) -> Tensor:
    """Return the stored mixing weight of each pair of a model and a host."""
    rows, columns = torch.tensor(models, dtype=torch.int64), torch.tensor(hosts, dtype=torch.int64)
    if "who" in kept:
        found = kept["who"].cpu()[rows] == columns[:, None]
        return torch.where(found, kept["much"].cpu()[rows], 0).sum(1)
    if "between" in kept:
        cluster = kept["cluster"].cpu()
        shared: Tensor = kept["between"].cpu()[cluster[rows], cluster[columns]] * kept["share"].cpu()[columns]
        return shared
    if "weights" in kept:
        weights: Tensor = kept["weights"].cpu()[rows, columns]
        return weights
    return torch.full((len(rows),), 1 / clients, dtype=torch.float64)


def sampled(kept: State) -> bool:
    """Return whether the hosts of an epoch are drawn by the weights. The weights of other forms scale losses."""
    return "between" in kept


def support(kept: State, known: Flags, key: Key) -> tuple[Pairs, Weights]:
    """Return the pairs of known clients that meet in an epoch, and their weights.

    These are all pairs with a positive weight, ordered by model and host. With clusters they are drawn (``sampled``),
    and all have the same weight.

    >>> from gossamer.core.random import key
    >>> support({"weights": torch.tensor([[0.5, 0.5], [0.0, 1.0]])}, np.array([True, True]), key(0))[0].hosts.tolist()
    [0, 1, 1]
    """
    if sampled(kept):
        pairs = hosts(kept["cluster"].cpu(), kept["share"].cpu(), kept["between"].cpu(), known, key)
        return pairs, np.full(len(pairs.models), 1 / VISITS)
    if "who" in kept:
        who, much = kept["who"].cpu(), kept["much"].cpu()
        order = who.argsort(1)
        who, values = who.gather(1, order).numpy(), much.gather(1, order).numpy()
        models, slots = np.nonzero((values > 0) & known[:, None] & known[who])
        return Pairs(models, who[models, slots]), values[models, slots]
    values = square(kept, len(known)).cpu().numpy()
    found = (values > 0) & known[:, None] & known
    pairs = Pairs(*(ends.astype(np.int32) for ends in np.nonzero(found)))
    return pairs, values[found]


def summary(kept: State) -> tuple[float, float]:
    """Return the median weight of clients for themselves, and the median effective number of clients they learn from.

    With weights a, the effective number is 1 / sum(a^2): 1 if one client has all the weight, n if n clients share it
    equally.
    """
    own, squares = _own_and_squares(kept)
    known = squares > 0
    return float(own[known].median()), float((1 / squares[known]).median())


def _own_and_squares(kept: State) -> tuple[Tensor, Tensor]:
    """Return the weight of each client for itself, and the sum of its squared weights."""
    if "between" in kept:
        cluster, share, between = kept["cluster"], kept["share"], kept["between"]
        within = torch.zeros_like(between[0]).index_add_(0, cluster.clamp(min=0), share.square())
        return between.diagonal()[cluster] * share, (between.square() @ within)[cluster] * (cluster >= 0)
    if "who" in kept:
        itself = kept["who"] == torch.arange(len(kept["who"]), device=kept["who"].device)[:, None]
        return torch.where(itself, kept["much"], 0).sum(1), kept["much"].square().sum(1)
    return kept["weights"].diagonal(), kept["weights"].square().sum(1)
