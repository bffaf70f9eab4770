"""Objectives of sub-model training as functions: masked objectives, their gradients, and their dissimilarity.

From Deng, Qiao and Mahdavi, "On the convergence and stability of distributed sub-model training",
https://arxiv.org/abs/2511.06132. A client with a 0/1 mask m trains its loss at ``m * w``. So training does not minimize
the mean F of the losses but

    F_p(w) = 1/N sum_i E f_i(m_i * w)             random masks with probability p_i (Equation 2)
    F_m(w) = 1/N sum_i 1/R sum_j f_i(m_ij * w)    R windows in turn (Equation 15)

Both are a mean over clients of an expectation over masks. ``Masked`` covers both, and F itself with full masks. Random
masks are enumerated for few entries, or sampled for many. ``gossamer.analysis.theory.submodel_bounds`` has the bounds.

Interpretation where the paper is unclear:

- F_m is printed with 1/d and a sum over d masks, and with 1/R and a sum over R masks. It is a mean over the R windows.
- Definitions 2 and 3 take the supremum of the dissimilarity over all weights, which cannot be computed.
  ``Masked.dissimilarity`` is the value at given weights, to be maximized over the trajectory of training.
- The output of both algorithms is one more gradient step of size 1/L. Algorithm 1 prints it with another draw of the
  masks, Lemma 3 with the gradient of F_p: ``Masked.output`` is the latter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad

from gossamer.analysis.theory.smooth import Smooth
from gossamer.analysis.theory.submodel_masks import Masks
from gossamer.core.errors import require
from gossamer.core.random import key as make_key
from gossamer.core.types import Layout, Params
from gossamer.tasks.data.nests import arguments, scores
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

Loss = Callable[[Tensor], Tensor]
"""Map the vector of model entries to one number, differentiably."""


@dataclass(frozen=True, eq=False)
class Masked(Smooth):
    """A masked objective: the mean over clients of E f_i(m * w).

    Args:
        losses: each client's loss f_i, as a function of the vector of model entries
        masks: the possible masks of each client
    """

    losses: Sequence[Loss]
    masks: Masks

    def __post_init__(self) -> None:
        clients = len(self.masks.held)
        require((len(self.losses) == clients, f"Masked: {len(self.losses)} losses, but masks of {clients} clients"))

    def value(self, w: Tensor) -> Tensor:
        """Return the objective at weights ``w``."""
        each = self._each(w, lambda loss, held: loss(held * w))
        return (self.masks.chances.to(w) * each).sum(1).mean()

    def gradients(self, w: Tensor) -> Tensor:
        """Return ``m * grad f_i(m * w)`` for every client and mask, [clients, masks, entries]."""
        return self._each(w, lambda loss, held: held * grad(loss)(held * w))

    def gradient(self, w: Tensor) -> Tensor:
        """Return the objective's gradient: the mean of ``gradients``."""
        return self._mean(self.gradients(w)).mean(0)

    def heterogeneity(self, w: Tensor) -> float:
        """Mean over clients of E|m * grad f_i(m * w)|^2: sigma_*^2 at the optimum (Definition 1)."""
        return float(self._mean(self.gradients(w).square().sum(-1, keepdim=True)).mean())

    def dissimilarity(self, w: Tensor) -> float:
        """Mean over clients of the squared distance to the full gradient: zeta^2 of Definitions 2 and 3 at ``w``."""
        away = self.gradients(w) - self.gradient(w)
        return float(self._mean(away.square().sum(-1, keepdim=True)).mean())

    def spread(self, w: Tensor) -> float:
        """Variance of a round's mean gradient over independent draws of all masks: at most heterogeneity / N."""
        each = self.gradients(w)
        own = self._mean(each)
        variance = self._mean((each - own[:, None]).square().sum(-1, keepdim=True)).sum()
        return float(variance) / len(self.losses) ** 2

    def divergence(self, w: Tensor) -> float:
        """Maximum over pairs of clients of the expected squared difference of masked gradients (Lemma 12, at ``w``)."""
        each = self.gradients(w)
        own, sizes = self._mean(each), self._mean(each.square().sum(-1, keepdim=True))
        return float((sizes + sizes.T - 2 * own @ own.T).max())

    def largest_divergence(self, w: Tensor) -> float:
        """Maximum over clients and masks of the squared difference of masked gradients (Lemma 13, at ``w``)."""
        each = self.gradients(w)[self.masks.chances > 0]
        return float(torch.cdist(each, each).max()) ** 2

    def _each(self, w: Tensor, apply: Callable[[Loss, Tensor], Tensor]) -> Tensor:
        both = zip(self.losses, self.masks.held.to(w), strict=True)
        return torch.stack([torch.vmap(partial(apply, loss))(held) for loss, held in both])

    def _mean(self, each: Tensor) -> Tensor:
        return (self.masks.chances.to(each)[..., None] * each).sum(1)


def task_losses(task: Task, decay: float = 0.0, seed: int = 0) -> tuple[list[Loss], Params]:
    """Return each client's mean training loss as a function of the trained entries, and their initial values.

    Entries are in name order. ``decay`` is the solver's weight decay, which adds ``decay / 2 |w|^2``. The network is in
    evaluation mode.
    """
    objective = Objective(task, "cpu", make_key(seed))
    module = objective.build().eval()
    like = {name: tensor for name, tensor in objective.initial().items() if name in objective.trained}
    layout = Layout.of(like)

    def loss(rows: Any, w: Tensor) -> Tensor:
        x, y = objective.samples.read(rows)
        output = functional_call(module, layout.unflatten(w), *arguments(x))
        return task.loss(scores(output), y) + decay / 2 * w.square().sum()

    return [partial(loss, torch.from_numpy(task.split.train(client))) for client in range(task.clients)], like
