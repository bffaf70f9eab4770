"""Who hosts whose model: a shuffled Latin square, also where clients are absent.

In an epoch each model visits each client once (PERM, Algorithm 1). The clients are shuffled: sigma(p) is the one at
place p. If all are present in every round, model i is in round j at the client sigma((i + j) mod N): each client hosts
one model a round, and after N rounds all pairs have met.

The client at place p therefore meets the models p, p - 1, p - 2, ... modulo N, in this order. An extension to the paper
lets clients be absent: in each round those present, in client order, each take the first model of their order that they
have not met in this epoch and that nobody took before them in this round. A host with none left idles. The epoch is
over when all pairs have met; whoever was absent meets later what it missed. In a round where somebody present has
models left to meet, at least one pair meets, so an epoch ends after N^2 such rounds at the latest.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import require


def visits(met: Tensor, order: npt.ArrayLike | Tensor, present: Sequence[int]) -> dict[int, int]:
    """Which model each host takes in a round; a host that idles is not named.

    ``met`` [models, hosts] says which pairs have met in this epoch, ``order`` is sigma.

    >>> visits(torch.zeros(3, 3, dtype=torch.bool), [2, 0, 1], present=[0, 1, 2])
    {0: 1, 1: 2, 2: 0}
    """
    count, shuffled = len(met), np.asarray(order)
    _check(met, shuffled, present)
    place = np.argsort(shuffled).tolist()
    seen = met.T.cpu().numpy().tobytes()  # a byte for each model, host after host: searched faster than an array
    taken: dict[int, int] = {}  # the host of each model
    for host in sorted(present):
        free = (model for model in _unmet(seen, host * count, count, place[host]) if model not in taken)
        model = next(free, None)
        if model is not None:
            taken[model] = host
    return {host: model for model, host in taken.items()}


def _unmet(seen: bytes, start: int, count: int, place: int) -> Iterator[int]:
    """The models that a host has not met, in its order: from its place down, then from the last down to its place."""
    for low, high in ((start, start + place + 1), (start + place + 1, start + count)):
        while (high := seen.rfind(0, low, high)) >= 0:
            yield high - start


def _check(met: Tensor, order: npt.NDArray[np.generic], present: Sequence[int]) -> None:
    count = len(met)
    require(
        (met.shape == (count, count) and met.dtype == torch.bool, "visits: met must be [models, hosts], and bool"),
        (
            order.shape == (count,) and bool((np.sort(order) == np.arange(count)).all()),
            f"visits: order must have each of the {count} clients once",
        ),
        (
            len(set(present)) == len(present) and all(0 <= host < count for host in present),
            f"visits: present must name clients from 0 to {count - 1}, each once",
        ),
    )
