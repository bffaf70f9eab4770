"""Steps of solvers without an engine: gradients that are given as functions."""

from collections.abc import Callable

from torch import Tensor

from gossamer.core.solver import Gradient, Gradients
from gossamer.core.types import Layout, Params


class Given(Gradient):
    """A gradient as a function of the vector of parameters."""

    def __init__(self, function: Callable[[Tensor], Gradients]) -> None:
        self.function = function

    def __call__(self, params: Tensor) -> Gradients:
        return self.function(params)


class Named(Gradient):
    """A gradient as a function of tensors by name, of which all are trained."""

    def __init__(self, layout: Layout, function: Callable[[Params], Params]) -> None:
        self.layout, self.function = layout, function

    def __call__(self, params: Tensor) -> Gradients:
        return self.layout.flatten(self.function(self.layout.unflatten(params))), params
