"""Rotation schedule: a shuffled Latin square of models and hosts that tolerates absent clients.

In an epoch each model visits each client once (PERM, Algorithm 1, https://arxiv.org/abs/2310.17761). sigma is a random
permutation of the clients. If all clients are present, client sigma((i + j) mod N) hosts model i in round j. Each
client hosts one model per round, and after N rounds all pairs have met. The client sigma(p) thus meets the models p,
p - 1, p - 2, ... modulo N, in this order.

Absent clients are an extension of the paper. In each round the present clients choose in client order. Each takes the
first model in its order that it has not met in this epoch and that no other client took in this round. A host without
such a model is idle. The epoch ends when all pairs have met. In a round where a present client has models left to meet,
at least one pair meets. An epoch therefore ends after at most N^2 such rounds.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import require


def visits(met: Tensor, order: npt.ArrayLike | Tensor, present: Sequence[int]) -> dict[int, int]:
    """Return the model of each host in a round. Idle hosts are omitted.

    Args:
        met: which pairs have met in this epoch, [models, hosts]
        order: the permutation sigma
        present: the clients of this round

    >>> visits(torch.zeros(3, 3, dtype=torch.bool), [2, 0, 1], present=[0, 1, 2])
    {0: 1, 1: 2, 2: 0}
    """
    count, shuffled = len(met), np.asarray(order)
    _check(met, shuffled, present)
    rank = np.argsort(shuffled).tolist()
    seen = met.T.cpu().numpy().tobytes()  # one byte per model, host after host: bytes are searched faster than arrays
    taken: dict[int, int] = {}  # the host of each model
    for host in sorted(present):
        free = (model for model in _unmet(seen, host * count, count, rank[host]) if model not in taken)
        model = next(free, None)
        if model is not None:
            taken[model] = host
    return {host: model for model, host in taken.items()}


def _unmet(seen: bytes, start: int, count: int, rank: int) -> Iterator[int]:
    """Yield the models that a host has not met, in its order: from its rank down to 0, then from the last model."""
    for low, high in ((start, start + rank + 1), (start + rank + 1, start + count)):
        while (high := seen.rfind(0, low, high)) >= 0:
            yield high - start


def _check(met: Tensor, order: npt.NDArray[np.generic], present: Sequence[int]) -> None:
    count = len(met)
    require(
        (met.shape == (count, count) and met.dtype == torch.bool, "visits: met must be a bool tensor, [models, hosts]"),
        (
            order.shape == (count,) and bool((np.sort(order) == np.arange(count)).all()),
            f"visits: order must be a permutation of the {count} clients",
        ),
        (
            len(set(present)) == len(present) and all(0 <= host < count for host in present),
            f"visits: present must have distinct clients from 0 to {count - 1}",
        ),
    )
