"""Evaluate a network at moved tensors, one layer after the other.

A forward pass at ``w + mu z`` would need a second copy of the weights. Here each module gets its moved tensors when it
is called, and the original ones when it returns, so that only the tensors of one layer exist twice. A module may use
the tensors of another one that it does not call, such as embeddings of positions, or the projection of
``nn.MultiheadAttention``. These are moved before the pass. A module may also be called and be used elsewhere, as an
embedding that is tied to the output by ``F.linear``. So a trial compares the outputs with those at tensors that are all
moved before the pass, and if they differ, all are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.solver import Move
from gossamer.core.types import Params
from gossamer.tasks.network import Place

Owned = list[tuple[nn.Module, list[Place]]]
"""Modules, and the places of their own tensors."""


def moved(params: Params, move: Move | None, trained: Iterable[str]) -> Params:
    """Return the tensors, with the trained ones moved."""
    return params if move is None else {**params, **{name: move(name, params[name]) for name in trained}}


def owners(module: nn.Module, trained: list[str]) -> Owned:
    """Return the modules with trained tensors of their own, and the places of these."""
    names = {id(parameter): name for name, parameter in module.named_parameters() if name in trained}
    found = [
        (part, [Place(part._parameters, a, names[id(p)]) for a, p in part._parameters.items() if id(p) in names])
        for part in module.modules()
    ]
    return [(part, places) for part, places in found if places]


@contextmanager
def layer_by_layer(owned: Owned, params: Params, move: Move) -> Iterator[None]:
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


def called(owned: Owned, run: Callable[[], object]) -> Owned:
    """Return the modules that a pass calls, with their places. Tensors that other modules have too are left out."""
    seen = set[nn.Module]()
    with ExitStack() as hooks:
        for part, _ in owned:
            hooks.callback(part.register_forward_pre_hook(lambda part, _: seen.add(part)).remove)
        run()
    early = {place.name for part, places in owned if part not in seen for place in places}
    return [(part, [place for place in places if place.name not in early]) for part, places in owned if part in seen]


def agree(one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs are those of the same tensors."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def trial(name: str, tensor: Tensor) -> Tensor:
    """Move a tensor for a trial."""
    return tensor * 1.25 + 0.01
