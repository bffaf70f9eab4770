"""SGD for sparse models: pruning within a round or over the rounds, thresholds, and snapshots for pruning views.

Weights are the entries of tensors with two or more dimensions. Norms and biases are never pruned.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.random import Key
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, State
from gossamer.parts.pruning_schedule import Progressive, count_of, pieces, pruned, weights_in
from gossamer.parts.solvers.schedules import plan
from gossamer.parts.solvers.sgd import Descent, PlainDescent


@dataclass(frozen=True)
class PruningSGD(PlainDescent):
    """SGD with gradual magnitude pruning within a round: after each step, the smallest weights are set to zero.

    The schedule is that of Zhu and Gupta, To prune, or not to prune, 2017, https://arxiv.org/abs/1710.01878, over the
    steps of one round. Every round starts again without pruning. After step t of T in a round, the sparsity is at least

        sparsity (1 - (1 - t / T)**3)

    over all weights together. A pruned weight can become nonzero again in a later step. After the last step of the
    round, the sparsity is ``sparsity``.

    Args:
        sparsity: fraction of the weights that are zero at the end of each round
    """

    sparsity: float = 0.97

    def __post_init__(self) -> None:
        require(*self.rules(), (0 <= self.sparsity < 1, wrong(self, "sparsity", "must be in [0, 1)")))

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the number of steps taken and planned."""
        taken = torch.zeros_like(start[..., :1], dtype=torch.float64)
        return {**self.begun(start), "step": taken, "steps": torch.full_like(taken, steps)}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, then prune."""
        moved = self.stepped(gradient, start, carry, hyperparams["rate"])
        taken = carry["step"] + 1
        share = self.sparsity * (1 - (1 - taken / carry["steps"]) ** 3)
        params = pruned(moved["params"], self.layout, (share * weights_in(self.layout)).round())
        return {**moved, "params": params, "step": taken, "steps": carry["steps"]}


@dataclass(frozen=True)
class SparseSGD(Descent):
    """SGD that keeps zero weights at zero, and prunes its result: the clients' part of FedSparsify.

    Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022,
    https://arxiv.org/abs/2204.12430. A weight that is zero in the received model stays zero. In FedSparsify-Local, the
    client prunes its model after the last step to the sparsity of the round (``gossamer.parts.pruning_schedule``). In
    FedSparsify-Global, the server prunes. Before the first pruning no weight is fixed, so that weights initialized to
    zero are trained.

    Args:
        pruning: the sparsity after each round
        local: whether the client prunes its model after the last step, instead of the server
    """

    pruning: Progressive = Progressive()
    local: bool = True

    def __post_init__(self) -> None:
        require(*self.rules())

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of SGD."""
        return plan(samples, self.batch, self.steps or self.epochs * self.batches(samples), key)

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the weights that are zero, and the number of steps that are left."""
        zero = torch.cat([piece & weight for weight, piece in pieces(self.layout, start == 0)], -1)
        left = torch.full_like(start[..., :1], steps, dtype=torch.int64)
        return {**self.begun(start), "zero": zero, "left": left}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate, whether zero weights are fixed, and the sparsity after the last step."""
        fixed = self.pruning.at(clock.round - 1, clock.rounds) > 0
        after = self.pruning.at(clock.round, clock.rounds) if self.local else 0.0
        return {"rate": self.rate(clock), "fixed": float(fixed), "share": after}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, set pruned weights to zero again, and prune after the last step."""
        moved = self.stepped(gradient, start, carry, hyperparams["rate"])
        params = torch.where(carry["zero"] & (hyperparams["fixed"] > 0), 0, moved["params"])
        left, share = carry["left"] - 1, hyperparams["share"]
        if isinstance(
            share, Tensor
        ):  # a compiled step cannot branch: it always prunes, by a share of 0 before the last
            count = count_of(torch.where(left == 0, share, 0), self.layout, params)
            params = pruned(params, self.layout, count)
        elif share and not left:
            params = pruned(params, self.layout, count_of(share, self.layout, params))
        return {**moved, "params": params, "zero": carry["zero"], "left": left}


@dataclass(frozen=True)
class ThresholdSGD(PlainDescent):
    """SGD on the weights above a threshold: threshold-controlled biased gradient descent (FIARSE).

    Wu et al., FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction, NeurIPS 2024,
    https://arxiv.org/abs/2407.19389.

    The threshold t is the smallest magnitude of the weights that the client received. In every step, with the mask M(w)
    of the weights with |w| >= t and the loss gradient g,

        g <- g(w M(w)) M(w) (1 + 2 |w| t / (|w| + t)**2)

    The last factor is a straight-through gradient of the mask itself. It is largest at the threshold, 1.5, so that
    weights leave its neighbourhood. A weight that falls below the threshold counts as zero, and stays as it is until
    the next round. The rest of the step is that of ``SGD``; momentum and weight decay move weights below the threshold
    too.

    Biases and norms have no threshold, nor have weights that are exactly zero at the start: weights that the client
    does not hold, which have no gradient, and weights that were initialized to zero.

    Args:
        by: one threshold for the whole model, or one for each tensor (model, tensor)
    """

    by: Literal["model", "tensor"] = "model"

    def __post_init__(self) -> None:
        require(*self.rules(), (self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")))

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the threshold of each tensor; 0 is none."""
        cut = pieces(self.layout, torch.where(start == 0, torch.inf, start.abs()))
        smallest = torch.stack(
            [t.amin(-1) if weight else torch.full_like(t[..., 0], torch.inf) for weight, t in cut], -1
        )
        if self.by == "model":
            of_model = smallest.amin(-1, keepdim=True)
            smallest = torch.where(torch.tensor([w for w, _ in cut], device=start.device), of_model, torch.inf)
        return {**self.begun(start), "threshold": torch.where(smallest < torch.inf, smallest, 0)}  # [..., tensors]

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD with the gradient of the thresholded weights."""
        params, cut = carry["params"], zip(carry["threshold"].unbind(-1), pieces(self.layout, start), strict=True)
        threshold = torch.cat([torch.where(t != 0, least.unsqueeze(-1), 0) for least, (_, t) in cut], -1)
        mask = params.abs() >= threshold
        grads, masked = gradient(params * mask)
        # 2 |w| t / (|w| + t)^2: the derivative of the mask with respect to the weight, times the weight
        ratio = (threshold / (params.abs() + threshold)).nan_to_num()
        biased = grads * (mask * (1 + 2 * (1 - ratio) * ratio))
        at = self.where_trained(params, masked)
        return {**self.moved(biased, at, start, carry, hyperparams["rate"]), "threshold": carry["threshold"]}


@dataclass(frozen=True)
class SnapshotSGD(PlainDescent):
    """SGD by epochs that keeps the weights after the first epoch, ``early``, for pruning views."""

    def __post_init__(self) -> None:
        text = "must be none: the snapshot is taken after an epoch"
        require(*self.rules(), (self.steps is None, wrong(self, "steps", text)))

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the number of steps until the snapshot."""
        left = torch.full_like(start[..., :1], max(1, steps // self.epochs), dtype=torch.int64)
        return {**self.begun(start), "early": start.clone(), "left": left}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, and the snapshot after the last step of the first epoch."""
        moved, left = self.stepped(gradient, start, carry, hyperparams["rate"]), carry["left"] - 1
        return {**moved, "early": torch.where(left == 0, moved["params"], carry["early"]), "left": left}
