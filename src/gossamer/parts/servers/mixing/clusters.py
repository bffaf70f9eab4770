"""Mixing weights between clusters of clients, for many thousands of clients.

Clients are grouped by their gradients, by k-means (``group``). All clients of a cluster have the same weights, and a
weight for a cluster is spread over its members by their numbers of samples: client i of cluster A has the weight
``b_AB n_j / n_B`` for client j of cluster B, where n_B is the number of samples of cluster B. Among all weights of this
kind, ``between`` finds those that minimize the objective of PERM (Deng et al., 2023, Equation 2,
https://arxiv.org/abs/2310.17761), averaged over the samples of cluster A. The mean distance between the clients of two
clusters is ``|c_A - c_B|^2 + v_A + v_B``, with the means c of their gradients and the variances v around them. Since
``sum_j (b_AB n_j / n_B)^2 / n_j = b_AB^2 / n_B``, the weights b minimize

    sum_B b_AB (|c_A - c_B|^2 + v_B) + lambda sum_B b_AB^2 / n_B        v_A is the same for all B

This is the problem of the paper with a cluster in place of a client, and water-filling solves it exactly.

A model has a weight for thousands of clients then. It cannot visit all of them in an epoch. It visits ``VISITS`` hosts,
which are drawn with probabilities proportional to the weights (``hosts``), and all visits count alike. In expectation
the model descends the same mixture. Draws are stratified twice: a model draws one host from each of ``VISITS`` parts
of equal weight, and the models of a cluster together visit a host as often as expected, rounded up or down.

K-means: Lloyd, Least Squares Quantization in PCM, 1982, https://doi.org/10.1109/TIT.1982.1056489. Seeds: Arthur and
Vassilvitskii, k-means++, SODA 2007, https://dl.acm.org/doi/10.5555/1283383.1283494.
"""

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.core.random import Key, fold, permutation, uniform
from gossamer.parts.servers.mixing import distances
from gossamer.parts.servers.mixing.schedule import Flags, Pairs
from gossamer.parts.servers.mixing.weights import waterfill

VISITS = 20
"""Visits of a model in an epoch."""

STEPS = 20
"""The largest number of steps of k-means."""


def group(vectors: Tensor, samples: Tensor, count: int, key: Key) -> Tensor:
    """Return the cluster of each row of ``vectors``, from 0 to ``count`` - 1, by k-means with rows weighted by samples.

    >>> from gossamer.core.random import key
    >>> found = group(torch.tensor([[0.0], [9.0], [0.1], [9.1]]), torch.ones(4), 2, key(0))
    >>> (found[0] == found[2], found[1] == found[3], found[0] == found[1])
    (tensor(True), tensor(True), tensor(False))
    """
    require(
        (count >= 1, f"group: count must be at least 1, got {count}"),
        (samples.shape == vectors.shape[:1], "group: samples must have one number per row of vectors"),
        (bool((samples > 0).all()), "group: samples must be positive"),
    )
    x, weights = distances.centred(vectors.double(), masked=False), samples.double()
    means = _seeds(x, weights, count, key)
    labels = _nearest(x, means)
    for _ in range(STEPS):
        means = _means(x, weights, labels, means)
        before, labels = labels, _nearest(x, means)
        if torch.equal(before, labels):
            break
    return labels


def _seeds(x: Tensor, weights: Tensor, count: int, key: Key) -> Tensor:
    """Return rows that are far apart: each is drawn with probability proportional to its squared distance."""
    chance, chosen = weights, list[int]()
    near = torch.full_like(weights, torch.inf)
    for draw in uniform(fold(key, "seeds"), count, dtype=torch.float64).tolist():
        total = chance.cumsum(0)
        if not float(total[-1]):
            break  # all rows are among the seeds
        chosen.append(min(int(torch.searchsorted(total, draw * total[-1], right=True)), len(x) - 1))
        near = torch.minimum(near, _squares(x, x[chosen[-1:]], torch.zeros(len(x), dtype=torch.int64)))
        chance = weights * near
    return x[chosen]


def _nearest(x: Tensor, means: Tensor) -> Tensor:
    """Return the nearest mean of each row."""
    return (means.square().sum(1) - 2 * x @ means.T).argmin(1)


def _means(x: Tensor, weights: Tensor, labels: Tensor, before: Tensor) -> Tensor:
    """Return the mean of each cluster. That of an empty one stays."""
    total = torch.zeros_like(before)
    for rows in _blocks(x):
        total.index_add_(0, labels[rows], x[rows] * weights[rows, None])
    size = torch.zeros(len(before), dtype=x.dtype).index_add_(0, labels, weights)
    return torch.where(size[:, None] > 0, total / size.clamp(min=1e-300)[:, None], before)


def _squares(x: Tensor, means: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of each row to the mean of its cluster."""
    return torch.cat([(x[rows] - means[labels[rows]]).square().sum(1) for rows in _blocks(x)])


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of rows in blocks: few rows at a time need no second matrix of all clients."""
    return torch.split(torch.arange(len(x)), distances.block_rows(x.shape[1]))


def between(vectors: Tensor, samples: Tensor, labels: Tensor, count: int, lam: float) -> Tensor:
    """Return the weights of clusters for clusters, [count, count]. The weight for an empty cluster is 0.

    >>> gradients = torch.tensor([[0.0], [0.0], [1.0], [9.0]])
    >>> between(gradients, torch.full((4,), 10), torch.tensor([0, 0, 1, 2]), 3, 30.0)[0]
    tensor([0.7778, 0.2222, 0.0000], dtype=torch.float64)
    """
    x, weights = distances.centred(vectors.double(), masked=False), samples.double()
    means = _means(x, weights, labels, torch.zeros(count, x.shape[1], dtype=x.dtype))
    size = torch.zeros(count, dtype=x.dtype).index_add_(0, labels, weights)
    around = weights * _squares(x, means, labels)
    spread = torch.zeros(count, dtype=x.dtype).index_add_(0, labels, around) / size.clamp(min=1e-300)
    return waterfill(distances.rows_apart(torch.arange(count), means) + spread, size, lam)


def shares(samples: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the share of each client in the samples of its cluster.

    >>> shares(torch.tensor([1, 3, 5]), torch.tensor([0, 0, 1]), 2)
    tensor([0.2500, 0.7500, 1.0000], dtype=torch.float64)
    """
    size = torch.zeros(count, dtype=torch.float64).index_add_(0, labels, samples.double())
    return samples.double() / size[labels]


def hosts(cluster: Tensor, share: Tensor, weights: Tensor, known: Flags, key: Key) -> Pairs:
    """Return ``VISITS`` pairs of each known model with hosts, drawn by the weights of its cluster for theirs.

    A pair may occur several times.
    """
    labels, parts, rows = cluster.numpy(), share.numpy(), weights.numpy()
    order = np.lexsort((permutation(fold(key, "hosts"), len(labels)), labels))
    order = order[known[order]]
    models, found = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for number in np.unique(labels[order]).tolist():
        ends = np.cumsum(rows[number, labels[order]] * parts[order])
        members = order[labels[order] == number]
        members = members[permutation(fold(key, "models", number), len(members))]
        points = np.arange(VISITS * len(members)) + uniform(fold(key, "offset", number), 1, dtype=torch.float64).numpy()
        at = np.searchsorted(ends, points / len(points) * ends[-1], side="right")
        models.append(np.tile(members, VISITS))
        found.append(order[at.clip(max=len(order) - 1)])
    return Pairs(np.concatenate(models), np.concatenate(found))
