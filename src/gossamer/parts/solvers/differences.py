"""Difference quotients of a loss along random directions, and steps along them."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import listed, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key
from gossamer.core.random.directions import DIRECTION_KINDS, DirectionKind, direction
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


KEPT = 2**20
"""Entries of directions that are kept within a step, to be drawn once: 4 MB of float32."""


class Along:
    """The directions of one key, within one step.

    Args:
        kind: the distribution of their entries
        layers: the number of each trained tensor
        key: the key, as a tensor
        divisors: what the entries are divided by; none means 1
    """

    def __init__(
        self, kind: DirectionKind, layers: Mapping[str, int], key: Tensor, divisors: Params | None = None
    ) -> None:
        self.kind, self.layers, self.key, self.divisors = kind, layers, key, divisors
        self._kept: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        self._room = KEPT

    def entries(self, number: Tensor, name: str, like: Tensor) -> Tensor:
        """Return the entries of a direction for one tensor. Those of small models are drawn once per step."""
        at = id(number), name  # the number is kept too, so that its identity is not used again
        if at in self._kept:
            return self._kept[at][1]
        drawn = direction(self.kind, self.key, number, like.numel(), self.layers[name]).view(like.shape).to(like.dtype)
        if drawn.numel() <= self._room:
            self._room -= drawn.numel()
            self._kept[at] = number, drawn
        return drawn

    def quotient(self, loss: Loss, params: Params, number: Tensor, mu: float, centre: Tensor | None = None) -> Tensor:
        """Return the central difference quotient of a loss, or the forward one, given the loss at ``params``."""
        ahead = loss(params, partial(self._shifted, number, mu))
        if centre is not None:
            return (ahead - centre) / mu
        return (ahead - loss(params, partial(self._shifted, number, -mu))) / (2 * mu)

    def _shifted(self, number: Tensor, by: float, name: str, tensor: Tensor) -> Tensor:
        return tensor + self._divided(name, self.entries(number, name, tensor) * by)

    def step(self, params: Params, numbers: list[Tensor], coefficients: Tensor, in_place: bool) -> Params:
        """Return tensors to which the directions are added, each times its coefficient, in their order."""
        terms = list(zip(numbers, coefficients, strict=True))
        moved = {name: self._moved(name, params[name], terms, in_place) for name in self.layers}
        return {**params, **moved}

    def _moved(self, name: str, tensor: Tensor, terms: list[tuple[Tensor, Tensor]], in_place: bool) -> Tensor:
        total = torch.zeros_like(tensor)
        for number, coefficient in terms:
            total = total + self.entries(number, name, tensor) * coefficient
        total = self._divided(name, total)
        return tensor.add_(total) if in_place else tensor + total

    def _divided(self, name: str, total: Tensor) -> Tensor:
        return total if self.divisors is None else total / self.divisors[name]


def clipped(quotient: Tensor, clip: float | None) -> Tensor:
    """Return a difference quotient with a magnitude of at most ``clip``."""
    return quotient if clip is None else quotient.clamp(-clip, clip)
