"""Distribution of a model's density over its tensors.

The density counts all trained entries, including biases and norms. There are three rules:

    erk                Erdos-Renyi-Kernel: density proportional to (sum of dimensions) / (product of dimensions), at
                       most 1, so that small layers are denser (Evci et al., Rigging the Lottery, 2020,
                       https://arxiv.org/abs/1911.11134); biases and norms are kept whole
    uniform            the same density for every tensor, biases and norms included: "Uniform" of FedSpa's paper
                       (Huang et al., 2022, https://arxiv.org/abs/2201.11380, Table 4)
    uniform-weights    the same density for all weights; biases and norms, which are few and sensitive, are kept whole
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch

from gossamer.core.errors import require

Shapes = Mapping[str, torch.Size]
Densities = dict[str, float]


def erk(shapes: Shapes, density: float) -> Densities:
    """Return the density of each tensor by the Erdos-Renyi-Kernel rule.

    >>> found = erk({"a": torch.Size([4, 4]), "b": torch.Size([40, 40]), "c": torch.Size([4])}, 0.5)
    >>> {name: round(share, 3) for name, share in found.items()}
    {'a': 1.0, 'b': 0.494, 'c': 1.0}
    """
    _check(shapes, density)
    scores = {name: sum(shape) / shape.numel() for name, shape in shapes.items()}
    whole = {name for name, shape in shapes.items() if len(shape) < 2}
    while len(whole) < len(shapes):
        left = {name: shape.numel() for name, shape in shapes.items() if name not in whole}
        budget = density * sum(shape.numel() for shape in shapes.values()) - sum(shapes[n].numel() for n in whole)
        scale = budget / sum(scores[name] * size for name, size in left.items())
        most = max(scores[name] for name in left)
        if scale * most <= 1:
            return {name: 1.0 if name in whole else scale * scores[name] for name in shapes}
        whole |= {name for name in left if scores[name] == most}
    return dict.fromkeys(shapes, 1.0)


def uniform(shapes: Shapes, density: float) -> Densities:
    """Return the density of each tensor: the same for all; a tensor too small for it keeps one entry.

    >>> uniform({"weight": torch.Size([4, 4]), "bias": torch.Size([4])}, 0.5)
    {'weight': 0.5, 'bias': 0.5}
    """
    _check_share(density)
    return {name: max(density, 1 / max(1, shape.numel())) for name, shape in shapes.items()}


def uniform_weights(shapes: Shapes, density: float) -> Densities:
    """Return the density of each tensor: the same for all, except biases and norms, which are kept whole.

    >>> found = uniform_weights({"weight": torch.Size([4, 4]), "bias": torch.Size([4])}, 0.5)
    >>> {name: round(share, 3) for name, share in found.items()}
    {'weight': 0.375, 'bias': 1.0}
    """
    _check(shapes, density)
    sizes = {name: shape.numel() for name, shape in shapes.items()}
    small = sum(sizes[name] for name, shape in shapes.items() if len(shape) < 2)
    share = (density * sum(sizes.values()) - small) / max(1, sum(sizes.values()) - small)
    return {name: 1.0 if len(shape) < 2 else min(1.0, share) for name, shape in shapes.items()}


Distribution = Literal["erk", "uniform", "uniform-weights"]

DENSITIES: dict[Distribution, Callable[[Shapes, float], Densities]] = {
    "erk": erk,
    "uniform": uniform,
    "uniform-weights": uniform_weights,
}
"""Density rules by their name on the command line."""


def kept(shapes: Shapes, densities: Densities) -> dict[str, int]:
    """Return the number of kept entries of each tensor: its density times its size, rounded down."""
    return {name: math.floor(densities[name] * shape.numel() + 1e-6) for name, shape in shapes.items()}


def _check_share(density: float) -> None:
    require((0 < density <= 1, f"density must be in (0, 1], got {density}"))


def _check(shapes: Shapes, density: float) -> None:
    """Refuse a density without room for the biases and norms that are kept whole."""
    _check_share(density)
    total = sum(shape.numel() for shape in shapes.values())
    small = sum(shape.numel() for shape in shapes.values() if len(shape) < 2)
    require(
        (
            density * total >= small,
            f"density {density} of {total:,} entries is too small: the {small:,} entries of biases and norms are "
            "always kept",
        ),
    )
