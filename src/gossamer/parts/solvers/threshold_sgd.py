"""SGD on the weights above a threshold: threshold-controlled biased gradient descent (FIARSE).

Wu et al., FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction, NeurIPS 2024,
https://arxiv.org/abs/2407.19389.

The threshold t is the smallest magnitude of the weights that the client received. In every step, with the mask M(w) of
the weights with |w| >= t and the loss gradient g,

    g <- g(w M(w)) M(w) (1 + 2 |w| t / (|w| + t)**2)

The last factor is a straight-through gradient of the mask itself. It is largest at the threshold, 1.5, so that weights
leave its neighbourhood. A weight that falls below the threshold counts as zero, and stays as it is until the next
round. The rest of the step is that of ``SGD``; momentum and weight decay move weights below the threshold too.

Biases and norms have no threshold, nor have weights that are exactly zero at the start: weights that the client does
not hold, which have no gradient, and weights that were initialized to zero.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Gradients, Hyperparams
from gossamer.core.types import Params, State
from gossamer.parts.solvers.sgd import SGD


@dataclass(frozen=True)
class ThresholdSGD(SGD):
    """SGD with a threshold on the magnitude of weights.

    Args:
        by: one threshold for the whole model, or one for each tensor (model, tensor)
    """

    by: Literal["model", "tensor"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the threshold of each weight tensor."""
        smallest = {name: _smallest(tensor) for name, tensor in start.items() if _is_weight(tensor)}
        if self.by == "model" and smallest:
            smallest = dict.fromkeys(smallest, torch.stack(list(smallest.values())).min())
        thresholds = {name: torch.where(t < torch.inf, t, 0) for name, t in smallest.items()}
        return {**super().begin(start, sections, memory, steps), "threshold": thresholds}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD with the gradient of the thresholded weights."""
        thresholds: Params = carry["threshold"]

        def thresholded(params: Params) -> Gradients:
            free = {name: start[name] == 0 for name in thresholds}
            masks = {name: (params[name].abs() >= t) | free[name] for name, t in thresholds.items()}
            grads, forward = gradient({**params, **{name: params[name] * mask for name, mask in masks.items()}})
            biased = {n: masks[n] * (1 + ~free[n] * _bias(params[n].abs(), thresholds[n])) for n in masks if n in grads}
            return {**grads, **{name: grads[name] * factor for name, factor in biased.items()}}, forward

        return {**super().step(thresholded, start, carry, hyperparams), "threshold": thresholds}


def _is_weight(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.is_floating_point()


def _smallest(tensor: Tensor) -> Tensor:
    """Return the smallest nonzero magnitude; infinity for a tensor of zeros."""
    sizes = tensor.abs()
    return torch.where(sizes > 0, sizes, torch.inf).min()


def _bias(sizes: Tensor, threshold: Tensor) -> Tensor:
    """Return 2 |w| t / (|w| + t)^2: the derivative of the mask with respect to the weight, times the weight."""
    ratio = (threshold / (sizes + threshold)).nan_to_num()
    return 2 * (1 - ratio) * ratio
