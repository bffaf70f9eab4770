"""Adaptive clipping: the clipping norm follows a quantile of the update norms, privately.

Andrew et al., Differentially Private Learning with Adaptive Clipping, NeurIPS 2021, https://arxiv.org/abs/1905.03871.
Each client also contributes the bit b_k, whether its norm is at most c. With m expected clients,

    b = (sum_k (b_k - 1/2) + N(0, s^2)) / m + 1/2        the noisy share of norms up to c
    c <- c exp(-lr (b - quantile))                       the norm of the next round

The bits are centered, so that a client that does not answer changes nothing, and one client changes their sum by at
most 1/2. Update and bit are one mechanism with the noise multiplier z if the noise multiplier of the updates is

    z_updates = (z^-2 - (2 s)^-2)^(-1/2)

(Theorem 1), which is slightly above z. So adaptive clipping costs no epsilon.
"""

import math
from dataclasses import dataclass

from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.fields import CheckedFields

SHARE = 20
"""By default, the noise of the count is the expected number of clients divided by this number, as in the paper."""


@dataclass(frozen=True)
class AdaptiveClip(CheckedFields):
    """The clipping norm follows a quantile of the update norms.

    Args:
        quantile: the share of updates that are not clipped
        lr: learning rate of the logarithm of the norm
        count_noise: standard deviation of the noise of the number of norms up to the clipping norm; none is the
            expected number of clients divided by 20, and at least the noise multiplier
    """

    quantile: float = 0.5
    lr: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        noise = self.count_noise
        require(
            (0 <= self.quantile <= 1, wrong(self, "quantile", "must be from 0 to 1")),
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            (noise is None or 0 < noise < math.inf, wrong(self, "count_noise", "must be a positive number")),
        )

    def check(self, multiplier: float) -> None:
        """Raise ``ConfigError`` if the bits alone would take more than the guarantee of the noise multiplier."""
        least = multiplier / 2
        text = f"must be above {least:g}, half of {{}}, got {self.count_noise}: use a larger one, or none"
        about, other = Setting("AdaptiveClip", "count_noise"), Setting("", "noise_multiplier")
        require((self.count_noise is None or self.count_noise > least, Mistake(text, about, other)))

    def deviation(self, multiplier: float, cohort: float) -> float:
        """Return the standard deviation of the noise of the count."""
        return max(cohort / SHARE, multiplier) if self.count_noise is None else self.count_noise

    def multiplier(self, multiplier: float, cohort: float) -> float:
        """Return the noise multiplier of the updates. With the noisy count, the guarantee is that of ``multiplier``.

        >>> round(AdaptiveClip(count_noise=5.0).multiplier(1.0, 100), 4)
        1.005
        """
        if multiplier == 0:
            return 0.0
        return 1 / math.sqrt(multiplier**-2 - (2 * self.deviation(multiplier, cohort)) ** -2)

    def follow(self, norm: float, below: float) -> float:
        """Return the next norm, given the noisy share of norms up to the current one."""
        return norm * math.exp(-self.lr * (below - self.quantile))
