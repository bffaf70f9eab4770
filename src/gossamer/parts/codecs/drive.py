"""DRIVE (Vargaftik et al., NeurIPS 2021): one bit an entry, the sign of the rotated entry.

The paper rotates the whole vector and sends one scale. Here each segment of the rotation (``.rotation``) has its
own, by the paper's formula: blocks of unlike magnitude do not suffer for one another. With R x the rotated segment of d
entries, the paper has two scales, and so has this codec:

    unbiased         |x|_2^2 / |R x|_1     right on average; the squared error is about pi/2 - 1 = 0.571 of |x|^2
    least-squares    |R x|_1 / d           closest; about 1 - 2/pi = 0.363, but what is decoded is too short

Both figures are those of Gaussian entries, and hold for any vector that the rotation makes so. "Right on average" is
exact for rotations drawn uniformly; this one differs from those too little to be seen from 16 entries up. Vectors of
fewer are decoded with a bias.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer.core.errors import listed, require, wrong
from gossamer.parts.codecs.rotation import Rotated, least_squares_scale, unbiased_scale

Scale = Literal["unbiased", "least-squares"]
SCALES = {"unbiased": unbiased_scale, "least-squares": least_squares_scale}


@dataclass(frozen=True)
class Drive(Rotated):
    """Signs of the rotated vector, and a scale for each 8192 of them.

    Args:
        scale: "unbiased", or "least-squares" for the smallest error of one message
    """

    scale: Scale = "unbiased"

    def __post_init__(self) -> None:
        require((self.scale in SCALES, wrong(self, "scale", f"must be one of {listed(SCALES)}")))

    @property
    def unbiased(self) -> bool:
        """Whether what is decoded is right on average: with the unbiased scale."""
        return self.scale == "unbiased"

    def levels(self) -> tuple[float, ...]:
        """The two signs."""
        return -1.0, 1.0

    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """The scale of each row of ``y``, whose signs are ``c``."""
        return SCALES[self.scale](y, c)
