"""Difference quotients of a loss along random directions, and steps along them."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import listed, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key
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
from gossamer.core.solver import ForwardSolver, Hyperparams, Loss, StepKeys
from gossamer.core.types import Clock, Params, State
from gossamer.parts.solvers import batches
from gossamer.parts.solvers.schedules import LRSchedule


class DifferenceSolver(batches.Batched, ForwardSolver):
    """A solver that takes steps by difference quotients: the fields that all of them have, and their checks.

    It is configuration: ``bind`` returns the solver for one network, which has ``advance``.
    """

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
        return batches.plan(samples, self.batch, self.steps, key)

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the factor of the learning rate in this round."""
        return {"factor": self.schedule.factor(clock.round, clock.rounds)}

    def advance(self, loss: Loss, start: Params, carry: State, hyperparams: Hyperparams, keys: StepKeys) -> State:
        """Refuse a step before the tensors are known."""
        raise NotImplementedError("bind the solver first")


def numbered(context: Context) -> dict[str, int]:
    """Return the number of each trained tensor in a direction, in name order."""
    return {name: number for number, name in enumerate(sorted(context.trained))}


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


class Along:
    """The directions of one key, within one step.

    Small tensors are drawn together. The last draw and the last direction are kept: 2 MB, or twice the
    largest tensor.

    Args:
        kind: the distribution of their entries
        layers: the number of each trained tensor
        key: the key, as a tensor
        params: the tensors
        divisors: what the entries are divided by; none means 1
    """

    def __init__(
        self,
        kind: DirectionKind,
        layers: Mapping[str, int],
        key: Tensor,
        params: Params,
        divisors: Params | None = None,
    ) -> None:
        self.kind, self.key, self.params, self.divisors = kind, key, params, divisors
        names, pieces = list(layers), [(number, params[name].numel()) for name, number in layers.items()]
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
        return torch.add(tensor, self._piece(self._entries(number, self.places[name][0]), name), alpha=by)

    def step(self, numbers: Sequence[Number], coefficients: Tensor, in_place: bool) -> Params:
        """Return tensors to which the directions are added, each times its coefficient, in their order."""
        new = dict(self.params)
        for group, names in enumerate(self.names):
            total: Tensor | float = 0.0
            for number, coefficient in zip(numbers, coefficients, strict=True):
                total = total + self._entries(number, group).to(coefficient.dtype) * coefficient
            assert isinstance(total, Tensor)
            for name in names:
                change = self._piece(total, name)
                new[name] = new[name].add_(change) if in_place else new[name] + change
        return new

    def _entries(self, number: Number, group: int) -> Tensor:
        """Return the entries of a direction for a group."""
        if not self._direction.fits(number, group):
            entries = taken(self.kind, self._drawn(number, group), place(number))
            self._direction = Kept(number, group, entries)
        return self._direction.entries

    def _drawn(self, number: Number, group: int) -> Tensor:
        """Return the draw of a direction for a group."""
        source = draw_number(self.kind, number)
        known = source if isinstance(source, int) else number
        if not self._draw.fits(known, group):
            self._draw = Kept(known, group, drawn(self.kind, self.key, source, self.pieces[group]))
        return self._draw.entries

    def _piece(self, entries: Tensor, name: str) -> Tensor:
        """Return the entries of one tensor, given those of its group, divided by its divisors."""
        like, start = self.params[name], self.places[name][1]
        piece = entries[start : start + like.numel()].view(like.shape).to(like.dtype)
        return piece if self.divisors is None else piece / self.divisors[name]


def clipped(quotient: Tensor, clip: float | None) -> Tensor:
    """Return a difference quotient with a magnitude of at most ``clip``."""
    return quotient if clip is None else quotient.clamp(-clip, clip)
