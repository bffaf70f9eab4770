"""Smooth objectives: their minimum, and the last step of algorithms that minimize them."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.func import jacrev

from gossamer.core.errors import ConfigError


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
