"""Zeroth-order training: a client evaluates its loss along random directions, and computes no gradient.

Li et al., Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization, ICLR 2025,
https://arxiv.org/abs/2405.15861 (DeComFL).

In local step k, with the loss F of one batch and perturbations p = 1 to P along directions z(k, p):

    central    c = (F(w + mu z) - F(w - mu z)) / (2 mu)      2 P evaluations per step
    forward    c = (F(w + mu z) - F(w)) / mu                 P + 1 evaluations per step
    w <- w - lr factor(round) / P sum_p c(k, p) z(k, p)

For mu -> 0, c is the product of the gradient g with z, and c z is an unbiased estimate of g in d dimensions:

    rademacher    E|c z - g|^2 = (d - 1) |g|^2        the default
    gauss         E|c z - g|^2 = (d + 1) |g|^2        the authors' code

Central differences are exact for a quadratic loss. Forward differences add mu/2 z'Hz, which is independent of the sign
of z, so that its product with z has mean 0: the bias of both is of the order of mu^2. With ``clip``, estimates are
biased. The directions are those of the round (``gossamer.core.random.directions``), the same for all clients with a
``common`` codec. So ``gossamer.parts.codecs.Seeds`` sends K P scalars, and the server decodes their mean.

A client with K = 1 needs no second copy of the weights. Directions are drawn tensor by tensor where they are used, so
memory is that of inference, and the tensors of one layer.
"""

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.core import exact
from gossamer.core.errors import ConfigError, PayloadError, listed, require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.random import Key, Purpose, draws, fold
from gossamer.core.random.directions import (
    DIRECTION_KINDS,
    DirectionKind,
    Number,
    draw_number,
    drawn,
    place,
    taken,
    together,
)
from gossamer.core.solver import Hyperparams, Loss, Span
from gossamer.core.types import Clock, Layout, State
from gossamer.parts.solvers import schedules
from gossamer.parts.solvers.schedules import Constant, LRSchedule

CURVATURE = "curvature"
"""The section with the estimate of the curvature."""

SEEDS = "seeds"
"""The purpose of the key of the directions of a run."""


class Along:
    """The directions of one key, within one step, and steps along them.

    Small tensors are drawn together. The last draw and the last direction are kept: 2 MB, or twice the largest tensor.

    Args:
        kind: the distribution of their entries
        layers: the number of each trained tensor
        layout: names and shapes of the tensors
        key: the key, as a tensor
        params: the parameters
        divisors: what the entries are divided by, in the order of the parameters; none means 1
    """

    def __init__(
        self,
        kind: DirectionKind,
        layers: Mapping[str, int],
        layout: Layout,
        key: Tensor,
        params: Tensor,
        divisors: Tensor | None = None,
    ) -> None:
        self.kind, self.layout, self.key, self.params, self.divisors = kind, layout, key, params, divisors
        ends, sizes = accumulate(layout.counts, initial=0), layout.counts
        spans = zip(layout.shapes, ends, sizes, strict=False)
        self.spans = {name: (start, size) for (name, _), start, size in spans}  # where each tensor is in the vector
        names, pieces = list(layers), [(number, self.spans[name][1]) for name, number in layers.items()]
        groups = together([n for _, n in pieces])
        self.names, self.pieces = [names[group] for group in groups], [pieces[group] for group in groups]
        self.places: dict[str, tuple[int, int]] = {}  # the group of each tensor, and where it begins there
        for number, group in enumerate(groups):
            starts = accumulate((n for _, n in pieces[group]), initial=0)
            self.places |= {name: (number, start) for name, start in zip(names[group], starts, strict=False)}
        self._draw = self._direction = NOTHING

    def quotient(self, loss: Loss, number: Number, mu: float, centre: Tensor | None = None) -> Tensor:
        """Return the central difference quotient of a loss, or the forward one, given the loss at the centre."""
        ahead = loss(self.params, partial(self._shifted, number, mu))
        if centre is not None:
            return (ahead - centre) / mu
        return (ahead - loss(self.params, partial(self._shifted, number, -mu))) / (2 * mu)

    def _shifted(self, number: Number, by: float, name: str, tensor: Tensor) -> Tensor:
        entries = self._piece(self._entries(number, self.places[name][0]), name)
        return torch.add(tensor, entries.view(tensor.shape), alpha=by)

    def step(self, numbers: Sequence[Number], coefficients: Tensor, in_place: bool) -> Tensor:
        """Return parameters to which the directions are added, each times its coefficient, in their order."""
        moved: dict[str, Tensor] = {}
        for group, names in enumerate(self.names):
            total: Tensor | float = 0.0
            for number, coefficient in zip(numbers, coefficients, strict=True):
                total = total + self._entries(number, group).to(coefficient.dtype) * coefficient
            assert isinstance(total, Tensor)
            for name in names:
                held, change = self.params.narrow(-1, *self.spans[name]), self._piece(total, name)
                moved[name] = held.add_(change) if in_place else held + change
        return self.params if in_place else self.layout.replaced(self.params, moved)

    def _entries(self, number: Number, group: int) -> Tensor:
        """Return the entries of a direction for a group."""
        if not self._direction.fits(number, group):
            source = draw_number(self.kind, number)
            known = source if isinstance(source, int) else number
            if not self._draw.fits(known, group):
                self._draw = Kept(known, group, drawn(self.kind, self.key, source, self.pieces[group]))
            self._direction = Kept(number, group, taken(self.kind, self._draw.entries, place(number)))
        return self._direction.entries

    def _piece(self, entries: Tensor, name: str) -> Tensor:
        """Return the entries of one tensor, given those of its group, divided by its divisors."""
        (start, size), at = self.spans[name], self.places[name][1]
        piece = entries[at : at + size].to(self.params.dtype)
        return piece if self.divisors is None else piece / self.divisors.narrow(-1, start, size)


class Kept(NamedTuple):
    """A draw or a direction for a group of tensors.

    Args:
        number: its number. One that is a tensor is not read, as it may be stacked or captured
        group: the group
        entries: the entries of all tensors of the group
    """

    number: Number
    group: int
    entries: Tensor

    def fits(self, number: Number, group: int) -> bool:
        """Return whether this is known to be the draw or the direction with a number."""
        same = number is self.number or (isinstance(number, int) and number == self.number)
        return same and group == self.group


NOTHING = Kept(-1, -1, torch.empty(0))


def clipped(quotient: Tensor, clip: float | None) -> Tensor:
    """Return a difference quotient with a magnitude of at most ``clip``."""
    return quotient if clip is None else quotient.clamp(-clip, clip)


def numbered(context: Context) -> dict[str, int]:
    """Return the number of each trained tensor in a direction, in name order."""
    return {name: number for number, name in enumerate(sorted(context.trained))}


class DifferenceSolver(schedules.Batched, ABC):
    """Base of solvers that take steps by difference quotients: the fields that all of them have, and their checks."""

    uses: ClassVar[Literal["losses"]] = "losses"

    lr: float
    steps: int
    mu: float
    directions: DirectionKind
    clip: float | None
    schedule: LRSchedule

    def rules(self) -> list[tuple[bool, str]]:
        """Return the checks of these fields, each with its error message."""
        kinds = listed(DIRECTION_KINDS)
        return [
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            (self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (0 < self.mu < math.inf, wrong(self, "mu", "must be a positive number")),
            (self.batch is None or self.batch >= 1, wrong(self, "batch", "must be at least 1")),
            (self.directions in DIRECTION_KINDS, wrong(self, "directions", f"must be one of {kinds}")),
            (self.clip is None or 0 < self.clip < math.inf, wrong(self, "clip", "must be a positive number")),
        ]

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the sample indices of each step. Every epoch is a new permutation of all samples."""
        return schedules.plan(samples, self.batch, self.steps, key)

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the factor of the learning rate in this round."""
        return {"factor": self.schedule.factor(clock.round, clock.rounds)}


@dataclass(frozen=True)
class Perturbing(DifferenceSolver, ABC):
    """Base of solvers with several perturbations per step: the fields of ``ZerothOrder``, and the step."""

    lr: float = 1e-3
    steps: int = 1
    perturbations: int = 10
    mu: float = 1e-3
    batch: int | None = 32
    difference: Literal["central", "forward"] = "central"
    directions: DirectionKind = "rademacher"
    clip: float | None = None
    schedule: LRSchedule = Constant()
    layers: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The number of each trained tensor, in name order."""
    moves: bool = field(default=True, init=False, repr=False, compare=False)
    """Whether steps move the model; else the scalars are all that is needed of the only step."""

    def __post_init__(self) -> None:
        differences = ("central", "forward")
        require(
            *self.rules(),
            (self.perturbations >= 1, wrong(self, "perturbations", "must be at least 1")),
            (self.difference in differences, wrong(self, "difference", "must be central or forward")),
        )

    def placed(self, context: Context) -> Self:
        """Return the solver with the numbers of the tensors. Without a codec of scalars, every step moves the model."""
        moves = self.steps > 1 or not context.exchange.codec.takes_carry(self)
        return self.filled(layers=numbered(context), moves=moves)

    @property
    def span(self) -> Span:
        """K P directions."""
        return Span(self.directions, self.steps * self.perturbations, -self.lr / self.perturbations)

    @property
    def evaluations(self) -> int:
        """The number of losses per step: 2 P, or P + 1 with forward differences."""
        return 2 * self.perturbations if self.difference == "central" else self.perturbations + 1

    def begun(self, start: Tensor) -> State:
        """Return the received parameters, as a copy if steps move them, and no scalars."""
        scalars = start.new_zeros(*start.shape[:-1], self.span.size)
        return {"params": start.clone() if self.moves else start, "scalars": scalars}

    def moved(self, loss: Loss, carry: State, hyperparams: Hyperparams, roots: Tensor | None = None) -> State:
        """Take one step along the directions of the step, divided by ``roots``."""
        params, before, step = carry["params"], carry["scalars"], loss.keys.step
        first = step * self.perturbations if self.steps > 1 else 0
        along = Along(self.directions, self.layers, self.layout, loss.keys.common, params, roots)
        centre = None if self.difference == "central" else loss(params)
        numbers = [first + p for p in range(self.perturbations)]
        found = [clipped(along.quotient(loss, number, self.mu, centre), self.clip) for number in numbers]
        scalars = torch.stack(found).to(before.dtype) * hyperparams["factor"]
        mine = torch.arange(self.span.size, device=before.device) // self.perturbations == step
        if self.moves:
            in_place = not isinstance(hyperparams["factor"], Tensor)
            params = along.step(numbers, scalars * self.span.scale, in_place)
        return {**carry, "params": params, "scalars": torch.where(mine, scalars.repeat(self.steps), before)}


@dataclass(frozen=True)
class ZerothOrder(Perturbing):
    """Steps along random directions, by differences of losses.

    Args:
        lr: learning rate. The estimate has d times the variance of the gradient, so it is smaller than that of SGD
        steps: local steps per round (K)
        perturbations: directions per step (P)
        mu: length of a perturbation, in units of the direction
        batch: batch size; none takes all samples
        difference: central, or forward, which has fewer evaluations
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
    """

    def bind(self, context: Context) -> Self:
        """Return the solver with the numbers of the tensors."""
        return self.placed(context)

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the received parameters and no scalars."""
        return self.begun(start)

    def step(self, loss: Loss, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take one step along the directions of the step."""
        return self.moved(loss, carry, hyperparams)


@dataclass(frozen=True)
class ScaledZerothOrder(Perturbing):
    """``ZerothOrder`` along directions that are scaled by an estimate of the curvature.

    Li et al., Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization, ICLR 2026,
    https://arxiv.org/abs/2506.02370 (HiSo). With the diagonal H of the server (``gossamer.parts.servers.hiso``),
    products and roots by entry:

        c = (F(w + mu z / sqrt(H)) - F(w)) / mu
        w <- w - lr factor(round) / P sum_p c(k, p) z(k, p) / sqrt(H)

    For mu -> 0, the mean of a step is lr g / H, with the gradient g: steps are longer where the curvature is small. H
    is that of the start of the round in all local steps. For H = 1, this is ``ZerothOrder``, bit for bit.

    A client does not receive H where it can compute it from the scalars of the rounds that it has missed
    (``gossamer.parts.downlinks.delta``).
    """

    def bind(self, context: Context) -> Self:
        """Return the solver with the numbers of the tensors. It needs a server that sends the curvature."""
        if CURVATURE not in {section.name for section in context.exchange.server.sections}:
            raise ConfigError(f"{type(self).__name__} needs a server that estimates the curvature: use Hiso()")
        return self.placed(context)

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the received parameters, and the square roots of the received curvature, which must be positive."""
        curvature = self.where_trained(sections.get(CURVATURE, torch.ones_like(start)), 1.0)
        if not bool((curvature > 0).all()):
            raise PayloadError("the curvature must be positive")
        return {**self.begun(start), "roots": exact.root(curvature)}

    def step(self, loss: Loss, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take one step along the scaled directions of the step."""
        return self.moved(loss, carry, hyperparams, carry["roots"])


@dataclass(frozen=True)
class KSeed(DifferenceSolver):
    """Steps along candidate directions of a run, one drawn per step.

    Qin et al., Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication Cost under 18
    Kilobytes, ICML 2024, https://arxiv.org/abs/2312.06353 (FedKSeed), Algorithm 1 with uniform probabilities.

    A run has K candidate directions z_1 to z_K, which follow from its key. In each local step, a client draws one of
    them, evaluates the loss F of a batch twice, and adds to the sum of that direction:

        c = (F(w + mu z_j) - F(w - mu z_j)) / (2 mu)
        w <- w - lr factor(round) c z_j
        s_j <- s_j + factor(round) c

    The upload has the sums (``gossamer.parts.codecs.Seeds``). The global model is the initial one plus a sum over the K
    directions, so the download has K numbers (``gossamer.parts.servers.SeedSums``).

    Args:
        lr: learning rate
        steps: local steps per round
        candidates: number of candidate directions of the run (K)
        mu: length of a perturbation, in units of the direction
        batch: batch size; none takes all samples
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        seed: seed of the directions; none uses that of the run
    """

    lr: float = 1e-3
    steps: int = 20
    candidates: int = 512
    mu: float = 1e-3
    batch: int | None = 32
    directions: DirectionKind = "rademacher"
    clip: float | None = None
    schedule: LRSchedule = Constant()
    seed: int | None = None
    layers: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The number of each trained tensor, in name order."""
    at: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)
    """The key of the directions."""

    def __post_init__(self) -> None:
        require(
            *self.rules(),
            (1 <= self.candidates < 2**24, wrong(self, "candidates", "must be at least 1 and below 2**24")),
        )

    def bind(self, context: Context) -> Self:
        """Return the solver with the directions of the run."""
        return self.filled(layers=numbered(context), at=fold(context.shared_key(self.seed), SEEDS))

    @property
    def span(self) -> Span:
        """The candidate directions: a run has one set of directions."""
        return Span(self.directions, self.candidates, -self.lr, fixed=True)

    @property
    def evaluations(self) -> int:
        """Two losses per step."""
        return 2

    def purposes(self) -> Iterable[Purpose]:
        """Return the directions of the run."""
        return [(SEEDS,)] if self.seed is None else ()

    def direction_key(self, codec: Key) -> Key:
        """Return the key of the run's directions."""
        return self.at

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return a copy of the received parameters, and sums of zero."""
        return {"params": start.clone(), "scalars": start.new_zeros(*start.shape[:-1], self.candidates)}

    def step(self, loss: Loss, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take one step along a direction that the client draws."""
        before: Tensor = carry["scalars"]
        along = Along(self.directions, self.layers, self.layout, loss.keys.common, carry["params"])
        number = (draws(loss.keys.own, loss.keys.step, 1)[0].double() * self.candidates).to(torch.int64)
        found = clipped(along.quotient(loss, number, self.mu), self.clip).to(before.dtype)
        scalar = found * hyperparams["factor"]
        mine = torch.arange(self.candidates, device=before.device) == number
        in_place = not isinstance(hyperparams["factor"], Tensor)
        params = along.step([number], (scalar * self.span.scale).view(1), in_place)
        return {**carry, "params": params, "scalars": torch.where(mine, before + scalar, before)}
