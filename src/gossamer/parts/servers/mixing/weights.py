"""Mixing weights: how much each client learns from each other client.

Deng et al., Distributed Personalized Empirical Risk Minimization (PERM), NeurIPS 2023,
https://arxiv.org/abs/2310.17761.

Client i trains on a mixture of the losses of all clients. Its weights a minimize, over a >= 0 with sum 1 (Equation 2),

    sum_j a_j z_ij + lambda sum_j a_j^2 / n_j        z_ij = |grad f_i(w) - grad f_j(w)|^2

where w is the global model and n_j the number of samples of client j. The first term excludes clients with different
data. The second term spreads the weight over many samples. With unequal models, ``complexity`` adds a term to each row
of z. A client with infinite distance or without samples has weight 0.

``waterfill`` solves the problem exactly. Pour 2 lambda of water over a ground with width n_j and height z_ij. With the
surface at height nu, the weight of j is its share of the water, ``n_j (nu - z_ij) / (2 lambda)``, or 0 above the
surface. The function finds nu by sorting. ``descend`` is the projected gradient descent of the paper.

``nearest`` finds a few weights per client without the distances of all pairs, for thousands of clients. It works in
blocks of rows. It computes the optimal weights over all clients, keeps the largest, and normalizes them to sum 1. The
total variation distance to the optimal weights is the sum of the dropped weights.

**Weights between clusters** of clients, for many thousands of them. Clients are grouped by their gradients, by k-means
(``group``). All clients of a cluster have the same weights, and a weight for a cluster is spread over its members by
their numbers of samples: client i of cluster A has the weight ``b_AB n_j / n_B`` for client j of cluster B, where n_B
is the number of samples of cluster B. Among all weights of this kind, ``between`` finds those that minimize the
objective of PERM (Deng et al., 2023, Equation 2, https://arxiv.org/abs/2310.17761), averaged over the samples of
cluster A. The mean distance between the clients of two clusters is ``|c_A - c_B|^2 + v_A + v_B``, with the means c of
their gradients and the variances v around them. Since ``sum_j (b_AB n_j / n_B)^2 / n_j = b_AB^2 / n_B``, the weights b
minimize

    sum_B b_AB (|c_A - c_B|^2 + v_B) + lambda sum_B b_AB^2 / n_B        v_A is the same for all B

This is the problem of the paper with a cluster in place of a client, and water-filling solves it exactly.

A model has a weight for thousands of clients then. It cannot visit all of them in an epoch. It visits ``VISITS`` hosts,
which are drawn with probabilities proportional to the weights (``hosts``), and all visits count alike. In expectation
the model descends the same mixture. Draws are stratified twice: a model draws one host from each of ``VISITS`` parts
of equal weight, and the models of a cluster together visit a host as often as expected, rounded up or down.

K-means: Lloyd, Least Squares Quantization in PCM, 1982, https://doi.org/10.1109/TIT.1982.1056489. Seeds: Arthur and
Vassilvitskii, k-means++, SODA 2007, https://dl.acm.org/doi/10.5555/1283383.1283494.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.core.random import Key, fold, permutation, uniform
from gossamer.parts.servers.mixing import distances
from gossamer.parts.servers.mixing.schedule import Flags, Pairs

VISITS = 20
"""Visits of a model in an epoch."""

STEPS = 20
"""The largest number of steps of k-means."""


def waterfill(z: Tensor, samples: Tensor, lam: float) -> Tensor:
    """Return the optimal weights for each row of distances ``z`` [rows, clients], computed exactly.

    With ``lam`` 0 only the nearest clients have a weight. With infinity all clients at finite distance have one. In
    both cases weights are proportional to the numbers of samples.

    >>> waterfill(torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([10, 10, 10]), 10.0)
    tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """
    heights, counts = _checked("waterfill", z, samples)
    require((lam >= 0, f"waterfill: lambda must be at least 0, got {lam}"))
    ground, order = heights.sort(dim=-1)
    area = counts[order].cumsum(-1)
    # The water needed to reach each height. All terms are positive, so nothing cancels for small lambda.
    steps = torch.where(ground[..., 1:].isfinite(), ground.diff(dim=-1) * area[..., :-1], math.inf)
    needed = torch.cat((torch.zeros_like(ground[..., :1]), steps.cumsum(-1)), -1)
    water = 2 * lam
    last = ((needed <= water) & ground.isfinite()).sum(-1, keepdim=True) - 1
    highest = ground.gather(-1, last)
    shares = torch.where(heights <= highest, counts, 0)
    if 0 < water < math.inf:
        above = (1 - needed.gather(-1, last) / water) / area.gather(-1, last)
        shares = shares * torch.where(shares > 0, (highest - heights) / water + above, 0)
    return shares / shares.sum(-1, keepdim=True)


def simplex(v: Tensor) -> Tensor:
    """Project each row onto the simplex (a >= 0, sum 1). An entry of minus infinity becomes 0.

    >>> simplex(torch.tensor([[0.5, 0.7, -3.0]]))
    tensor([[0.4000, 0.6000, 0.0000]], dtype=torch.float64)
    """
    # |a - v|^2 / 2 equals sum a_j (-v_j) + sum a_j^2 / 2, up to a constant.
    return waterfill(-v, torch.ones(v.shape[-1], device=v.device), 0.5)


def descend(z: Tensor, samples: Tensor, lam: float, start: Tensor, steps: int) -> Tensor:
    """Return the weights after some steps of projected gradient descent from ``start`` (Algorithm A1 of the paper).

    The gradient is Lipschitz with constant 2 lambda / n_min, so the step size is n_min / (2 lambda). The distance to
    the optimal weights shrinks by the factor 1 - n_min / n_max per step. With equal sample numbers one step is exact.
    """
    heights, counts = _checked("descend", z, samples)
    require(
        (
            0 < lam < math.inf,
            f"descend: lambda must be positive and finite, got {lam}: waterfill takes 0 and infinity",
        ),
        (steps >= 0, f"descend: steps must be at least 0, got {steps}"),
        (start.shape == z.shape, f"descend: start must have the shape of z, {_shape(z)}, got {_shape(start)}"),
    )
    present = counts > 0
    fewest = counts[present].min()
    # The projection ignores a constant. Without the minimum of each row, large distances cost no precision.
    pull = (heights - heights.amin(-1, keepdim=True)) * (fewest / (2 * lam))
    stay = 1 - fewest / torch.where(present, counts, 1)
    weights = start.double()
    for _ in range(steps):
        weights = simplex(weights * stay - pull)
    return weights


def _checked(name: str, z: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Check the arguments. Return both as float64, with infinite distance to clients without samples."""
    require(
        (
            z.dim() > 0 and samples.shape == z.shape[-1:],
            f"{name}: samples must have one number per column of z, {_shape(z)}, got {_shape(samples)}",
        ),
        (not bool((z.isnan() | z.isneginf()).any()), f"{name}: z must not contain NaN or minus infinity"),
        (bool((samples.isfinite() & (samples >= 0)).all()), f"{name}: samples must be finite and not negative"),
    )
    heights = torch.where(samples > 0, z.double(), math.inf)
    require(
        (
            bool(heights.isfinite().any(-1).all()),
            f"{name}: every row of z needs a client with samples at a finite distance",
        )
    )
    return heights, samples.double()


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


def complexity(parameters: Tensor, samples: Tensor) -> Tensor:
    """Return sqrt(VC_j / n_j) for each client, the complexity term of its distance with unequal models.

    The VC dimension of a network is unknown, so the number of parameters replaces it. The two are equal for a linear
    classifier. For deeper networks the VC dimension is larger.

    >>> complexity(torch.tensor([400, 100]), torch.tensor([100, 100]))
    tensor([2., 1.], dtype=torch.float64)
    """
    require(
        (parameters.shape == samples.shape, "complexity: parameters and samples must have one number per client"),
        (bool((parameters >= 0).all()), "complexity: parameters must not be negative"),
        (bool((samples >= 0).all()), "complexity: samples must not be negative"),
    )
    ratio = torch.where(samples > 0, parameters.double() / samples.clamp(min=1), math.inf)
    return ratio.sqrt()


def penalty(apart: Tensor, parameters: Tensor, samples: Tensor) -> Tensor:
    """Return the complexity term of each client relative to its mean, times a typical distance.

    The paper adds sqrt(VC_j / n_j) itself, from a bound without constants. With many parameters per sample it exceeds
    all distances, and weights go to the narrowest models only. Here the unit is the distance of a client to its nearest
    other client, the median over clients: about the distance that noise alone causes. A client remains its own nearest
    source unless its term exceeds that of another client by more than the mean term. Equal terms change no weights.

    >>> penalty(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([900, 100]), torch.tensor([100, 100]))
    tensor([3., 1.], dtype=torch.float64)
    """
    seen = samples > 0
    term = complexity(parameters, samples)
    closest = apart[seen][:, seen].clone().fill_diagonal_(math.inf).amin(1)
    finite = closest[closest.isfinite()]
    unit = finite.median() if len(finite) else torch.zeros((), dtype=apart.dtype)
    return torch.where(seen, term / term[seen].mean() * unit, 0.0)


def usual_lambda(noise: Tensor, samples: Tensor) -> float:
    """Return the lambda with which gradient noise alone separates no two clients.

    ``noise`` is the variance of each client's gradient, E|g_i - grad f_i|^2, where f_i is the loss of its distribution.
    (For gradients a and b of two halves of a batch, |a - b|^2 / 4 is an unbiased estimate of this variance.)

    Two clients with the same distribution have the expected distance z = noise_i + noise_j, and 0 to themselves. A
    client's weight for itself is larger than for the other by n z / (2 lambda). This must not exceed 1 / G, the fair
    weight in a group of G such clients, so lambda must be at least n G z / 2. G is unknown, and at most N:

        lambda = mean(n) N mean over pairs(noise_i + noise_j) / 2 = mean(n) N mean(noise)

    With equal samples and noise, N similar clients get the weight (1 - 1/N) / N each, and a client's own weight is
    larger by 1/N. Other clients are excluded from a group of G if the squared distance of the true gradients is above
    2 noise N / G. The smaller the group, the larger this distance must be.

    >>> usual_lambda(torch.full((50,), 0.25), torch.full((50,), 4))
    50.0
    """
    require(
        (
            noise.dim() == 1 and noise.shape == samples.shape,
            "usual_lambda: noise and samples must have one number per client",
        ),
        (bool((noise.isfinite() & (noise >= 0)).all()), "usual_lambda: noise must be finite and not negative"),
        (bool((samples >= 0).all()), "usual_lambda: samples must not be negative"),
        (len(noise) > 0, "usual_lambda: needs at least one client"),
    )
    return float(samples.double().mean() * len(noise) * noise.double().mean())


def nearest(
    rows: Sequence[int] | Tensor, vectors: Tensor, samples: Tensor, lam: float, keep: int
) -> tuple[Tensor, Tensor]:
    """Return the indices and values of the ``keep`` largest weights of some clients, both [rows, keep].

    ``vectors`` [clients, numbers] are the gradients of all clients, or sketches of them. The client itself is always
    first, the others follow by decreasing weight. With fewer clients than ``keep``, all are kept.

    >>> nearest([0], torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([10, 10, 10]), 10.0, keep=2)
    (tensor([[0, 1]]), tensor([[0.7500, 0.2500]], dtype=torch.float64))
    """
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    require(
        (vectors.dim() == 2 and vectors.is_floating_point(), "nearest: vectors must be floats, [clients, numbers]"),
        (keep > 0, f"nearest: keep must be at least 1, got {keep}"),
        (
            bool(((chosen >= 0) & (chosen < len(vectors))).all()),
            f"nearest: rows must be from 0 to {len(vectors) - 1}, as there are {len(vectors)} vectors",
        ),
    )
    x, rows_of, weights_of = distances.centred(vectors.double(), masked=False), [], []
    for block in torch.split(chosen, max(1, distances.ENTRIES // max(x.shape))):
        weights = waterfill(distances.rows_apart(block, x), samples, lam)
        # A weight of 2 sorts the client itself first.
        order = weights.scatter(1, block[:, None], 2.0).argsort(dim=1, descending=True, stable=True)[:, :keep]
        values = weights.gather(1, order)
        rows_of.append(order.clone())
        weights_of.append(values / values.sum(1, keepdim=True))
    return torch.cat(rows_of), torch.cat(weights_of)


# Clusters.


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
    for rows in _index_blocks(x):
        total.index_add_(0, labels[rows], x[rows] * weights[rows, None])
    size = torch.zeros(len(before), dtype=x.dtype).index_add_(0, labels, weights)
    return torch.where(size[:, None] > 0, total / size.clamp(min=1e-300)[:, None], before)


def _squares(x: Tensor, means: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of each row to the mean of its cluster."""
    return torch.cat([(x[rows] - means[labels[rows]]).square().sum(1) for rows in _index_blocks(x)])


def _index_blocks(x: Tensor) -> tuple[Tensor, ...]:
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
