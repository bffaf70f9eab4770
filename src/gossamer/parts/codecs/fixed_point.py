"""Fixed point: every entry as a whole number of a few bits, with limits that all clients know.

An entry u is clipped to [-c, c] and sent as an integer level l near u top / c, from -top to top, with
``top = 2^(bits - 1) - 1``. It is decoded as c l / top, and 0 is decoded as 0. Stochastic rounding goes up with
probability equal to the fraction, so that entries within the limit are unbiased.

No scale is sent, so the levels of clients add up, as secure aggregation needs: ``to_sum`` returns l + top. The codec
takes the place of ``Dense`` there. Nobody can measure a scale for all clients without seeing their updates, so the
limits are constants. Limits that are too small clip updates, in each round anew; limits that are too large waste bits,
since the error of an entry is at most one step, c / top.

Running statistics of normalization layers need a limit of their own. Their changes are not bounded by a learning rate:
a variance may go from 1 to 10 in one round. A clipped change is a smaller step towards the clients' statistics, and the
next round makes the rest of it, as clients start from the server's value. So clipping delays statistics, and does not
bias them. Rounding is another matter: a variance of almost 0 must not become negative. Changes of variances are
therefore rounded up. The mean variance is then too large by one step at most, and never negative.

The arrays are ``low``, the lowest eight bits of l + top, and ``high``, the others, where bits are more than eight.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.bits import codes, expect_codes
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.random import fold, uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload, fits
from gossamer.core.wire import finite
from gossamer.parts.codecs.wrappers import STATISTICS

VARIANCES = "*running_var"
"""The names of tensors whose entries must not become negative."""

MANY = 0.01
"""The share of clipped entries from which a run warns."""


@dataclass(frozen=True)
class FixedPoint(Codec):
    """Sends each entry as a whole number of a few bits, clipped to a fixed limit.

    Args:
        bits: the number of bits per entry, from 2 to 16
        limit: the largest magnitude of an entry; larger ones are clipped
        statistics: the limit of the entries of running statistics
    """

    bits: int = 16
    limit: float = 1.0
    statistics: float = 16.0

    def __post_init__(self) -> None:
        rule = "must be a number from 1e-30 to 1e30"
        require(
            (2 <= self.bits <= 16, wrong(self, "bits", "must be a whole number from 2 to 16")),
            (1e-30 <= self.limit <= 1e30, wrong(self, "limit", rule)),
            (1e-30 <= self.statistics <= 1e30, wrong(self, "statistics", rule)),
        )

    @property
    def top(self) -> int:
        """The largest level."""
        return (1 << self.bits - 1) - 1

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the levels plus ``top``, low bits first."""
        limits = self._limits(ctx.layout, x.device)
        exact = torch.maximum(torch.minimum(finite(x, "change"), limits), -limits) / limits * self.top
        low = exact.floor()
        # The fraction is compared with noise: the sum of a level and noise would be rounded itself.
        noise = uniform(fold(ctx.key, "fixed-point"), ctx.layout.size, dtype=ctx.layout.dtype, device=x.device)
        levels = (low + (noise < exact - low)).to(torch.int64)
        for (name, own), level in zip(ctx.layout.cut(exact), levels.split(ctx.layout.counts, -1), strict=True):
            if fits(name, VARIANCES):
                level.copy_(own.ceil())
        return self._packed(levels + self.top)

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return level divided by ``top``, times limit."""
        return self.from_sum(self.to_sum(payload, ctx), ctx)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return twice the largest level as the limit."""
        return (SumSegment(layout.size, 2 * self.top),)

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the levels plus ``top``."""
        found = expect_codes(payload, "low", min(self.bits, 8), ctx.layout.size).to(torch.int32)
        if self.bits > 8:
            found = found + (expect_codes(payload, "high", self.bits - 8, ctx.layout.size).to(torch.int32) << 8)
        if bool((found > 2 * self.top).any()):
            raise PayloadError(f"a level is above {self.top}")
        return found.to(ctx.layout.dtype)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the mean level divided by ``top``, times limit."""
        # A tensor as divisor: a GPU rounds a division by a Python number differently.
        return (mean - self.top) / mean.new_tensor(self.top) * self._limits(ctx.layout, mean.device)

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Return nothing: the new values are shorter than the updates of several clients."""
        return {}, layout.only(())

    def _packed(self, values: Tensor) -> Payload:
        low = codes(values & 0xFF, min(self.bits, 8))
        return {"low": low} if self.bits <= 8 else {"low": low, "high": codes(values >> 8, self.bits - 8)}

    def _limits(self, layout: Layout, device: torch.device) -> Tensor:
        """Return the limit of each entry, or one limit for all."""
        kinds = [any(fits(name, pattern) for pattern in STATISTICS) for name, _ in layout.shapes]
        if not any(kinds):
            return torch.full((1,), self.limit, dtype=layout.dtype, device=device)
        limits = torch.full((layout.size,), self.limit, dtype=layout.dtype, device=device)
        for kind, piece in zip(kinds, limits.split(layout.counts), strict=True):
            piece.fill_(self.statistics if kind else self.limit)
        return limits

    @property
    def figure_names(self) -> tuple[str, ...]:
        """What clipping touches."""
        return ("beyond_limit",)

    def figures(self, x: Tensor, ctx: Coding) -> dict[str, float]:
        """Return the share of the entries that are clipped."""
        beyond = torch.count_nonzero(x.abs() > self._limits(ctx.layout, x.device))
        return {"beyond_limit": int(beyond) / max(1, ctx.layout.size)}

    def warning(self, figures: Mapping[str, float]) -> str | None:
        """Warn if many entries are clipped."""
        share = figures["beyond_limit"]
        if share < MANY:
            return None
        return (
            f"{100 * share:.0f} % of the entries exceed the limits of {self}, {self.limit:g} and for running "
            f"statistics {self.statistics:g}, and are clipped, which slows down training. Use a larger limit"
        )
