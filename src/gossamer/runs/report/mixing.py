"""The mixing weights of a run's clients as a picture, for its page: who learns from whom, and how much."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import RunError
from gossamer.runs.report.base import Figures, Folder, Record, Report, reports
from gossamer.runs.report.groups import MixingWeights, WeightCluster, groups, read, told
from gossamer.runs.report.heat import heat
from gossamer.runs.report.masks import chain
from gossamer.runs.report.svg import Series, chart
from gossamer.runs.report.text import number, percent

Floats = npt.NDArray[np.float64]

SHOWN = 200
"""So many rows and columns are drawn at most; of more clients, several share one."""
TITLE = "mixing weights by client"


@reports("mixing")
class MixingReport(Report):
    """Mixing weights: how much of its own model a client keeps, and from how many others it learns."""

    title = "Who learns from whom"

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Medians over clients."""
        return [
            ("own weight", f"{percent(summary['own'])} (of a client for itself, median)"),
            ("learns from", f"{summary['peers']:.1f} clients in effect (median), lambda {number(summary['lam'])}"),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Medians over clients."""
        return {"own weight": percent(summary["own"]), "learns from": f"{summary['peers']:.1f}"}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Both medians by round."""
        found = [(float(record["round"]), figures) for record, figures in self.found(records)]
        own = Series("median", [(at, 100 * figures["own"]) for at, figures in found])
        peers = Series("median", [(at, figures["peers"]) for at, figures in found])
        return [
            chart("Weight of a client for itself (%)", "round", [own]),
            chart("Clients that it learns from, in effect", "round", [peers]),
        ]

    def details(self, folder: Folder) -> tuple[Figures, list[str]]:
        """Groups of clients that learn from each other, or why these are not known."""
        try:
            found = groups(read(folder.path))
        except RunError as error:
            why = f"groups of clients that learn from each other cannot be told: {error}"
            return {"groups": None}, [why]
        return {"groups": [asdict(group) for group in found]}, list(told(found, folder.clients))

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """All weights, with groups together."""
        return figure(folder.path)


def figure(path: Path) -> str:
    """The picture and what is to be known of it, or why there is none."""
    try:
        weights = read(path)
    except RunError as error:
        return f'<div class="card">No picture of mixing weights: {escape(str(error))}</div>'
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
        said="client {} from client {}" if each == 1 else "clients from {} on, from those from {} on",
        below="client that it learns from" if each == 1 else f"client that it learns from ({each} in a column)",
    )
    title = "How much a client (row) learns from each other one (column), and from itself"
    lines = "<br/>".join(escape(line) for line in (*told(found, weights.clients), " ".join(_notes(each))))
    return f"<figure><figcaption>{title}</figcaption>{drawn}<small>{lines}</small></figure>"


def _notes(each: int) -> Iterator[str]:
    yield "Groups stand together, the largest first. Where a cell is blank there is no weight."
    if each == 1:
        yield "In a group, after each client comes the one whose weights are nearest."
    else:
        yield f"In a group, clients stand by number; {each} neighbours share a row and a column."
        yield "A cell is the share of its weight that a client of the row has for all of the column, on average."


def ordered(weights: MixingWeights, found: Sequence[WeightCluster]) -> list[int]:
    """Clients group by group, in each such that neighbours have similar weights."""
    rows = blocks(weights, range(weights.clients))
    return [group.clients[place] for group in found for place in chain(rows[group.clients])]


def blocks(weights: MixingWeights, order: Sequence[int], each: int = 1) -> Floats:
    """Weights of clients in an order, so many of them a row: the mean over its clients, summed over a column's."""
    place = np.full(weights.clients, -1)
    place[order] = np.arange(len(order)) // each
    many = place.max() + 1
    cells = place[weights.whose] * many + place[weights.whom]
    total = np.bincount(cells, weights.much, many * many).reshape(many, many)
    return total / np.bincount(place[order])[:, None]
