"""Two populations that label the same world in opposite ways: the generator of PERM's first experiment.

Client i draws x ~ N(mu_i 1, Sigma) in 60 dimensions with Sigma = diag(k^-1.2); mu_i is 0.2 in the first population and
-0.2 in the second. One direction w ~ N(0.1 * 1, I) serves all of them: the first population labels with sign(w'x),
the second with sign(-w'x). One global model cannot serve both, and a client gains from its own half alone.

Taken literally the generator has a trap. The mean margin w'mu_i is 0.2 sum(w), a draw of mean 1.2 and deviation 1.5, so
one class can hold nearly all labels; and as mean and labels flip together, *both* populations have the same majority. A
model that always answers with it then scores as well as a personal one, and the experiment shows nothing. The balanced
version removes the mean of w, so that sum(w) = 0 and every client's labels are even in expectation.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.core.random import Key, fold, generator

DIMENSIONS = 60
SAMPLES = 500
MEAN = 0.2
DIRECTION_MEAN = 0.1


class Populations(NamedTuple):
    """What ``two_populations`` draws: inputs [n, 60], labels [n], the client each belongs to, and w."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    client: npt.NDArray[np.int64]
    direction: npt.NDArray[np.float64]


def two_populations(clients: int, key: Key, *, balanced: bool = True, samples: int = SAMPLES) -> Populations:
    """Draw ``samples`` of each client, client after client; of an odd number of clients the first half has one more."""
    direction = generator(fold(key, "direction")).normal(DIRECTION_MEAN, 1.0, DIMENSIONS)
    if balanced:
        direction -= direction.mean()
    client = np.repeat(np.arange(clients), samples)
    side = np.where(client < (clients + 1) // 2, 1, -1)
    x = generator(fold(key, "inputs")).standard_normal((len(client), DIMENSIONS), dtype=np.float32)
    x *= (np.arange(1, DIMENSIONS + 1) ** -0.6).astype(np.float32)  # the square root of Sigma's diagonal k^-1.2
    x += (MEAN * side).astype(np.float32)[:, None]
    # In double precision, so that the order of summation on one machine or another does not decide a label.
    margin = np.einsum("nd,d->n", x, direction, dtype=np.float64) * side
    return Populations(x, (margin >= 0).astype(np.int64), client, direction)
