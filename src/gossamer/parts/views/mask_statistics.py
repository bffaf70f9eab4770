"""Statistics of personal masks: how much they change, and how much they overlap, computed on packed bits.

The overlap of two masks is the Jaccard index: entries in both, divided by entries in at least one. The change of a mask
is the fraction of its entries that it dropped. The distance of two masks of a tensor is their Hamming distance, as a
fraction of the tensor's entries. Tensors without a mask are held whole and do not count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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


def by_tensor(mask: Row, lengths: Sequence[int]) -> Floats:
    """Return the number of entries in a mask by tensor, given the bytes of each tensor's mask in name order."""
    ones = np.bitwise_count(mask.view(np.uint8)[: sum(lengths)])
    return np.add.reduceat(ones, np.cumsum([0, *lengths[:-1]]), dtype=np.float64)


def tensor_figures(pairs: Sequence[tuple[Row, Row]], mask: Mapping[str, Tensor], like: Params) -> dict[str, list[Any]]:
    """Return density and distance of each tensor, means over pairs of old and new masks, to four digits.

    ``mask`` is the mask of one client. Lists are in the order of ``tensors``.
    """
    names = sorted(mask)
    lengths, sizes = [len(mask[name]) for name in names], np.array([like[name].numel() for name in names])
    density = np.mean([by_tensor(new, lengths) for _, new in pairs], axis=0) / sizes
    distance = np.mean([by_tensor(old ^ new, lengths) for old, new in pairs], axis=0) / sizes
    short = [[float(f"{value:.4g}") for value in values] for values in (density, distance)]
    return {"tensors": names, "tensor_density": short[0], "tensor_distance": short[1]}


def figures(before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
    """Return the mask statistics of a round: change, density and overlap, then density and distance by tensor.

    Each is a mean over the clients in ``after``, or over pairs of them. Without clients or masks the first are
    ``None``, and the others are left out.
    """
    clients = [client for client in sorted(after) if after[client].get("mask")]
    old, new = ({client: row(each[client]["mask"]) for client in clients} for each in (before, after))
    size = max(1, sum(like[name].numel() for client in clients[:1] for name in after[client]["mask"]))
    pairs = between(overlaps([new[client] for client in evenly(clients, PAIRED)]))
    changes = [(old[client], new[client]) for client in clients]
    return {
        "moved": _mean([moved(*change) for change in changes]),
        "density": _mean([held(mask) / size for mask in new.values()]),
        "overlap": _mean(pairs.tolist()),
        **(tensor_figures(changes, after[clients[0]]["mask"], like) if clients else {}),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
