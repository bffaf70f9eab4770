"""Statistics of personal masks: how much they change, and how much they overlap, computed on packed bits.

The overlap of two masks is the Jaccard index: entries in both, divided by entries in at least one. The change of a mask
is the fraction of its entries that it dropped. Tensors without a mask are held whole and do not count.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.types import Params, State

PAIRED = 32
"""Largest number of clients whose masks are compared pairwise. Of more clients, an evenly spaced subset is used."""

PIECE = 2048
"""Words per mask in one block of comparisons, chosen to fit into a processor's cache."""

Row = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


def row(masks: Mapping[str, Tensor]) -> Row:
    """Return the masks of one client as one vector of 64-bit words, tensors in name order, padded with zeros."""
    packed = torch.cat([masks[name] for name in sorted(masks)]).cpu().numpy()
    return np.concatenate([packed, np.zeros(-len(packed) % 8, dtype=np.uint8)]).view(np.uint64)


def held(mask: Row) -> int:
    """Return the number of entries in a mask."""
    return int(np.bitwise_count(mask).sum(dtype=np.int64))


def moved(old: Row, new: Row) -> float:
    """Return the fraction of the old mask's entries that the new mask dropped."""
    return held(old & ~new) / max(1, held(old))


def overlaps(rows: Sequence[Row]) -> Floats:
    """Return the overlap of every pair of masks, [masks, masks]. Two empty masks have overlap 1."""
    both = np.zeros((len(rows), len(rows)), dtype=np.int64)
    for start in range(0, len(rows[0]) if rows else 0, PIECE):
        piece = np.stack([mask[start : start + PIECE] for mask in rows])
        for one in range(len(rows)):
            both[one, : one + 1] += np.bitwise_count(piece[: one + 1] & piece[one]).sum(axis=1, dtype=np.int64)
    both = np.maximum(both, both.T)
    counts = both.diagonal()
    either = counts[:, None] + counts - both
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def between(overlap: Floats) -> Floats:
    """Return the overlaps of all pairs of different masks, each pair once."""
    return overlap[np.tril_indices(len(overlap), -1)]


def evenly(things: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` evenly spaced elements of a sequence."""
    count = min(len(things), most)
    return [things[number * len(things) // count] for number in range(count)]


def figures(before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, float | None]:
    """Return the mask statistics of a round: change, density and overlap.

    Each is a mean over the clients in ``after``, or over pairs of them. It is ``None`` without clients or masks.
    """
    clients = [client for client in sorted(after) if after[client].get("mask")]
    new = {client: row(after[client]["mask"]) for client in clients}
    size = max(1, sum(like[name].numel() for client in clients[:1] for name in after[client]["mask"]))
    pairs = between(overlaps([new[client] for client in evenly(clients, PAIRED)]))
    return {
        "moved": _mean([moved(row(before[client]["mask"]), mask) for client, mask in new.items()]),
        "density": _mean([held(mask) / size for mask in new.values()]),
        "overlap": _mean(pairs.tolist()),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
