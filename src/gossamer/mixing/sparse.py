"""Mixing weights of thousands of clients: a few for each, found without the distances of all pairs.

Rows are done a block at a time. Of each the best weights over all clients are found, and the largest ones are kept and
brought to the sum 1. What is lost is what is dropped: the total variation distance to the best weights is the sum of
the weights that are not kept. It is 0 where no more clients than are kept have a weight.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gossamer.errors import require
from gossamer.mixing import pairs
from gossamer.mixing.weights import waterfill


def nearest(
    rows: Sequence[int] | Tensor, vectors: Tensor, samples: Tensor, lam: float, keep: int
) -> tuple[Tensor, Tensor]:
    """The ``keep`` largest weights of some clients: whose they are, and the weights, both [rows, keep].

    ``vectors`` [clients, numbers] are the gradients of all clients, or sketches of them. A client itself always comes
    first, then others by falling weight. If there are fewer clients than ``keep``, all are kept.

    >>> nearest([0], torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([10, 10, 10]), 10.0, keep=2)
    (tensor([[0, 1]]), tensor([[0.7500, 0.2500]], dtype=torch.float64))
    """
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    require(
        (vectors.dim() == 2 and vectors.is_floating_point(), "nearest: vectors must be [clients, numbers], and floats"),
        (keep > 0, f"nearest: keep must be at least 1, got {keep}"),
        (
            bool(((chosen >= 0) & (chosen < len(vectors))).all()),
            f"nearest: rows must be from 0 to {len(vectors) - 1}, for there are {len(vectors)} vectors",
        ),
    )
    found = list(_blocks(chosen, pairs.centred(vectors.double(), masked=False), samples, lam, min(keep, len(vectors))))
    indices, values = zip(*found, strict=True)
    return torch.cat(indices), torch.cat(values)


def dense(indices: Tensor, values: Tensor, n: int) -> Tensor:
    """All weights of each row, [rows, n]: 0 where none is kept.

    >>> dense(torch.tensor([[2, 0]]), torch.tensor([[0.75, 0.25]]), 4)
    tensor([[0.2500, 0.0000, 0.7500, 0.0000]])
    """
    return values.new_zeros(len(indices), n).scatter_(1, indices, values)


def _blocks(chosen: Tensor, vectors: Tensor, samples: Tensor, lam: float, keep: int) -> Iterator[tuple[Tensor, Tensor]]:
    for block in torch.split(chosen, max(1, pairs.ENTRIES // max(vectors.shape))):
        weights = waterfill(_distances(block, vectors), samples, lam)
        # Its own counts as more than all others together, so that it is kept.
        order = weights.scatter(1, block[:, None], 2.0).argsort(dim=1, descending=True, stable=True)[:, :keep]
        values = weights.gather(1, order)
        yield order.clone(), values / values.sum(1, keepdim=True)


def _distances(block: Tensor, vectors: Tensor) -> Tensor:
    """Squared distances of some clients to all."""
    own = vectors[block]
    apart, squares, _ = pairs.products(own, vectors, masked=False).unbind()
    again = pairs.close(apart, squares)
    apart[again[:, 0], again[:, 1]] = pairs.differences(own, vectors, again)
    return apart.clamp(min=0)
