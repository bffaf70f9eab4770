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
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.parts.servers.mixing import distances


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
    found = list(
        _blocks(chosen, distances.centred(vectors.double(), masked=False), samples, lam, min(keep, len(vectors)))
    )
    indices, values = zip(*found, strict=True)
    return torch.cat(indices), torch.cat(values)


def _blocks(chosen: Tensor, vectors: Tensor, samples: Tensor, lam: float, keep: int) -> Iterator[tuple[Tensor, Tensor]]:
    for block in torch.split(chosen, max(1, distances.ENTRIES // max(vectors.shape))):
        weights = waterfill(distances.rows_apart(block, vectors), samples, lam)
        # A weight of 2 sorts the client itself first.
        order = weights.scatter(1, block[:, None], 2.0).argsort(dim=1, descending=True, stable=True)[:, :keep]
        values = weights.gather(1, order)
        yield order.clone(), values / values.sum(1, keepdim=True)
