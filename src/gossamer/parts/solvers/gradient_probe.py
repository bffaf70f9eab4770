"""One gradient at the received model, and an estimate of its variance. A server compares clients by their gradients.

The model is not trained. The update is the negative gradient on one batch, as after a step of size 1. A second gradient
on half of the batch estimates the variance. For ``b`` independent samples with gradient variance s^2,

    E |g_half - g|^2 = s^2 / b

which is the variance of g. For odd ``b`` the half is rounded down, and the estimate is (b + 1) / (b - 1) times as
large.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import LocalTrainingInfo, Section, Sections
from gossamer.core.random import Key, permutation
from gossamer.core.solver import Gradient, Hyperparams, Solver
from gossamer.core.types import Params, State


@dataclass(frozen=True)
class GradientProbe(Solver):
    """The gradient on one batch, with its variance.

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

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the received model with a variance of 0."""
        some = next(tensor for tensor in start.values() if tensor.is_floating_point())
        noise = torch.zeros((), dtype=some.dtype, device=some.device)
        return {"params": tree.clone(start), "noise": noise, "first": torch.ones_like(noise)}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Compute the gradient in the first step, and its squared distance to the half batch's in the second."""
        grads, forward = gradient(start)
        params, moved = carry["params"], {name: start[name] - grad for name, grad in grads.items()}
        if not self.noise:  # there is only one step
            return {**carry, "params": {**params, **forward, **moved}}
        first = carry["first"] > 0
        far: Tensor = sum((torch.sum((start[n] - params[n] - g) ** 2) for n, g in grads.items()), carry["noise"])
        kept = {name: torch.where(first, tensor, params[name]) for name, tensor in {**forward, **moved}.items()}
        noise = torch.where(first, carry["noise"], far)
        return {"params": {**params, **kept}, "noise": noise, "first": torch.zeros_like(carry["first"])}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the variance of the gradient, summed over its entries."""
        return {}, {"noise": carry["noise"]}
