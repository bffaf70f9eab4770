"""HiSo: the mean of scalars along random directions, and an estimate of the curvature from the same scalars.

Li et al., Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization, ICLR 2026,
https://arxiv.org/abs/2506.02370. The server keeps a diagonal H, which starts at 1. With the mean scalars c(k, p) of
local steps k = 1 to K and perturbations p = 1 to P along directions z(k, p), products and roots by entry:

    g(k) = 1 / P sum_p c(k, p) z(k, p) / sqrt(H)
    w   <- w - lr sum_k g(k)
    H   <- (1 - smoothing) H + smoothing (g(K)^2 + eps)

    paper    as summaries of it describe it: directions z / sqrt(H), forward differences, the moving average of
             squares, with nu in place of ``smoothing``, and eps, which keeps H positive. Its Equation 12 has the first
             local step, another equation the last one
    code     of the authors, https://github.com/ZidongLiu/DeComFL: Gaussian directions, clients with equal weights, no
             eps. H is updated once per round, from the last local step, with nu = 0.05 (defaults at commit bee0318; at
             commit 11270b5, from every local step, nu = 1e-6). Their scripts for language models have one local step
    here     directions are Rademacher by default, and clients are weighted by samples. eps is added to the squares by
             entry, and is 1e-8. Squares have an upper bound, so that H stays finite. With a learning rate schedule, H
             is computed from the scalars without its factor, and is not changed by a round whose factor is 0

Every machine that knows w and H can repeat this with the mean scalars (``replayed_state``). So H is not sent while the
scalars of the missed rounds are shorter than w and H (``gossamer.parts.downlinks.delta``).

For mu -> 0, the mean of g(k) is G / H, with the gradient G. Its square has the mean

    (1 + s / P) (G / H)^2 + 1 / P sum_j (G_j^2 / H_j) / H        s = 1 for Gaussian directions, -1 for Rademacher ones

With a = G / sqrt(H), entry j stands out only if P a_j^2 is not much smaller than |a|^2. A single Rademacher direction
gives all entries the same square, so that H cannot tell them apart: this is refused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.core import exact
from gossamer.core.codec import carry_codec
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.exchange import Assignment, Context, Download, Section
from gossamer.core.types import Clock, Params, State
from gossamer.parts.servers.sum_then_decode import PartSum, PartSums, SumThenDecode
from gossamer.parts.solvers.zeroth_order import CURVATURE, ScaledZerothOrder

ALIKE = Mistake(
    "must be at least 2 with {}: from one such direction per step, Hiso learns no curvature",
    Setting("", "perturbations"),
    Setting("", "directions", "rademacher"),
)


@dataclass(frozen=True)
class Hiso(SumThenDecode):
    """Weighted mean of scalars along scaled directions, and the curvature that scales the next ones.

    Args:
        smoothing: the weight of a round in the curvature, at least 0 and less than 1; 0 keeps the curvature at 1
        eps: the number that is added to squares, so that the curvature stays positive
    """

    replays: ClassVar[bool] = True
    replayed_state: ClassVar[tuple[str, ...]] = (CURVATURE,)
    sections: ClassVar[tuple[Section, ...]] = (Section(CURVATURE, shape="model"),)

    smoothing: float = 0.05
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (0 <= self.smoothing < 1, wrong(self, "smoothing", "must be at least 0 and less than 1")),
            (0 < self.eps < math.inf, wrong(self, "eps", "must be a positive number")),
            (self.over == "cohort", wrong(self, "over", "must be cohort: all clients have all directions")),
        )

    def bind(self, context: Context) -> "BoundHiso":
        """Return the server with the solver and the names of the tensors. It needs scalars of scaled directions."""
        codec, solver = context.exchange.codec.bind(context), context.exchange.solver
        if not (isinstance(solver, ScaledZerothOrder) and carry_codec(codec)):
            raise ConfigError("Hiso needs scalars of scaled directions: use ScaledZerothOrder() with Seeds(count)")
        alike = solver.perturbations == 1 and solver.directions == "rademacher"
        require((not (alike and self.smoothing), ALIKE))
        fields = {**vars(self), "weights": context.sampler.weights or self.weights}
        return BoundHiso(**fields, trained=context.trained, solver=solver)


@dataclass(frozen=True)
class BoundHiso(Hiso):
    """``Hiso`` for one network.

    Args:
        trained: the names of the trained tensors
        solver: the solver
    """

    replays: ClassVar[bool] = True

    trained: tuple[str, ...] = ()
    solver: ScaledZerothOrder = ScaledZerothOrder()

    def init(self, params: Params) -> State:
        """Return the initial model, and a curvature of 1."""
        return {"params": params, CURVATURE: {name: torch.ones_like(params[name]) for name in sorted(self.trained)}}

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the global model and the curvature."""
        return Download((state["params"],), {CURVATURE: state[CURVATURE]})

    def finish(self, state: State, acc: PartSums, clock: Clock) -> State:  # type: ignore[override]
        """Decode the mean of the scalars, update the model as in ``Mean``, and update the curvature."""
        if not acc.groups:
            return state
        (group,) = acc.groups
        scaled = _scaled(group, {name: exact.root(entries) for name, entries in state[CURVATURE].items()})
        after = super().finish(state, PartSums([scaled]), clock)
        return {**after, CURVATURE: self._updated(state[CURVATURE], scaled, clock)}

    def _updated(self, curvature: Params, group: PartSum, clock: Clock) -> Params:
        """Return the curvature after a round. Each operation is a tensor's own: fused, they are rounded otherwise."""
        rate, last = self.solver.lr * self.solver.hyperparams(clock)["factor"], self.solver.perturbations
        if rate == 0:
            return curvature
        mean = group.total / group.total.new_tensor(group.weight)
        mean = torch.cat((torch.zeros_like(mean[:-last]), mean[-last:]))
        assert group.first.from_sum is not None
        steps = group.first.layout.unflatten(group.first.from_sum(mean))
        return {
            name: self._moved(entries, steps[name] / entries.new_tensor(rate)) for name, entries in curvature.items()
        }

    def _moved(self, curvature: Tensor, gradient: Tensor) -> Tensor:
        most = torch.finfo(curvature.dtype).max / 4
        square = (gradient * gradient).clamp(max=most)
        return curvature * (1 - self.smoothing) + (square + self.eps) * self.smoothing


def _scaled(group: PartSum, roots: Params) -> PartSum:
    """Return a sum whose decoded directions are divided by the roots of the curvature."""
    layout, decode = group.first.layout, group.first.from_sum
    assert decode is not None
    plain: Callable[[Tensor], Tensor] = decode
    known: list[Tensor] = []  # with one local step, the model and the curvature need the same vector

    def from_sum(mean: Tensor) -> Tensor:
        if not known or not torch.equal(known[0], mean):
            change = layout.unflatten(plain(mean))
            scaled = {name: tensor / roots[name] if name in roots else tensor for name, tensor in change.items()}
            known[:] = mean, layout.flatten(scaled)
        return known[1]

    return replace(group, first=replace(group.first, from_sum=from_sum))
