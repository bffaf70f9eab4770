"""A heat map of the masks of a run's clients: the overlap of every two of them.

The masks are those of the newest checkpoint. A mask that never changed is not stored. It is made again from the
method and the network of the run, if both can be built.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core import tree
from gossamer.core.errors import RunError
from gossamer.parts.views.mask_statistics import between, evenly, overlaps, row
from gossamer.parts.views.masks import Bits
from gossamer.runs.arrays import opened
from gossamer.runs.records import FILES, checkpoints, last_checkpoint, read_manifest, state_file
from gossamer.runs.report import html
from gossamer.runs.report.base import Starts
from gossamer.runs.report.heat import heat
from gossamer.runs.report.order import chain
from gossamer.runs.report.text import count, percent
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data
from gossamer.tasks.data.splits import strata

Floats = npt.NDArray[np.float64]
Stored = dict[int, tuple[str, list[str]]]
"""For each client with a stored mask, the file and the names of its tensors there."""

SHOWN = 200
"""The largest number of clients in the heat map."""
TITLE = "overlap of masks by client"
STORED = "view/mask/"
"""The prefix of a mask's tensors in a client state."""


@dataclass(frozen=True)
class MaskOverlaps:
    """The overlaps of clients' masks.

    Args:
        clients: the clients, in the order in which they are drawn
        overlap: the overlap of every two of them
        by_label: whether they are ordered by similarity of label distributions, or else by number
        known: the number of clients whose mask is available
        unknown: the number of clients whose mask is not
    """

    clients: list[int]
    overlap: Floats
    by_label: bool
    known: int
    unknown: int


def figure(path: Path, split: Split, data: Data | None, starts: Starts | None) -> str:
    """Return the heat map with notes as HTML, or the reason why there is none."""
    try:
        found = measured(path, split, data, starts)
    except RunError as error:
        return html.card(f"No picture of masks: {error}")
    notes = " ".join(_notes(found))
    if len(found.clients) < 2:
        return html.card(notes)
    title = "Overlap of the masks of two clients: entries in both, as a fraction of entries in at least one"
    return html.figure(title, heat(TITLE, found.clients, found.overlap), notes=[notes])


def _notes(found: MaskOverlaps) -> Iterator[str]:
    if len(found.clients) < 2:
        yield "Fewer than two masks are available."
    else:
        yield f"The mean is {percent(float(between(found.overlap).mean()))}."
        yield (
            "Neighbours have similar label distributions: each client is followed by the one with the nearest."
            if found.by_label
            else "Clients are in order of their numbers: their labels are not known here."
        )
    if len(found.clients) < found.known:
        yield f"{count(len(found.clients), 'client')} of {found.known:,} are shown, evenly spaced."
    if found.unknown:
        yield (
            f"Left out: {count(found.unknown, 'client')} whose mask has not changed yet; "
            "their initial masks cannot be made again from what was recorded."
        )


def measured(path: Path, split: Split, data: Data | None, starts: Starts | None) -> MaskOverlaps:
    """Return the overlaps of a run's masks at its newest checkpoint."""
    manifest = read_manifest(path, last_checkpoint(path)) if checkpoints(path) else {"clients": {}, FILES: {}}
    stored = _stored(path, manifest)
    known = sorted(stored) if starts is None else list(range(split.clients))
    chosen = evenly(known, SHOWN)
    masks = _read(path, manifest, stored, chosen)
    if starts is not None:
        masks |= {client: starts(client)["mask"] for client in chosen if client not in masks}
    shares = _shares(split, data, chosen)
    order = chosen if shares is None else [chosen[index] for index in chain(shares)]
    overlap = overlaps([row(masks[client]) for client in order])
    return MaskOverlaps(order, overlap, shares is not None, len(known), split.clients - len(known))


def _shares(split: Split, data: Data | None, clients: list[int]) -> Floats | None:
    """Return the label distribution of each client, if it is known."""
    if data is None or data.classes == 1 or not len(split.train_index):
        return None
    groups = strata(data)
    counts = split.counts(groups.train, groups.number)[clients]
    shares: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _stored(path: Path, manifest: Mapping[str, Any]) -> Stored:
    """Return the locations of the masks of a checkpoint."""
    found: Stored = {}
    homes = manifest["clients"]
    for home in sorted(set(homes.values())):
        file = state_file("clients", home)
        with opened(path, file, manifest[FILES][file], "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a dictionary
                client, _, inside = name.partition("/")
                if homes.get(client) == home and inside.startswith(STORED):
                    found.setdefault(int(client), (file, []))[1].append(name)
    return found


def _read(path: Path, manifest: Mapping[str, Any], stored: Stored, clients: Collection[int]) -> dict[int, Bits]:
    """Return the stored masks of some clients; nothing else of the files is read."""
    masks: dict[int, Bits] = {}
    for file in {stored[client][0] for client in clients if client in stored}:
        with opened(path, file, manifest[FILES][file], "pt") as tensors:
            for client in clients:
                home, names = stored.get(client, (None, []))
                if home == file:
                    masks[client] = {tree.names(name)[-1]: tensors.get_tensor(name) for name in names}
    return masks
