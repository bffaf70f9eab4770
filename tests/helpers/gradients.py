"""A gradient that is given as a function, for steps of solvers without an engine."""

from collections.abc import Callable

from torch import Tensor

from gossamer.core.solver import Gradient, Gradients


class Given(Gradient):
    def __init__(self, function: Callable[[Tensor], Gradients]) -> None:
        self.function = function

    def __call__(self, params: Tensor) -> Gradients:
        return self.function(params)
