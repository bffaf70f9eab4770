"""Solvers that train nothing: they measure the received model on a client's samples, and tell the server."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import LocalTrainingInfo, Section, Sections
from gossamer.core.random import Key, permutation
from gossamer.core.solver import Gradient, Hyperparams, Solver
from gossamer.core.types import State


@dataclass(frozen=True)
class LossProbe(Solver):
    """Sends the mean loss on the client's training samples to the server."""

    sections: ClassVar[tuple[Section, ...]] = (Section("loss"),)

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return no batches."""
        return []

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Return the state unchanged. Without batches, it is never called."""
        return carry

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the loss as a section for the server."""
        return {}, {"loss": info.loss()}


@dataclass(frozen=True)
class GradientProbe(Solver):
    """The gradient on one batch, with an estimate of its variance. A server compares clients by their gradients.

    The update is the negative gradient, as after a step of size 1. A second gradient on half of the batch estimates the
    variance. For ``b`` independent samples with gradient variance s^2,

        E |g_half - g|^2 = s^2 / b

    which is the variance of g. For odd ``b`` the half is rounded down, and the estimate is (b + 1) / (b - 1) times as
    large.

    Args:
        batch: batch size; none takes all samples of the client
        noise: estimate the variance of the gradient as well; this adds half a gradient computation
    """

    batch: int | None = None
    noise: bool = True
    sections: ClassVar[tuple[Section, ...]] = (Section("noise", "scalar"),)

    def __post_init__(self) -> None:
        require((self.batch is None or self.batch >= 1, wrong(self, "batch", "must be at least 1")))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batch and its first half. A batch of one sample has no half."""
        batch = permutation(key, samples)[: self.batch or samples]
        return [batch, batch[: len(batch) // 2]] if self.noise and len(batch) > 1 else [batch]

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the received parameters with a variance of 0."""
        noise = torch.zeros_like(start[..., :1])
        return {"params": start, "noise": noise, "first": torch.ones_like(noise)}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Compute the gradient in the first step, and its squared distance to the half batch's in the second."""
        grads, params = gradient(start)
        if not self.noise:  # there is only one step
            return {**carry, "params": params - grads}
        first = carry["first"] > 0
        far = self.where_trained(start - carry["params"] - grads, 0.0).square().sum(-1, keepdim=True)
        return {
            "params": torch.where(first, params - grads, carry["params"]),
            "noise": torch.where(first, carry["noise"], far),
            "first": torch.zeros_like(carry["first"]),
        }

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the variance of the gradient, summed over its entries."""
        return {}, {"noise": carry["noise"]}
