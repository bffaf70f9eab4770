"""The masks of a run's clients beside each other, for its page: how much every two of them overlap.

They are those of the newest checkpoint. A client whose mask never moved has none stored: it has the one that it started
with, which can be made again where the run's method and network can.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core import files
from gossamer.core.errors import RunError
from gossamer.parts.views.mask_statistics import between, evenly, overlaps, row
from gossamer.parts.views.masks import Bits
from gossamer.runs.folder import checkpoints
from gossamer.runs.report.base import Figures, Folder, Record, Report, Starts, reports
from gossamer.runs.report.heat import heat
from gossamer.runs.report.text import count, percent
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data

Floats = npt.NDArray[np.float64]
Places = dict[int, tuple[Path, list[str]]]
"""Of each client whose mask is stored: in which file, and what its tensors are called there."""

SHOWN = 200
"""So many clients are drawn at most."""
TITLE = "overlap of masks by client"
STORED = "view/mask/"
"""Where a client's state has its mask."""


@reports("masks")
class MaskReport(Report):
    """Masks of clients' own: how dense they are, how far they moved, how much they overlap."""

    title = "Masks"

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """As of the last round in which a message arrived.

        ``moved_in_all`` is the sum over a client's rounds, on average over all clients.
        """
        found = self.found(records)
        if not found:
            return None
        heard = [figures for _, figures in found if figures["density"] is not None]
        moves = sum((figures["moved"] or 0.0) * _folded(record) for record, figures in found)
        return {**(heard[-1] if heard else found[-1][1]), "moved_in_all": moves / clients}

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Density, moves and overlap."""
        last, in_all = percent(summary["moved"]), percent(summary["moved_in_all"])
        return [
            ("mask density", f"{percent(summary['density'])} (of the entries that masks choose from)"),
            ("masks moved", f"{last} of what they held in the last round, {in_all} in all (mean over clients)"),
            ("mask overlap", f"{percent(summary['overlap'])} (between two clients of the last round)"),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """None: ``compare`` has a column for bytes without masks."""
        return {}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """None: the overlaps of all clients are drawn instead."""
        return []

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """How much every two masks overlap."""
        heard = any(figures["density"] is not None for _, figures in self.found(records))
        return figure(folder.path, folder.split, folder.data, folder.rebuild()) if heard else ""


def _folded(record: Record) -> int:
    """The number of clients whose message was folded in the last exchange."""
    return int(record["exchanges"][-1]["folded"])


@dataclass(frozen=True)
class Beside:
    """Clients' masks beside each other.

    Args:
        clients: whose masks, in the order in which they are drawn
        overlap: how much every two of them overlap
        by_label: whether that order is by similarity of label shares, or else by number
        known: how many clients have a mask that can be had
        unknown: how many have not
    """

    clients: list[int]
    overlap: Floats
    by_label: bool
    known: int
    unknown: int


def figure(path: Path, split: Split, data: Data | None, starts: Starts | None) -> str:
    """The picture and what is to be known of it, or why there is none."""
    try:
        found = companion(path, split, data, starts)
    except RunError as error:
        return f'<div class="card">No picture of masks: {escape(str(error))}</div>'
    told = " ".join(_notes(found))
    if len(found.clients) < 2:
        return f'<div class="card">{told}</div>'
    title = "How much the masks of two clients overlap: entries that both hold, of those that one of them holds"
    drawn = heat(TITLE, found.clients, found.overlap)
    return f"<figure><figcaption>{title}</figcaption>{drawn}<small>{told}</small></figure>"


def _notes(found: Beside) -> Iterator[str]:
    if len(found.clients) < 2:
        yield "There are no two clients of which masks can be had."
    else:
        yield f"On average {percent(float(between(found.overlap).mean()))}."
        yield (
            "Neighbours have similar shares of labels: after each client comes the one whose shares are nearest."
            if found.by_label
            else "Clients stand by number: which labels they have is not known here."
        )
    if len(found.clients) < found.known:
        yield f"{count(len(found.clients), 'client')} of {found.known:,} are shown, spread evenly."
    if found.unknown:
        yield (
            f"Left out: {count(found.unknown, 'client')} whose mask has not moved yet; "
            "the one to start with cannot be made again from what was recorded."
        )


def companion(path: Path, split: Split, data: Data | None, starts: Starts | None) -> Beside:
    """The masks of a run at its newest checkpoint."""
    try:
        places = _places(path)
        known = sorted(places) if starts is None else list(range(split.clients))
        chosen = evenly(known, SHOWN)
        masks = _read(places, chosen)
    except (OSError, ValueError) as error:
        raise RunError(f"what clients remember cannot be read: {error}") from error
    if starts is not None:
        masks |= {client: starts(client)["mask"] for client in chosen if client not in masks}
    shares = _shares(split, data, chosen)
    order = chosen if shares is None else [chosen[place] for place in chain(shares)]
    overlap = overlaps([row(masks[client]) for client in order])
    return Beside(order, overlap, shares is not None, len(known), split.clients - len(known))


def _shares(split: Split, data: Data | None, clients: list[int]) -> Floats | None:
    """Which share of each client's samples has each label, if that is known."""
    if data is None or data.classes < 2 or not len(split.train_index):
        return None
    counts = split.counts(data.train.labels, data.classes)[clients]
    shares: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def chain(shares: Floats) -> list[int]:
    """An order of rows in which neighbours are alike.

    It begins with the row that is farthest from the mean of all, and goes on with the one, of those left, that is
    nearest to the last; distances are sums of differences.

    >>> chain(np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]]))
    [1, 3, 2, 0]
    """
    apart = np.abs(shares[:, None] - shares).sum(axis=2)
    order = [int(np.abs(shares - shares.mean(axis=0)).sum(axis=1).argmax())] if len(shares) else []
    left = set(range(len(shares))) - set(order)
    while left:
        order.append(min(sorted(left), key=lambda place: float(apart[order[-1], place])))
        left.remove(order[-1])
    return order


def _places(path: Path) -> Places:
    """Where the newest checkpoint has clients' masks."""
    found: Places = {}
    newest = next(iter(checkpoints(path)), None)
    homes = files.from_json(path / f"checkpoints/{newest}/manifest.json")["clients"] if newest else {}
    for home in sorted(set(homes.values())):
        file = path / f"clients/{home}.safetensors"
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no dictionary
                client, _, inside = name.partition("/")
                if homes.get(client) == home and inside.startswith(STORED):
                    found.setdefault(int(client), (file, []))[1].append(name)
    return found


def _read(places: Places, clients: Collection[int]) -> dict[int, Bits]:
    """The masks of those clients that have one stored; nothing else of the files is read."""
    masks: dict[int, Bits] = {}
    for file in {places[client][0] for client in clients if client in places}:
        with _opened(file) as tensors:
            for client in clients:
                home, names = places.get(client, (None, []))
                if home == file:
                    masks[client] = {name.partition(STORED)[2]: tensors.get_tensor(name) for name in names}
    return masks


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A file of tensors, of which those are read that are asked for; a ``ValueError`` if it is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error
