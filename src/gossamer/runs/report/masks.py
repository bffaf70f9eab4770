"""Heat maps of the masks of a run's clients: the overlap of every two, and their density and moves.

The masks are those of the newest checkpoint. A mask that never changed is not stored. It is made again from the
method and the network of the run, if both can be built.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gossamer.core import tree
from gossamer.core.errors import RunError
from gossamer.parts.views.mask_statistics import between, evenly, overlaps, row
from gossamer.parts.views.masks import Bits
from gossamer.runs.records import FILES, checkpoints, last_checkpoint, open_tensors, read_manifest, state_file
from gossamer.runs.report import plots
from gossamer.runs.report.base import Starts
from gossamer.runs.report.heat import chain, heat
from gossamer.runs.report.text import count, percent
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data
from gossamer.tasks.data.splits import strata

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Floats = npt.NDArray[np.float64]
Stored = dict[int, tuple[str, list[str]]]
"""For each client with a stored mask, the file and the names of its tensors there."""

CLIENTS_SHOWN = 200
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


def overlap_map(path: Path, split: Split, data: Data | None, starts: Starts | None) -> str:
    """Return the heat map with notes as HTML, or the reason why there is none."""
    try:
        found = measured(path, split, data, starts)
    except RunError as error:
        return plots.card(f"No picture of masks: {error}")
    few, notes = len(found.clients) < 2, []
    if few:
        notes.append("Fewer than two masks are available.")
    else:
        notes.append(f"The mean is {percent(float(between(found.overlap).mean()))}.")
        notes.append(
            "Neighbours have similar label distributions: each client is followed by the one with the nearest."
            if found.by_label
            else "Clients are in order of their numbers: their labels are not known here."
        )
    if len(found.clients) < found.known:
        notes.append(f"{count(len(found.clients), 'client')} of {found.known:,} are shown, evenly spaced.")
    if found.unknown:
        notes.append(
            f"Left out: {count(found.unknown, 'client')} whose mask has not changed yet; "
            "their initial masks cannot be made again from what was recorded."
        )
    if few:
        return plots.card(" ".join(notes))
    title = "Overlap of the masks of two clients: entries in both, as a fraction of entries in at least one"
    return plots.framed(title, heat(TITLE, found.clients, found.overlap), notes=[" ".join(notes)])


def measured(path: Path, split: Split, data: Data | None, starts: Starts | None) -> MaskOverlaps:
    """Return the overlaps of a run's masks at its newest checkpoint."""
    manifest = read_manifest(path, last_checkpoint(path)) if checkpoints(path) else {"clients": {}, FILES: {}}
    stored = _stored(path, manifest)
    known = sorted(stored) if starts is None else list(range(split.clients))
    chosen = evenly(known, CLIENTS_SHOWN)
    masks = _read(path, manifest, stored, chosen)
    if starts is not None:
        masks |= {client: starts(client)["mask"] for client in chosen if client not in masks}
    shares = None  # the label distribution of each client, [clients, classes], if it is known
    if data is not None and data.classes != 1 and len(split.train_index):
        groups = strata(data)
        counts = split.counts(groups.train, groups.number)[chosen]
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = chosen if shares is None else [chosen[index] for index in chain(shares)]
    overlap = overlaps([row(masks[client]) for client in order])
    return MaskOverlaps(order, overlap, shares is not None, len(known), split.clients - len(known))


def _stored(path: Path, manifest: Mapping[str, Any]) -> Stored:
    """Return the locations of the masks of a checkpoint."""
    found: Stored = {}
    homes = manifest["clients"]
    for home in sorted(set(homes.values())):
        file = state_file("clients", home)
        with open_tensors(path, file, manifest[FILES][file], "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a dictionary
                client, _, inside = name.partition("/")
                if homes.get(client) == home and inside.startswith(STORED):
                    found.setdefault(int(client), (file, []))[1].append(name)
    return found


def _read(path: Path, manifest: Mapping[str, Any], stored: Stored, clients: Collection[int]) -> dict[int, Bits]:
    """Return the stored masks of some clients; nothing else of the files is read."""
    masks: dict[int, Bits] = {}
    for file in {stored[client][0] for client in clients if client in stored}:
        with open_tensors(path, file, manifest[FILES][file], "pt") as tensors:
            for client in clients:
                home, names = stored.get(client, (None, []))
                if home == file:
                    masks[client] = {tree.names(name)[-1]: tensors.get_tensor(name) for name in names}
    return masks


Rounds = Sequence[tuple[int, dict[str, Any]]]
"""Rounds and their figures."""

ROUNDS_SHOWN = 120
"""The largest number of rounds in a heat map; of more, evenly spaced ones are shown."""

MARKED = 1600
"""Up to this many cells, each is a shape with a tooltip; beyond it, the map is a bitmap."""

WIDTH, ROW, LEFT, RIGHT, BELOW = 11.2, 0.2, 2.6, 1.0, 0.5

MAPS = {
    "tensor_density": "Density of the masks by tensor and round: held entries as a fraction of all entries",
    "tensor_distance": "Distance of masks by tensor and round: entries that changed, as a fraction of all entries",
}
"""The entries of a record that are drawn, and their titles."""

NOTE = "Means over the clients of the round. Tensors that all clients hold whole are left out."


def layer_maps(found: Rounds) -> str:
    """Return the heat maps as HTML; empty if no round has figures by tensor."""
    known = [(at, figures) for at, figures in found if figures.get("tensors")]
    if not known:
        return ""
    few = min(len(known), ROUNDS_SHOWN)
    chosen = [known[number * len(known) // few] for number in range(few)]
    return "".join(_map(chosen, entry, title) for entry, title in MAPS.items())


def _map(found: Rounds, entry: str, title: str) -> str:
    names, rounds = list(dict.fromkeys(n for _, each in found for n in each["tensors"])), [at for at, _ in found]
    values = np.full((len(names), len(rounds)), np.nan)
    for column, (_, each) in enumerate(found):
        for name, value in zip(each["tensors"], each[entry], strict=True):
            values[names.index(name), column] = value
    tips = [
        "" if np.isnan(values[y, x]) else f"{name}, round {at}: {percent(float(values[y, x]))}"
        for y, name in enumerate(names)
        for x, at in enumerate(rounds)
    ]
    drawn = plots.inline(layer_figure(names, rounds, values), title, {"cells": tips} if values.size <= MARKED else {})
    return plots.framed(title, drawn, notes=[NOTE])


def layer_figure(names: Sequence[str], rounds: Sequence[int], values: Floats) -> "Figure":
    """Return the heat map as a matplotlib figure: a row per tensor, a column per round."""
    high, shown = ROW * len(names) + BELOW + 0.1, np.ma.masked_invalid(values)
    low, top = float(shown.min()), float(shown.max())
    with plots.style():
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(WIDTH, high))
        wide, tall = (WIDTH - LEFT - RIGHT) / WIDTH, ROW * len(names) / high
        axes = drawn.add_axes((LEFT / WIDTH, BELOW / high, wide, tall))
        scale = Normalize(low, top) if low < top else Normalize(0.0, top or 1.0)  # equal values are darkest
        mesh = axes.pcolormesh(shown, cmap=plots.shades(), norm=scale, gid="cells", rasterized=values.size > MARKED)
        axes.invert_yaxis()
        axes.set_yticks([row + 0.5 for row in range(len(names))], names)
        every = -(-len(rounds) // 20)
        axes.set_xticks([column + 0.5 for column in range(0, len(rounds), every)], map(str, rounds[::every]))
        axes.set_xlabel("round")
        plots.plain(axes)
        bar = drawn.add_axes(((WIDTH - RIGHT + 0.15) / WIDTH, BELOW / high, 0.16 / WIDTH, tall))
        key = drawn.colorbar(mesh, cax=bar, ticks=sorted({low, top}))
        key.ax.set_yticklabels([percent(end) for end in sorted({low, top})])
        key.outline.set_visible(False)
        plots.plain(bar)
    return drawn
