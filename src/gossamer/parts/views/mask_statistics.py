"""How far masks of clients' own moved, and how much they have in common, counted on their packed bits.

Two masks overlap by the entries that both hold, as a share of those that at least one of them holds. A mask moved by
the entries that it let go, as a share of those that it held. Tensors without a mask are held whole: they do not count.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gossamer.core.types import Params, State

PAIRED = 32
"""Among so many clients of a round every two are compared; of more, so many that are spread evenly."""

PIECE = 2048
"""So many words of each mask are compared at a time: they fit into the fast memory of a processor."""

Row = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


def row(masks: Mapping[str, Tensor]) -> Row:
    """The masks of one client as one row of words, tensors in name order; what fills it up is zero."""
    packed = [masks[name].cpu().numpy() for name in sorted(masks)]
    filling = np.zeros(-sum(map(len, packed)) % 8, dtype=np.uint8)
    return np.concatenate([*packed, filling]).view(np.uint64)


def held(mask: Row) -> int:
    """How many entries a mask holds."""
    return int(np.bitwise_count(mask).sum(dtype=np.int64))


def moved(old: Row, new: Row) -> float:
    """Which share of the entries that it held a mask let go."""
    return held(old & ~new) / max(1, held(old))


def overlaps(rows: Sequence[Row]) -> Floats:
    """How much every two masks overlap; two that hold nothing are the same."""
    both = np.zeros((len(rows), len(rows)), dtype=np.int64)
    for start in range(0, len(rows[0]) if rows else 0, PIECE):
        piece = np.stack([mask[start : start + PIECE] for mask in rows])
        for one in range(len(rows)):
            both[one, : one + 1] += np.bitwise_count(piece[: one + 1] & piece[one]).sum(axis=1, dtype=np.int64)
    both = np.maximum(both, both.T)
    many = both.diagonal()
    either = many[:, None] + many - both
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def between(overlap: Floats) -> Floats:
    """The overlap of every two different masks, once."""
    return overlap[np.tril_indices(len(overlap), -1)]


def evenly(things: Sequence[int], most: int) -> list[int]:
    """All of a row of things, or as many as are allowed, spread evenly over it."""
    few = min(len(things), most)
    return [things[place * len(things) // few] for place in range(few)]


def figures(before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, float | None]:
    """What a round's record says of masks: how they moved, and what clients hold after it.

    Each is a mean over the clients that ``after`` has, or over pairs of them; none where there are none, or no masks.
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
