"""Rules that work entry by entry: the values of an entry in all updates are sorted, and a rule combines them.

Where clients hold parts of the model, an entry has the values of its holders alone. An entry with some holders, but too
few for the rule, takes a weaker rule: the mean of updates whose norms are clipped at the round's median (``Clip``). A
hostile holder then moves it by no more than an ordinary update does.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gossamer.parts.servers.clipping import shrink
from gossamer.parts.servers.robust.clip import bound
from gossamer.parts.servers.robust.updates import Updates, blocks

Combine = Callable[[Tensor, Tensor], Tensor]
"""``combine(ranked, holders)``: one value per column of sorted values. Only its first ``holders`` values count."""


def by_coordinate(updates: Updates, combine: Combine, min_holders: int) -> Tensor:
    """Return the combination of each entry's values."""
    found = updates.like.new_empty(updates.size)
    for chunk in updates.chunks():
        found[chunk.at] = torch.cat([_combined(rows, held, combine) for rows, held in blocks(chunk)])
    if not updates.partial:
        return found
    holders = updates.holders()
    few = (holders > 0) & (holders < min_holders)
    if bool(few.any()):
        norms = updates.norms()
        found = torch.where(few, updates.mean(updates.equal_weights, shrink(norms, bound("median", norms))), found)
    return torch.where(holders > 0, found, 0)


def _combined(rows: Tensor, held: Tensor | None, combine: Combine) -> Tensor:
    if held is None:
        return combine(_sorted(rows), torch.full_like(rows[0], len(rows), dtype=torch.int64))
    ranked = _sorted(torch.where(held, rows, torch.inf))  # values that do not count are last
    return combine(ranked, held.sum(0))


def _sorted(rows: Tensor) -> Tensor:
    """Sort each column. On a CPU, NumPy is several times faster."""
    return rows.sort(0).values if rows.is_cuda else torch.from_numpy(np.sort(rows.numpy(), axis=0))
