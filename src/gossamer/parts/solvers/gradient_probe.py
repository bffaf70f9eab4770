"""One gradient at the model that arrived, and how uncertain it is: what a server compares clients by.

Nothing is trained: the change that is sent is the negative gradient on one batch, as if a step of size 1 had been
taken. The gradient on half of that batch, taken at the same place, tells how uncertain the first is: of ``b`` samples
with variance s^2, drawn independently,

    E |g_half - g|^2 = s^2 / b

which is the variance of g itself. Where ``b`` is odd the half is smaller, and the estimate is (b + 1) / (b - 1) times
that.
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
    """The gradient on one batch.

    Args:
        batch: samples in the batch; none means all of the client's
        noise: whether to find out how uncertain the gradient is too, which takes half as long again
    """

    batch: int | None = None
    noise: bool = True
    sections: ClassVar[tuple[Section, ...]] = (Section("noise", "scalar"),)

    def __post_init__(self) -> None:
        require((self.batch is None or self.batch >= 1, wrong(self, "batch", "must be at least 1")))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """The batch, and the first half of it; of a batch of one sample there is no half."""
        batch = permutation(key, samples)[: self.batch or samples]
        return [batch, batch[: len(batch) // 2]] if self.noise and len(batch) > 1 else [batch]

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Where the round starts, and nothing known yet."""
        some = next(tensor for tensor in start.values() if tensor.is_floating_point())
        noise = torch.zeros((), dtype=some.dtype, device=some.device)
        return {"params": tree.clone(start), "noise": noise, "first": torch.ones_like(noise)}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """The gradient, and then how far that on a part of the batch is from it."""
        grads, forward = gradient(start)
        params, moved = carry["params"], {name: start[name] - grad for name, grad in grads.items()}
        if not self.noise:  # there is no other step
            return {**carry, "params": {**params, **forward, **moved}}
        first = carry["first"] > 0
        far: Tensor = sum((torch.sum((start[n] - params[n] - g) ** 2) for n, g in grads.items()), carry["noise"])
        kept = {name: torch.where(first, tensor, params[name]) for name, tensor in {**forward, **moved}.items()}
        noise = torch.where(first, carry["noise"], far)
        return {"params": {**params, **kept}, "noise": noise, "first": torch.zeros_like(carry["first"])}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """The variance of the gradient: the sum over its entries."""
        return {}, {"noise": carry["noise"]}
