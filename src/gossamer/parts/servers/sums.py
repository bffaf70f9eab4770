"""Servers that add encoded updates, and decode their sum once.

This needs codes that can be averaged (``Codec.to_sum``), such as the signs of random measurements, or scalars along
random directions. All clients of a round then use the same random key (``common``), or directions that do not change.

    SumThenDecode    the mean of the codes is decoded, and moves the model as in ``Mean``
    Hiso             the same for scalars along directions that are scaled by an estimate of the curvature
    SeedSums         the sums of scalars along fixed directions over all rounds, from which the model is computed anew

**SumThenDecode.** Clients with the same part of the model share one sum. Different parts have separate sums, and their
decoded means are combined.

**Hiso.** Li et al., Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization, ICLR 2026,
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

**SeedSums.** Qin et al., https://arxiv.org/abs/2312.06353 (FedKSeed). With K directions z_j of the run, and weights p_i
of clients that send the scalars s_i:

    A_j <- A_j + server_lr sum_i p_i s_ij / sum_i p_i
    w    = w_0 + sum_j scale A_j z_j

The model is computed from A in this order in every round, so a client that knows w_0 and A has the same bits, whatever
rounds it has missed (``gossamer.parts.downlinks.seed_sums``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from gossamer.core import exact, tree
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, Download, Section
from gossamer.core.random import Key
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.mean import WeightedMean, with_vector
from gossamer.parts.solvers.zeroth_order import CURVATURE, ScaledZerothOrder

SUMS = "sums"
"""The entry of the server state with the sums of ``SeedSums``."""

ALIKE = Mistake(
    "must be at least 2 with {}: from one such direction per step, Hiso learns no curvature",
    Setting("", "perturbations"),
    Setting("", "directions", "rademacher"),
)


@dataclass
class PartSum:
    """The sum of the codes of clients with the same part, and the first of these arrivals."""

    first: Arrival
    total: Tensor
    weight: float = 0.0

    def fits(self, layout: Layout) -> bool:
        """Return whether a client with this layout holds the same part."""
        mine = self.first.layout
        if mine.held is None or layout.held is None:
            return mine == layout and mine.held is layout.held
        return mine == layout and torch.equal(mine.held, layout.held)

    def mean(self) -> Tensor:
        """Return the mean of the codes."""
        return self.total / self.total.new_tensor(self.weight)

    def decoded(self) -> Tensor:
        """Return the decoded mean of the codes."""
        assert self.first.from_sum is not None
        return self.first.from_sum(self.mean())


Codes = list[PartSum]
"""The sums of a round, one per part of the model."""


@dataclass(frozen=True)
class CodeMean(WeightedMean):
    """Base of servers whose mean is that of codes, one sum per part of the model."""

    sums_codes: ClassVar[bool] = True

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Codes:
        """Return an accumulator without sums."""
        return []

    def fold(self, acc: Codes, arrival: Arrival) -> Codes:
        """Add one client's code, multiplied by its weight, to the sum of its part."""
        assert arrival.to_sum is not None
        weight = self.weigh(arrival)
        return self.fold_total(acc, arrival, arrival.to_sum() * weight, weight)  # product and sum: as in ``moved``

    def fold_sum(self, acc: Codes, arrival: Arrival, total: Tensor, clients: int) -> Codes:
        """Add the sum of the codes of several clients with the same part."""
        return self.fold_total(acc, arrival, total.to(arrival.layout.dtype), float(clients))

    def total(self, acc: Codes) -> tuple[Tensor, float] | None:
        """Return the sum of the codes if all clients hold the same part."""
        return (acc[0].total, acc[0].weight) if len(acc) == 1 else None

    def fold_total(self, acc: Codes, arrival: Arrival, total: Tensor, weight: float) -> Codes:
        """Add a sum of codes to that of the arrival's part."""
        group = next((group for group in acc if group.fits(arrival.layout)), None)
        if group is None:
            group = PartSum(arrival, torch.zeros_like(total))
            acc.append(group)
        group.total.add_(total)
        group.weight += weight
        return acc

    def decoded(self, state: State, acc: Codes) -> State:
        """Decode the mean of each part, and update the model as in ``Mean``."""
        total = self.empty(state["params"])
        for group in acc:
            total.add(with_vector(group.first, group.decoded()), group.weight)
        return self.moved(state, total)


@dataclass(frozen=True)
class SumThenDecode(CodeMean):
    """Weighted mean of codes, decoded once per round."""

    def finish(self, state: State, acc: Codes, clock: Clock) -> State:
        """Decode the mean of each part, and update the model as in ``Mean``."""
        return self.decoded(state, acc)

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat the mean."""
        return self.repeated(whole)

    def unsummable(self, exact: bool = False) -> str:
        """Return why the sum of the codes is not enough. It is exact: it is decoded once."""
        return self.unequal()


@dataclass(frozen=True)
class Hiso(CodeMean):
    """Weighted mean of scalars along scaled directions, and the curvature that scales the next ones.

    Args:
        smoothing: the weight of a round in the curvature, at least 0 and less than 1; 0 keeps the curvature at 1
        eps: the number that is added to squares, so that the curvature stays positive
        trained: the names of the trained tensors, from the network
        solver: the solver of the exchange
    """

    replayed_state: ClassVar[tuple[str, ...]] = (CURVATURE,)
    sections: ClassVar[tuple[Section, ...]] = (Section(CURVATURE, shape="model"),)

    smoothing: float = 0.05
    eps: float = 1e-8
    trained: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    solver: ScaledZerothOrder = field(default=ScaledZerothOrder(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (0 <= self.smoothing < 1, wrong(self, "smoothing", "must be at least 0 and less than 1")),
            (0 < self.eps < math.inf, wrong(self, "eps", "must be a positive number")),
            (self.over == "cohort", wrong(self, "over", "must be cohort: all clients have all directions")),
        )

    def bind(self, context: Context) -> Self:
        """Return the server with the solver and the names of the tensors. It needs scalars of scaled directions."""
        codec, solver = context.exchange.codec.bind(context), context.exchange.solver
        if not (isinstance(solver, ScaledZerothOrder) and codec.takes_carry(solver)):
            raise ConfigError("Hiso needs scalars of scaled directions: use ScaledZerothOrder() with Seeds(count)")
        alike = solver.perturbations == 1 and solver.directions == "rademacher"
        require((not (alike and self.smoothing), ALIKE))
        return super().bind(context).filled(trained=context.trained, solver=solver)

    def init(self, params: Params) -> State:
        """Return the initial model, and a curvature of 1."""
        return {"params": params, CURVATURE: {name: torch.ones_like(params[name]) for name in sorted(self.trained)}}

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the global model and the curvature."""
        return Download((state["params"],), {CURVATURE: state[CURVATURE]})

    def finish(self, state: State, acc: Codes, clock: Clock) -> State:
        """Decode the mean of the scalars, update the model as in ``Mean``, and update the curvature."""
        if not acc:
            return state
        (group,) = acc
        scaled = _scaled(group, {name: exact.root(entries) for name, entries in state[CURVATURE].items()})
        return {**self.decoded(state, [scaled]), CURVATURE: self._updated(state[CURVATURE], scaled, clock)}

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat the mean and the curvature."""
        return self.repeated(whole)

    def _updated(self, curvature: Params, group: PartSum, clock: Clock) -> Params:
        """Return the curvature after a round. Each operation is a tensor's own: fused, they are rounded otherwise."""
        rate, last = self.solver.lr * self.solver.hyperparams(clock)["factor"], self.solver.perturbations
        if rate == 0:
            return curvature
        mean = group.mean()
        mean = torch.cat((torch.zeros_like(mean[:-last]), mean[-last:]))
        assert group.first.from_sum is not None
        steps, moved = group.first.layout.unflatten(group.first.from_sum(mean)), Params()
        for name, entries in curvature.items():
            gradient = steps[name] / entries.new_tensor(rate)
            square = (gradient * gradient).clamp(max=torch.finfo(entries.dtype).max / 4)
            moved[name] = entries * (1 - self.smoothing) + (square + self.eps) * self.smoothing
        return moved


def _scaled(group: PartSum, roots: Params) -> PartSum:
    """Return a sum whose decoded directions are divided by the roots of the curvature."""
    layout, plain = group.first.layout, group.first.from_sum
    assert plain is not None
    known: list[Tensor] = []  # with one local step, the model and the curvature need the same vector

    def from_sum(mean: Tensor) -> Tensor:
        if not known or not torch.equal(known[0], mean):
            change = layout.unflatten(plain(mean))
            scaled = {name: tensor / roots[name] if name in roots else tensor for name, tensor in change.items()}
            known[:] = mean, layout.flatten(scaled)
        return known[1]

    return replace(group, first=replace(group.first, from_sum=from_sum))


class SeedModel:
    """Computes the model of a run from its sums. The last one is kept.

    Args:
        codec: the codec of the scalars, for one network
        first: the initial model
    """

    def __init__(self, codec: Codec, first: Params) -> None:
        self.codec, self.first, self.layout = codec, first, Layout.of(first)
        self.size = codec.sum_size(self.layout)
        self._last: tuple[Tensor, Params] | None = None

    def at(self, sums: Tensor) -> Params:
        """Return the model for some sums."""
        if self._last is None or not torch.equal(self._last[0], sums):
            change = self.layout.unflatten(self.codec.from_sum(sums, Coding(self.layout, Key(0, 0))))
            self._last = sums.clone(), {name: self.first[name] + change[name] for name in self.first}
        return dict(self._last[1])


@dataclass
class ScalarSum:
    """The weighted sum of the scalars of a round."""

    total: Tensor | None = None  # [K]
    weight: float = 0.0


@dataclass(frozen=True)
class SeedSums(WeightedMean):
    """Sums the scalars of a fixed set of directions over all rounds; ``over`` and ``radius`` are not used.

    Args:
        model: the model of some sums, from the network
    """

    sums_codes: ClassVar[bool] = True

    model: SeedModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.over == "cohort", wrong(self, "over", "must be cohort: all clients have all directions")),
            (self.radius is None, wrong(self, "radius", "must be none: the model is a sum of directions")),
        )

    def bind(self, context: Context) -> Self:
        """Return the server with the initial model. It needs the scalars of directions that do not change."""
        codec, solver = context.exchange.codec.bind(context), context.exchange.solver
        if not (solver.span is not None and solver.span.fixed and codec.takes_carry(solver)):
            raise ConfigError("SeedSums needs the scalars of fixed directions: use KSeed() with Seeds(candidates)")
        return super().bind(context).filled(model=SeedModel(codec, context.network.initial()))

    def _model(self) -> SeedModel:
        assert self.model is not None
        return self.model

    def init(self, params: Params) -> State:
        """Return the initial model and sums of zero."""
        first = self._model().first
        if not all(torch.equal(tensor, params[name]) for name, tensor in first.items()):
            raise ConfigError("SeedSums needs the initial model of the network: leave out the parametrization")
        some = next(iter(first.values()))
        return {"params": params, SUMS: some.new_zeros(self._model().size)}

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> ScalarSum:
        """Return an empty sum."""
        return ScalarSum()

    def fold(self, acc: ScalarSum, arrival: Arrival) -> ScalarSum:
        """Add the scalars of one client, multiplied by its weight."""
        assert arrival.to_sum is not None
        weight = self.weigh(arrival)
        term = arrival.to_sum() * weight
        acc.total = term if acc.total is None else acc.total + term
        acc.weight += weight
        return acc

    def finish(self, state: State, acc: ScalarSum, clock: Clock) -> State:
        """Add the mean of the scalars to the sums, and compute the model."""
        if acc.total is None:
            return state
        mean = (acc.total / acc.total.new_tensor(acc.weight)).to(tree.device(state["params"]))
        sums = state[SUMS] + mean * self.server_lr
        return {**state, SUMS: sums, "params": self._model().at(sums)}
