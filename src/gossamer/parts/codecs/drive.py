"""DRIVE (Vargaftik et al., NeurIPS 2021, https://arxiv.org/abs/2105.08339): the signs of the rotated entries.

One bit per entry. The paper rotates the whole vector and sends one scale. Here each segment of the rotation
(``gossamer.parts.codecs.rotation``) has its own scale, by the paper's formula, so that blocks of different magnitude do
not affect each other. With R x the rotated segment of d entries, there are two scales:

    unbiased         |x|_2^2 / |R x|_1     unbiased; the squared error is about pi/2 - 1 = 0.571 of |x|^2
    least-squares    |R x|_1 / d           smallest squared error, about 1 - 2/pi = 0.363, but biased towards zero

Both errors are those of Gaussian entries, which the rotation approximates for any vector. The unbiased scale is exactly
unbiased for uniformly random rotations. With this rotation, the bias is negligible for vectors of 16 or more entries.
Shorter vectors are decoded with a bias.
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
    """Sends the signs of the rotated vector, and one scale per 8192 entries.

    See https://arxiv.org/abs/2105.08339.

    Args:
        scale: "unbiased", or "least-squares" for the smallest error of a single message
    """

    scale: Scale = "unbiased"

    def __post_init__(self) -> None:
        require((self.scale in SCALES, wrong(self, "scale", f"must be one of {listed(SCALES)}")))

    @property
    def unbiased(self) -> bool:
        """Whether the scale is the unbiased one."""
        return self.scale == "unbiased"

    def levels(self) -> tuple[float, ...]:
        """Return the two signs."""
        return -1.0, 1.0

    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """Return the scale of each row of ``y`` with the signs ``c``."""
        return SCALES[self.scale](y, c)
