"""How many entries of each tensor a sparse model keeps, for a density of the whole.

The density counts all trained entries, biases and norms included, but these are kept whole: they are few and touchy. In
what is left, ``uniform`` keeps the same share of every tensor; ``erk`` (Erdos-Renyi-Kernel) keeps a share in proportion
to (sum of a tensor's sizes) / (product of them), so that small layers are denser, and those that would exceed 1 are
whole.
"""

import math
from collections.abc import Callable, Mapping

import torch

from gossamer.core.errors import require

Shapes = Mapping[str, torch.Size]
Densities = dict[str, float]


def erk(shapes: Shapes, density: float) -> Densities:
    """Each tensor's density, by Erdos-Renyi-Kernel.

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
    """Each tensor's density: the same for all but biases and norms, which are whole."""
    _check(shapes, density)
    sizes = {name: shape.numel() for name, shape in shapes.items()}
    small = sum(sizes[name] for name, shape in shapes.items() if len(shape) < 2)
    share = (density * sum(sizes.values()) - small) / max(1, sum(sizes.values()) - small)
    return {name: 1.0 if len(shape) < 2 else min(1.0, share) for name, shape in shapes.items()}


DENSITIES: dict[str, Callable[[Shapes, float], Densities]] = {"erk": erk, "uniform": uniform}
"""Rules by the name that the command line uses."""


def kept(shapes: Shapes, densities: Densities) -> dict[str, int]:
    """How many entries of each tensor are kept: what its density comes to, rounded down."""
    return {name: math.floor(densities[name] * shape.numel() + 1e-6) for name, shape in shapes.items()}


def _check(shapes: Shapes, density: float) -> None:
    total = sum(shape.numel() for shape in shapes.values())
    small = sum(shape.numel() for shape in shapes.values() if len(shape) < 2)
    require(
        (0 < density <= 1, f"density must be in (0, 1], got {density}"),
        (
            density * total >= small,
            f"density {density} of {total:,} entries does not even leave room for biases and norms, which are "
            f"{small:,} and kept whole",
        ),
    )
