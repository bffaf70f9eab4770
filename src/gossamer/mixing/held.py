"""Mixing weights as a server keeps them: all of them, or a few for each client.

    weights      [clients, clients], a row for each client
    who, much    [clients, few]: the clients that each learns from, and how much; others have no weight

Before any were learned there is nothing, and all clients count alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.mixing.sparse import dense
from gossamer.types import State


def even(clients: int) -> Tensor:
    """The same weight for all, [clients, clients]."""
    return torch.full((clients, clients), 1 / clients, dtype=torch.float64)


def square(kept: State, clients: int) -> Tensor:
    """All weights, [clients, clients]."""
    if "who" in kept:
        return dense(kept["who"], kept["much"], clients)
    weights: Tensor = kept.get("weights", even(clients))
    return weights


def looked_up(kept: State, models: Sequence[int], hosts: Sequence[int], clients: int) -> Tensor:
    """The weight of each of some models for the host beside it."""
    rows, columns = torch.tensor(models, dtype=torch.int64), torch.tensor(hosts, dtype=torch.int64)
    if "who" in kept:
        found = kept["who"].cpu()[rows] == columns[:, None]
        return torch.where(found, kept["much"].cpu()[rows], 0).sum(1)
    if "weights" in kept:
        weights: Tensor = kept["weights"].cpu()[rows, columns]
        return weights
    return torch.full((len(rows),), 1 / clients, dtype=torch.float64)


def summary(kept: State) -> tuple[float, float]:
    """The median weight that clients have for themselves, and the median number that they learn from.

    A client with the weights a learns from 1 / sum(a^2) others in effect: from one if that has all the weight, from n
    if n share it evenly.
    """
    if "who" in kept:
        itself = kept["who"] == torch.arange(len(kept["who"]), device=kept["who"].device)[:, None]
        own, much = torch.where(itself, kept["much"], 0).sum(1), kept["much"]
    else:
        own, much = kept["weights"].diagonal(), kept["weights"]
    squares = much.square().sum(1)
    known = squares > 0
    return float(own[known].median()), float((1 / squares[known]).median())
