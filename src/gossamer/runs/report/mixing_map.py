"""A heat map of the mixing weights of a run's clients."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import RunError
from gossamer.runs.report import html
from gossamer.runs.report.groups import Mixing, WeightCluster, described, groups, read
from gossamer.runs.report.heat import heat
from gossamer.runs.report.order import chain

Floats = npt.NDArray[np.float64]

SHOWN = 200
"""The largest number of rows and columns. Of more clients, several share one."""
TITLE = "mixing weights by client"


def figure(path: Path) -> str:
    """Return the heat map with notes as HTML, or the reason why there is none."""
    try:
        weights = read(path)
    except RunError as error:
        return html.card(f"No picture of mixing weights: {error}")
    found = groups(weights)
    each = -(-len(weights.known) // SHOWN)
    order = ordered(weights, found) if each == 1 else [client for group in found for client in group.clients]
    shares = blocks(weights, order, each)
    drawn = heat(
        TITLE,
        order[::each],
        shares,
        blank=shares == 0,
        lowest=0.0,
        tip="client {} from client {}" if each == 1 else "clients starting at {}, from clients starting at {}",
        below="client that it learns from" if each == 1 else f"client that it learns from ({each} per column)",
    )
    title = "Weight of each client (row) for each other client (column), and for itself"
    return html.figure(title, drawn, notes=[*described(found, weights.clients), " ".join(_notes(each))])


def _notes(each: int) -> Iterator[str]:
    yield "Clients are ordered by group, the largest group first. A blank cell is a weight of 0."
    if each == 1:
        yield "In a group, each client is followed by the one with the nearest weights."
    else:
        yield f"In a group, clients are in order of their numbers; {each} neighbours share a row and a column."
        yield "A cell is the mean fraction of weight that a client of the row has for all clients of the column."


def ordered(weights: Mixing, found: Sequence[WeightCluster]) -> list[int]:
    """Return the clients group by group; in a group, neighbours have similar weights."""
    rows = blocks(weights, range(weights.clients))
    return [group.clients[index] for group in found for index in chain(rows[group.clients])]


def blocks(weights: Mixing, order: Sequence[int], each: int = 1) -> Floats:
    """Return the weights in blocks of ``each`` clients: the mean over the rows, summed over the columns."""
    block = np.full(weights.clients, -1)
    block[order] = np.arange(len(order)) // each
    size = block.max() + 1
    return weights.totals(block, size) / np.bincount(block[order])[:, None]
