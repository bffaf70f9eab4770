"""Draws of classes from pools that run out: each turn draws from its client's prior over the classes that remain.

A loop over turns would be slow. Until a class runs out, the draws are independent of each other. So all turns draw at
once, and the draws before the next exhausted class are kept.
"""

import numpy as np
import numpy.typing as npt

from gossamer.tasks.data.partition import Index, order_of


def draw_until_empty(turns: Index, prior: npt.NDArray[np.float64], pools: Index, draw: np.random.Generator) -> Index:
    """Return the class of each turn, as if drawn one after the other, with one pass per exhausted class.

    All turns draw at once. The first turn with an exhausted class ends the pass. Earlier draws are kept; later draws of
    this class are repeated without it. Each pass exhausts a class, so there are few.
    """
    left, done = pools.copy(), 0
    drawn = _draw_classes(turns, prior, left, draw)
    while (empty := _first_refusal(drawn[done:], left)) is not None:
        stop = done + empty
        left -= np.bincount(drawn[done:stop], minlength=len(pools))
        again = stop + np.flatnonzero(drawn[stop:] == drawn[stop])
        drawn[again] = _draw_classes(turns[again], prior, left, draw)
        done = stop
    return drawn


def _first_refusal(drawn: Index, left: Index) -> int | None:
    """Return the index of the first draw of an exhausted class, if there is one."""
    demand = np.bincount(drawn, minlength=len(left))
    refused = [np.flatnonzero(drawn == label)[left[label]] for label in np.flatnonzero(demand > left)]
    return int(min(refused)) if refused else None


def _draw_classes(turns: Index, prior: npt.NDArray[np.float64], left: Index, draw: np.random.Generator) -> Index:
    """Draw one class per turn, from its client's prior over the classes with samples left."""
    order = order_of(turns)
    client = turns[order]
    new = np.diff(client, prepend=-1) > 0
    rows, row = client[new], np.cumsum(new) - 1
    mass = np.where(left > 0, prior[rows], 0.0)
    mass[mass.sum(axis=1) <= 0] = left
    upto = np.cumsum(mass, axis=1)
    upto = upto / upto[:, -1:] + np.arange(len(rows))[:, None]
    # One sorted row for all clients: client r's cumulative shares are in (r, r + 1]. Rounding must not reach r + 1.
    point = np.minimum(row + draw.random(len(row)), np.nextafter(row + 1.0, 0.0))
    drawn = np.empty_like(turns)
    drawn[order] = np.searchsorted(upto.ravel(), point, side="right") - row * len(left)
    return drawn
