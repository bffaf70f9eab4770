"""Squared distances between rows, as accurate for rows that are close as for those far apart.

By ``|x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>`` all pairs are one product of matrices, but what is left of a difference has
few right digits where two rows are much closer to each other than to zero. Two things help: the mean of all rows is
taken off first, which changes no distance; and pairs that come out small beside what they are the difference of are
done again, entry by entry.

An entry that a row does not have is NaN, and a pair is compared over the entries that both have. With x and y zero
where they have none, and 0/1 masks m and k, that is ``x^2 k' + m y^2' - 2 x y'``.
"""

import torch
from torch import Tensor

CLOSE = 1e-4
"""Pairs are done again that come out below this part of the squares which they are the difference of."""

ENTRIES = 2**20
"""How many numbers a block has: 8 MiB."""


def centred(x: Tensor, masked: bool) -> Tensor:
    """The rows less the mean of those that have each entry. Without ``masked`` no entry is NaN, here and below."""
    return x - (x.nanmean(0) if masked else x.mean(0))


def products(x: Tensor, y: Tensor, masked: bool) -> Tensor:
    """For all pairs of a row of ``x`` and one of ``y``: squared distance, squares, common entries, [3, rows, rows].

    Those of some columns and of the others sum to those of all.
    """
    if not masked:
        inner = x @ y.T
        own = inner.diagonal() if x is y else torch.linalg.vecdot(x, x)
        squares = own[:, None] + (own if x is y else torch.linalg.vecdot(y, y))
        return torch.stack((squares - 2 * inner, squares, torch.full_like(squares, x.shape[1])))
    mine, theirs = (~x.isnan()).double(), (~y.isnan()).double()
    x, y = x.nan_to_num(0), y.nan_to_num(0)
    squares = x.square() @ theirs.T + mine @ y.square().T
    return torch.stack((squares - 2 * x @ y.T, squares, mine @ theirs.T))


def close(apart: Tensor, squares: Tensor) -> Tensor:
    """Positions [pairs, 2] of pairs that must be done again; those whose squares have no form as a float are, too."""
    return (~(apart >= CLOSE * squares)).nonzero()


def differences(x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
    """The squared distance of some pairs of a row of ``x`` and one of ``y``, entry by entry, a block at a time."""
    blocks = torch.split(pairs, max(1, ENTRIES // max(1, x.shape[1])))
    return torch.cat([(x[block[:, 0]] - y[block[:, 1]]).square().nansum(1) for block in blocks])
