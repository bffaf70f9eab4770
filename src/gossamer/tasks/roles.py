"""The roles of a network's tensors: which are trained, exchanged, counted or constant.

The exchanged tensors are all trainable parameters and all persistent floating-point buffers (BatchNorm's running
statistics). Server and clients exchange and average them. Frozen parameters, integer buffers and buffers that are not
persistent are not exchanged: all machines build the model from the same seed, so they are equal.

A layer may declare buffers that training does not change, such as a base weight that only a server changes, as
``constant_buffers = ("weight",)`` of its class. A step copies all other buffers, because a forward pass may overwrite
them.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gossamer.core.errors import ConfigError
from gossamer.core.types import Params

TYPES = (torch.float32, torch.float64)
"""Data types that exchanged tensors may have: others are too inexact for sums and codecs."""


class Roles(NamedTuple):
    """The names of a network's tensors by their roles.

    Args:
        trained: trainable parameters
        averaged: persistent floating-point buffers
        counters: integer buffers, which a client counts within a round
        constant: those of ``averaged`` that layers declare as constant
        changing: the other ones of ``averaged`` and ``counters``
    """

    trained: list[str]
    averaged: list[str]
    counters: list[str]
    constant: list[str]
    changing: list[str]


def named_tensors(module: nn.Module) -> Params:
    """Return all parameters and buffers of a network by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def roles(module: nn.Module) -> Roles:
    """Return the roles of a network's tensors; refuse a network that cannot be trained."""
    buffers, declared = dict(module.named_buffers()), _declared_constant(module)
    stored = module.state_dict().keys()  # without buffers that are not persistent
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    averaged = [name for name, buffer in buffers.items() if buffer.is_floating_point() and name in stored]
    counters = [name for name, buffer in buffers.items() if not buffer.is_floating_point()]
    if not trained:
        raise ConfigError("the model has no trainable parameters: nothing to learn")
    tensors = named_tensors(module)
    _check_types({name: tensors[name] for name in (*trained, *averaged)})
    constant = [name for name in averaged if name in declared]
    return Roles(trained, averaged, counters, constant, [n for n in (*averaged, *counters) if n not in declared])


def untrained(module: nn.Module) -> Params:
    """Return frozen parameters, by all their names, and constant buffers; without values."""
    everywhere, declared = module.named_parameters(remove_duplicate=False), _declared_constant(module)
    constant = {name: hollow(buffer) for name, buffer in module.named_buffers() if name in declared}
    return {**{name: hollow(p) for name, p in everywhere if not p.requires_grad}, **constant}


def hollow(tensor: Tensor) -> Tensor:
    """Return zeros of a tensor's shape that take no memory."""
    return tensor.detach().new_zeros(()).expand(tensor.shape)


def _declared_constant(module: nn.Module) -> set[str]:
    """Return the names of the buffers that layers declare as constant."""
    layers = module.named_modules()
    return {f"{name}.{buffer}" if name else buffer for name, layer in layers for buffer in _constants(layer)}


def _constants(layer: nn.Module) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(type(layer), "constant_buffers", ())
    return found


def _check_types(exchanged: Params) -> None:
    """Refuse exchanged tensors of a type that is too inexact for sums and codecs."""
    for name, tensor in exchanged.items():
        if tensor.dtype not in TYPES:
            raise ConfigError(
                f"the model's tensor {name} has type {tensor.dtype}: models are trained in float32 or float64; build "
                "the network in one of these, with model.float() (for half-precision messages use Dense('float16'))"
            )
