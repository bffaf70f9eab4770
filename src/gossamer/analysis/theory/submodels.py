"""Objectives of sub-model training as functions: masked objectives, their gradients, and their dissimilarity.

From Deng, Qiao and Mahdavi, "On the convergence and stability of distributed sub-model training",
https://arxiv.org/abs/2511.06132. A client with a 0/1 mask m trains its loss at ``m * w``. So training does not minimize
the mean F of the losses but

    F_p(w) = 1/N sum_i E f_i(m_i * w)             random masks with probability p_i (Equation 2)
    F_m(w) = 1/N sum_i 1/R sum_j f_i(m_ij * w)    R windows in turn (Equation 15)

Both are a mean over clients of an expectation over masks. ``Masked`` covers both, and F itself with full masks.
``Masks`` are the distributions of masks: random ones, enumerated for few entries or sampled for many, windows, and
those of views. ``gossamer.analysis.theory.submodel_bounds`` has the bounds.

Interpretation where the paper is unclear:

- Windows "j to (j + s_i) mod d" are s_i entries that wrap around at the end.
- F_m is printed with 1/d and a sum over d masks, and with 1/R and a sum over R masks. It is a mean over the R windows.
- Definitions 2 and 3 take the supremum of the dissimilarity over all weights, which cannot be computed.
  ``Masked.dissimilarity`` is the value at given weights, to be maximized over the trajectory of training.
- The output of both algorithms is one more gradient step of size 1/L. Algorithm 1 prints it with another draw of the
  masks, Lemma 3 with the gradient of F_p: ``Masked.output`` is the latter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev

from gossamer.core.errors import ConfigError, require
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as make_key
from gossamer.core.types import Clock, Layout, Params
from gossamer.core.view import View
from gossamer.parts.views.entries import Windows
from gossamer.tasks.data.nests import arguments, scores
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task


class Smooth(ABC):
    """An objective as a function of the vector of model entries."""

    @abstractmethod
    def gradient(self, w: Tensor) -> Tensor:
        """Return the objective's gradient."""

    def hessian(self, w: Tensor) -> Tensor:
        """Return the Hessian matrix."""
        second: Tensor = jacrev(self.gradient)(w)
        return second

    def gradient_norm(self, w: Tensor) -> float:
        """Return the norm of the gradient."""
        return float(self.gradient(w).norm())

    def optimum(self, start: Tensor, accuracy: float = 1e-10) -> Tensor:
        """Return the minimum of a strongly convex objective, by Newton's method, up to a gradient norm."""
        w = start.clone()
        for _ in range(100):
            slope = self.gradient(w)
            if slope.norm() <= accuracy:
                return w
            root, failed = torch.linalg.cholesky_ex(self.hessian(w))
            if failed:
                break
            step, size = torch.cholesky_solve(slope[:, None], root)[:, 0], 1.0
            while size > 1e-6 and self.gradient(w - size * step).norm() >= slope.norm():
                size /= 2
            w = w - size * step
        length = float(slope.norm())
        raise ConfigError(
            f"{type(self).__name__}.optimum: the gradient stays at {length:.2g}: is it strongly convex, and in float64?"
        )

    def output(self, w: Tensor, smoothness: float, radius: float | None = None) -> Tensor:
        """Return the algorithms' output: one more gradient step of size 1 / L, projected to the ball if given."""
        return project(w - self.gradient(w) / smoothness, radius)


def project(w: Tensor, radius: float | None) -> Tensor:
    """Return the nearest weights within a ball around zero."""
    return w if radius is None else w * torch.clamp(radius / w.norm().clamp(min=1e-300), max=1.0)


Loss = Callable[[Tensor], Tensor]
"""Map the vector of model entries to one number, differentiably."""

MOST = 16
"""Maximum number of entries for an enumeration of all masks: 65,536 masks."""


@dataclass(frozen=True, eq=False)
class Masks:
    """The possible masks of each client, with their probabilities.

    Args:
        held: 0/1, [clients, masks, entries]
        chances: probability of each mask, [clients, masks]; the sum over a client's masks is 1
    """

    held: Tensor
    chances: Tensor

    def __post_init__(self) -> None:
        held, chances = self.held, self.chances
        require(
            (
                held.dim() == 3 and held.shape[:2] == chances.shape,
                f"Masks.held must be [clients, masks, entries] and Masks.chances [clients, masks], "
                f"got {list(held.shape)} and {list(chances.shape)}",
            ),
            (bool(((held == 0) | (held == 1)).all()), "Masks.held must hold only zeros and ones"),
            (
                bool((chances >= 0).all()) and torch.allclose(chances.sum(-1), chances.new_ones(())),
                "Masks.chances of a client must not be negative and must sum to 1",
            ),
        )

    @classmethod
    def full(cls, clients: int, entries: int) -> "Masks":
        """Return one full mask per client: the objective is then F."""
        return cls._even(torch.ones(clients, 1, entries, dtype=torch.float64))

    @classmethod
    def bernoulli(cls, shares: Sequence[float], entries: int) -> "Masks":
        """Return all masks, where client i holds each entry with probability ``shares[i]``."""
        _check_shares(shares)
        require((entries <= MOST, f"Masks.bernoulli: {entries} entries have too many masks: draw some, Masks.drawn"))
        every = (torch.arange(2**entries)[:, None] >> torch.arange(entries)) & 1
        held, ones = every.double(), every.sum(-1)
        exact = torch.tensor(shares, dtype=torch.float64)
        chances = torch.stack([share**ones * (1 - share) ** (entries - ones) for share in exact])
        return cls(held.expand(len(shares), -1, -1), chances)

    @classmethod
    def drawn(cls, shares: Sequence[float], entries: int, draws: int, key: Key) -> "Masks":
        """Draw ``draws`` random masks per client, with equal probabilities."""
        _check_shares(shares)
        require((draws >= 1, f"Masks.drawn: draws must be at least 1, got {draws}"))
        noise = (uniform(fold(key, "masks", i), draws * entries, dtype=torch.float64) for i in range(len(shares)))
        held = [(draw < share).view(draws, entries) for draw, share in zip(noise, shares, strict=True)]
        return cls._even(torch.stack(held).double())

    @classmethod
    def windows(cls, sizes: Sequence[int], entries: int, offsets: int) -> "Masks":
        """Return ``offsets`` windows of ``sizes[i]`` neighbouring entries, with evenly spaced starts."""
        require(
            (offsets >= 1, f"Masks.windows: offsets must be at least 1, got {offsets}"),
            *((1 <= s <= entries, f"Masks.windows: sizes must be from 1 to {entries}, got {s}") for s in sizes),
        )
        starts = torch.arange(offsets) * entries // offsets
        ahead = (torch.arange(entries) - starts[:, None]) % entries
        return cls._even(torch.stack([ahead < size for size in sizes]).double())

    @classmethod
    def of_view(cls, view: View, like: Params, clients: int, draws: int = 1, key: Key | None = None) -> "Masks":
        """Return the masks of a view for each client, over tensors in name order: all windows, or ``draws`` draws."""
        at, rounds = key or make_key(0), draws
        if isinstance(view, Windows):
            require((not view.drawn, "Masks.of_view: windows of drawn capacities are not the same in every epoch"))
            view, rounds = replace(view, shuffled=False).filled(at=at), view.offsets
        masked = view

        def mask(client: int, number: int) -> Tensor:
            part = masked.part(like, Clock(number, rounds, client), fold(at, "view", client, number))
            return Layout.of(like).flatten(part.coverage(like)).double()

        return cls._even(torch.stack([torch.stack([mask(c, r) for r in range(rounds)]) for c in range(clients)]))

    @classmethod
    def _even(cls, held: Tensor) -> "Masks":
        return cls(held, torch.full(held.shape[:2], 1 / held.shape[1], dtype=torch.float64))

    @property
    def coverage(self) -> Tensor:
        """Mean over clients of the probability that each entry is held: p, or s / d, if equal for all entries."""
        return (self.chances[..., None] * self.held).sum(1).mean(0)

    @property
    def dropped(self) -> float:
        """Mean over clients of E|m - 1|^2, the number of entries not held: d (1 - p), or d - s."""
        return float((1 - self.coverage).sum())

    @property
    def largest(self) -> int:
        """d_m, the number of entries of the largest mask (Theorem 6)."""
        return int(self._possible.sum(-1).max())

    @property
    def farthest(self) -> int:
        """D_max, the maximum number of entries in which two masks of any clients differ (Theorem 6)."""
        masks = self._possible
        sizes = masks.sum(-1)
        return int((sizes[:, None] + sizes - 2 * masks @ masks.T).max())

    @property
    def _possible(self) -> Tensor:
        found: Tensor = torch.unique(self.held[self.chances > 0], dim=0)
        return found


def _check_shares(shares: Sequence[float]) -> None:
    require(*((0 < share <= 1, f"Masks: a share must be in (0, 1], got {share}") for share in shares))


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
