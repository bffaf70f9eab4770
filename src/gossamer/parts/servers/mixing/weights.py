"""How much each client should learn from each other one.

From Deng, Kamani, Mahdavinia and Mahdavi, "Distributed personalized empirical risk minimization" (PERM). Client i
trains on a mixture of all clients' losses, with the weights a that minimise, over a >= 0 with sum 1 (Equation 2),

    sum_j a_j z_ij + lambda sum_j a_j^2 / n_j        z_ij = |grad f_i(w) - grad f_j(w)|^2

where w is the global model and n_j the number of j's samples. The first term keeps strangers out; the second spreads
the weight over many samples. Water does it: pour 2 lambda of it over a ground that is n_j wide and z_ij high. With its
surface at the height nu, the weight of j is the share of the water above it, ``n_j (nu - z_ij) / (2 lambda)``, or 0
where the ground stays dry. ``waterfill`` finds nu by sorting; ``descend`` does what the paper does.

Where models are unequal, the objective has one more term, that of ``complexity``, to be added to each row of z.

A client at distance infinity, or without samples, has no weight.

Mixing weights of thousands of clients: a few for each, found without the distances of all pairs.

Rows are done a block at a time. Of each the best weights over all clients are found, and the largest ones are kept and
brought to the sum 1. What is lost is what is dropped: the total variation distance to the best weights is the sum of
the weights that are not kept. It is 0 where no more clients than are kept have a weight.

Mixing weights as a server keeps them: all of them, or a few for each client.

    weights      [clients, clients], a row for each client
    who, much    [clients, few]: the clients that each learns from, and how much; others have no weight

Before any were learned there is nothing, and all clients count alike.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.core.types import State
from gossamer.parts.servers.mixing import distances as pairs


def waterfill(z: Tensor, samples: Tensor, lam: float) -> Tensor:
    """The best weights for each row of distances ``z`` [rows, clients], exactly.

    With ``lam`` 0 a client learns from the nearest alone, those as near as each other by their samples; with infinity
    from all at finite distance by their samples.

    >>> waterfill(torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([10, 10, 10]), 10.0)
    tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """
    heights, counts = _checked("waterfill", z, samples)
    require((lam >= 0, f"waterfill: lambda must be at least 0, got {lam}"))
    ground, place = heights.sort(dim=-1)
    area = counts[place].cumsum(-1)
    # How much water it takes to reach each height. All steps are positive: nothing cancels, however small lambda is.
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
    """The nearest point of the simplex (a >= 0, sum 1) to each row; an entry of minus infinity becomes 0.

    >>> simplex(torch.tensor([[0.5, 0.7, -3.0]]))
    tensor([[0.4000, 0.6000, 0.0000]], dtype=torch.float64)
    """
    # |a - v|^2 / 2 is sum a_j (-v_j) + sum a_j^2 / 2, and what does not depend on a.
    return waterfill(-v, torch.ones(v.shape[-1], device=v.device), 0.5)


def descend(z: Tensor, samples: Tensor, lam: float, start: Tensor, steps: int) -> Tensor:
    """Weights after some steps of projected gradient descent from ``start``, as in the paper's Algorithm A1.

    The gradient changes by 2 lambda / n_min at most, so the step is n_min / (2 lambda). What is missing to the best
    weights shrinks by 1 - n_min / n_max in each step; with equal samples one step is exact.
    """
    heights, counts = _checked("descend", z, samples)
    require(
        (0 < lam < math.inf, f"descend: lambda must be positive and finite, got {lam}: waterfill takes 0 and infinity"),
        (steps >= 0, f"descend: steps must be at least 0, got {steps}"),
        (start.shape == z.shape, f"descend: start is {_shape(start)}, but z is {_shape(z)}"),
    )
    present = counts > 0
    least = counts[present].min()
    # Less the lowest, which the projection does not see: what is large and equal would swallow the weights' digits.
    pull = (heights - heights.amin(-1, keepdim=True)) * (least / (2 * lam))
    stay = 1 - least / torch.where(present, counts, 1)
    weights = start.double()
    for _ in range(steps):
        weights = simplex(weights * stay - pull)
    return weights


def complexity(parameters: Tensor, samples: Tensor) -> Tensor:
    """For each client sqrt(VC_j / n_j): what its model's capacity adds to its distance where models are unequal.

    The VC dimension of a network is not known, so the number of parameters stands for it. For a linear classifier they
    are the same; for deeper networks the VC dimension is larger.

    >>> complexity(torch.tensor([400, 100]), torch.tensor([100, 100]))
    tensor([2., 1.], dtype=torch.float64)
    """
    require(
        (parameters.shape == samples.shape, "complexity: each client needs a number of parameters and one of samples"),
        (bool((parameters >= 0).all()), "complexity: a number of parameters is negative"),
        (bool((samples >= 0).all()), "complexity: a number of samples is negative"),
    )
    ratio = torch.where(samples > 0, parameters.double() / samples.clamp(min=1), math.inf)
    return ratio.sqrt()


def usual_lambda(noise: Tensor, samples: Tensor) -> float:
    """The lambda under which noise alone keeps no two clients apart.

    ``noise`` is the variance of each client's gradient, E|g_i - grad f_i|^2 with f_i the loss of its distribution. (The
    gradients a and b of two halves of a batch have the mean g, and |a - b|^2 / 4 is an unbiased guess of g's variance.)

    Two clients of one distribution are z = noise_i + noise_j apart on average, and 0 from themselves. That favours a
    client over its like by n z / (2 lambda) of weight, which must not exceed the 1 / G that each of a group of G
    deserves: lambda must be at least n G z / 2. G is what we want to find out, and N bounds it:

        lambda = mean(n) N mean over pairs(noise_i + noise_j) / 2 = mean(n) N mean(noise)

    With equal samples and noise, alike clients then get (1 - 1/N) / N each and the client itself 1/N more. Strangers
    stay out of a group of G if the true gradients' squared distance is above 2 noise N / G: the smaller the group is
    among all, the farther strangers must be.

    >>> usual_lambda(torch.full((50,), 0.25), torch.full((50,), 4))
    50.0
    """
    require(
        (
            noise.dim() == 1 and noise.shape == samples.shape,
            "usual_lambda: each client needs a noise and a number of samples",
        ),
        (bool((noise.isfinite() & (noise >= 0)).all()), "usual_lambda: a noise is negative or not finite"),
        (bool((samples >= 0).all()), "usual_lambda: a number of samples is negative"),
        (len(noise) > 0, "usual_lambda: no clients"),
    )
    return float(samples.double().mean() * len(noise) * noise.double().mean())


def _checked(name: str, z: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float64, the distance of those without samples infinite."""
    require(
        (
            z.dim() > 0 and samples.shape == z.shape[-1:],
            f"{name}: z is {_shape(z)}, so samples must have one number for each column, got {_shape(samples)}",
        ),
        (not bool((z.isnan() | z.isneginf()).any()), f"{name}: z has entries that are NaN or minus infinity"),
        (bool((samples.isfinite() & (samples >= 0)).all()), f"{name}: a number of samples is negative or not finite"),
    )
    heights = torch.where(samples > 0, z.double(), math.inf)
    require(
        (
            bool(heights.isfinite().any(-1).all()),
            f"{name}: a row of z has nobody with samples at a finite distance, so there is nobody to learn from",
        )
    )
    return heights, samples.double()


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


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


def even(clients: int) -> Tensor:
    """The same weight for all, [clients, clients]."""
    return torch.full((clients, clients), 1 / clients, dtype=torch.float64)


def square(kept: State, clients: int) -> Tensor:
    """All weights, [clients, clients]."""
    if "who" in kept:
        return dense(kept["who"], kept["much"], clients)
    weights: Tensor = kept.get("weights", even(clients))
    return weights


def looked_up(kept: State, models: Sequence[int], hosts: Sequence[int], clients: int) -> Tensor:
    """The weight of each of some models for the host beside it."""
    rows, columns = torch.tensor(models, dtype=torch.int64), torch.tensor(hosts, dtype=torch.int64)
    if "who" in kept:
        found = kept["who"].cpu()[rows] == columns[:, None]
        return torch.where(found, kept["much"].cpu()[rows], 0).sum(1)
    if "weights" in kept:
        weights: Tensor = kept["weights"].cpu()[rows, columns]
        return weights
    return torch.full((len(rows),), 1 / clients, dtype=torch.float64)


def summary(kept: State) -> tuple[float, float]:
    """The median weight that clients have for themselves, and the median number that they learn from.

    A client with the weights a learns from 1 / sum(a^2) others in effect: from one if that has all the weight, from n
    if n share it evenly.
    """
    if "who" in kept:
        itself = kept["who"] == torch.arange(len(kept["who"]), device=kept["who"].device)[:, None]
        own, much = torch.where(itself, kept["much"], 0).sum(1), kept["much"]
    else:
        own, much = kept["weights"].diagonal(), kept["weights"]
    squares = much.square().sum(1)
    known = squares > 0
    return float(own[known].median()), float((1 / squares[known]).median())
