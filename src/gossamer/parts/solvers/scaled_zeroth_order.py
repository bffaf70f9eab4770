"""Zeroth-order training along directions that are scaled by an estimate of the curvature.

Li et al., Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization, ICLR 2026,
https://arxiv.org/abs/2506.02370 (HiSo). With the diagonal H of the server (``gossamer.parts.servers.sums``) and the
directions z of ``gossamer.parts.solvers.zeroth_order``, products and roots by entry:

    c = (F(w + mu z / sqrt(H)) - F(w)) / mu
    w <- w - lr factor(round) / P sum_p c(k, p) z(k, p) / sqrt(H)

For mu -> 0, the mean of a step is lr g / H, with the gradient g: steps are longer where the curvature is small. H is
that of the start of the round in all local steps. For H = 1, this is ``ZerothOrder``, bit for bit.

A client does not receive H where it can compute it from the scalars of the rounds that it has missed
(``gossamer.parts.downlinks.delta``).
"""

from dataclasses import dataclass

import torch

from gossamer.core import exact
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.exchange import Context, Sections
from gossamer.core.solver import StepKeys
from gossamer.core.types import Params, State
from gossamer.parts.solvers.differences import Along
from gossamer.parts.solvers.zeroth_order import BoundZerothOrder, ZerothOrder

CURVATURE = "curvature"
"""The section with the estimate of the curvature."""


@dataclass(frozen=True)
class ScaledZerothOrder(ZerothOrder):
    """``ZerothOrder`` along directions that are divided by the square root of the curvature."""

    def bind(self, context: Context) -> "BoundScaledZerothOrder":
        """Return the solver with the numbers of the tensors. It needs a server that sends the curvature."""
        if CURVATURE not in {section.name for section in context.exchange.server.sections}:
            raise ConfigError(f"{type(self).__name__} needs a server that estimates the curvature: use Hiso()")
        return BoundScaledZerothOrder(**vars(super().bind(context)))


@dataclass(frozen=True)
class BoundScaledZerothOrder(ScaledZerothOrder, BoundZerothOrder):
    """``ScaledZerothOrder`` for one network."""

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the received model, and the square roots of the received curvature, which must be positive."""
        ones = {name: torch.ones_like(start[name]) for name in self.layers} if CURVATURE not in sections else {}
        curvature: Params = sections.get(CURVATURE, ones)
        if not bool(torch.stack([(entries > 0).all() for entries in curvature.values()]).all()):
            raise PayloadError("the curvature must be positive")
        begun = super().begin(start, sections, memory, steps)
        return {**begun, "roots": {name: exact.root(entries) for name, entries in curvature.items()}}

    def along(self, carry: State, keys: StepKeys) -> Along:
        """Return the directions of a step, divided by the square roots of the curvature."""
        return Along(self.directions, self.layers, keys.common, carry["params"], carry["roots"])
