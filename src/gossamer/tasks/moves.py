"""Evaluate a network at moved tensors, one layer after the other.

A forward pass at ``w + mu z`` would need a second copy of the weights. Here each module gets its moved tensors when it
is called, and the original ones when it returns, so that only the tensors of one layer exist twice. A module may use
the tensors of another one that it does not call: an output layer that is tied by ``F.linear``, or the projection of
``nn.MultiheadAttention``. So a trial compares the outputs with those at tensors that are all moved before the pass.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.core.solver import Move
from gossamer.core.types import Params

Put = Callable[[Params], None]
"""Puts tensors in all their places in a network."""


class Place(NamedTuple):
    """Where a module has a tensor.

    Args:
        registry: the module's parameters
        attribute: the name in it
        name: the name of the tensor in the network
    """

    registry: dict[str, Any]
    attribute: str
    name: str


def moved(params: Params, move: Move | None, trained: list[str]) -> Params:
    """Return tensors of which the trained ones are moved."""
    return params if move is None else {**params, **{name: move(name, params[name]) for name in trained}}


def owners(module: nn.Module, trained: list[str]) -> list[tuple[nn.Module, list[Place]]]:
    """Return the modules with trained tensors of their own, and the places of these."""
    names = {id(parameter): name for name, parameter in module.named_parameters() if name in trained}
    found = [
        (part, [Place(part._parameters, a, names[id(p)]) for a, p in part._parameters.items() if id(p) in names])
        for part in module.modules()
    ]
    return [(part, places) for part, places in found if places]


@contextmanager
def layer_by_layer(owned: list[tuple[nn.Module, list[Place]]], params: Params, move: Move) -> Iterator[None]:
    """Give each module its moved tensors while it runs; the network holds ``params``."""

    def begin(part: nn.Module, inputs: Any) -> None:
        for place in places[part]:
            place.registry[place.attribute] = move(place.name, params[place.name])

    def end(part: nn.Module, inputs: Any, output: Any) -> None:
        for place in places[part]:
            place.registry[place.attribute] = params[place.name]

    places = dict(owned)
    with ExitStack() as hooks:
        for part in places:
            hooks.callback(part.register_forward_pre_hook(begin).remove)
            hooks.callback(part.register_forward_hook(end, always_call=True).remove)
        yield


def agree(run: Callable[[Move, bool], Tensor]) -> bool:
    """Return whether a network gives the same outputs with tensors that are moved layer by layer, and all at once.

    ``run`` returns the outputs for a move, layer by layer or not.
    """

    def trial(name: str, tensor: Tensor) -> Tensor:
        return tensor * 1.25 + 0.01

    one, other = run(trial, True), run(trial, False)
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
