"""Taking turns at pools that run out: each turn draws a class from its client's prior among the classes not yet empty.

One turn after another would be a loop over samples. Between two moments at which a class runs out the draws do not
depend on one another, so all of them can be made at once and those before the next such moment kept.
"""

import numpy as np
import numpy.typing as npt

from gossamer.tasks.data.partition import Index, order_of


def draw_until_empty(turns: Index, prior: npt.NDArray[np.float64], pools: Index, draw: np.random.Generator) -> Index:
    """The class that each turn takes, as if turn by turn, but in one pass for every class that runs out.

    All turns draw at once. The first turn whose class has just run out ends the pass: the turns before it stand, and
    those from it on that drew this class draw again without it. Each pass closes a class, so there are few.
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
    """The first draw of a class of which nothing is left by then, if there is one."""
    demand = np.bincount(drawn, minlength=len(left))
    places = [np.flatnonzero(drawn == label)[left[label]] for label in np.flatnonzero(demand > left)]
    return int(min(places)) if places else None


def _draw_classes(turns: Index, prior: npt.NDArray[np.float64], left: Index, draw: np.random.Generator) -> Index:
    """One class for each turn, from its client's prior over the classes that have samples left."""
    order = order_of(turns)
    client = turns[order]
    new = np.diff(client, prepend=-1) > 0
    rows, row = client[new], np.cumsum(new) - 1
    mass = np.where(left > 0, prior[rows], 0.0)
    mass[mass.sum(axis=1) <= 0] = left
    upto = np.cumsum(mass, axis=1)
    upto = upto / upto[:, -1:] + np.arange(len(rows))[:, None]
    # One sorted row serves all clients: client r's cumulative shares lie in (r, r + 1]. Rounding must not reach r + 1.
    point = np.minimum(row + draw.random(len(row)), np.nextafter(row + 1.0, 0.0))
    drawn = np.empty_like(turns)
    drawn[order] = np.searchsorted(upto.ravel(), point, side="right") - row * len(left)
    return drawn
