"""Two populations with opposite labels: the generator of PERM's first experiment (https://arxiv.org/abs/2310.17761).

Client i draws x ~ N(mu_i 1, Sigma) in 60 dimensions with Sigma = diag(k^-1.2). Here mu_i is 0.2 in the first population
and -0.2 in the second. All clients share one direction w ~ N(0.1 * 1, I). The first population labels with sign(w'x),
the second with sign(-w'x). No global model fits both, and a client gains only from its own half.

The literal definition has a flaw. The mean margin w'mu_i is 0.2 sum(w), which has mean 1.2 and standard deviation 1.5.
So one class can hold nearly all labels. As mean and labels flip together, *both* populations have the same majority. A
model that always predicts it then scores as well as a personalized model, and the experiment shows nothing. The
balanced version removes the mean of w, so that sum(w) = 0 and every client's labels are balanced in expectation.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.core.random import Key, fold, generator

DIMENSIONS = 60
SAMPLES = 500
MOST_CLIENTS = 20_000
"""The most clients of a run: their samples take 2.4 GB, and twice that while they are divided into two sets."""
MEAN = 0.2
DIRECTION_MEAN = 0.1


class Populations(NamedTuple):
    """Inputs [n, 60], labels [n], the client of each sample [n], and the direction w [60]."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    client: npt.NDArray[np.int64]
    direction: npt.NDArray[np.float64]


def two_populations(clients: int, key: Key, *, balanced: bool = True, samples: int = SAMPLES) -> Populations:
    """Draw ``samples`` samples per client, client after client; the first half has the extra client if odd."""
    direction = generator(fold(key, "direction")).normal(DIRECTION_MEAN, 1.0, DIMENSIONS)
    if balanced:
        direction -= direction.mean()
    client = np.repeat(np.arange(clients), samples)
    side = np.where(client < (clients + 1) // 2, 1, -1)
    x = generator(fold(key, "inputs")).standard_normal((len(client), DIMENSIONS), dtype=np.float32)
    x *= (np.arange(1, DIMENSIONS + 1) ** -0.6).astype(np.float32)  # square root of Sigma's diagonal
    x += (MEAN * side).astype(np.float32)[:, None]
    # Double precision, so that the order of summation does not change labels between machines.
    margin = np.einsum("nd,d->n", x, direction, dtype=np.float64) * side
    return Populations(x, (margin >= 0).astype(np.int64), client, direction)
