"""The network of a task: what builds it, the roles of its tensors, and their places in its modules.

A task has a function without arguments that builds the network, or a network that is copied.

**Roles.** The exchanged tensors are all trainable parameters and all persistent floating-point buffers (BatchNorm's
running statistics). Server and clients exchange and average them. Frozen parameters, integer buffers and buffers that
are not persistent are not exchanged: all machines build the model from the same seed, so they are equal. A layer may
declare buffers that training does not change, such as a base weight that only a server changes, as
``constant_buffers = ("weight",)`` of its class. A step copies all other buffers, because a forward pass may overwrite
them.

**Places** serve to replace the tensors of modules without ``torch.func.functional_call``.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gossamer.core.adapter import Adapter
from gossamer.core.errors import ConfigError
from gossamer.core.types import Params

Factory = Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class Copies:
    """Returns a copy of the same network at every call, so that training never changes the user's network."""

    module: nn.Module

    def __call__(self) -> nn.Module:
        """Return a copy of the network."""
        return copy.deepcopy(self.module)


@dataclass(frozen=True, eq=False)
class Adapted:
    """Builds a network and adapts it; the adapter may change what ``model`` returns only in a copy."""

    model: Factory
    adapter: Adapter

    def __call__(self) -> nn.Module:
        """Return the adapted network."""
        return self.adapter.adapt(copy.deepcopy(build(self.model)))


def factory(model: Any) -> Factory:
    """Return the function that builds a task's network; refuse what cannot build one."""
    if isinstance(model, nn.Module):
        return Copies(copy.deepcopy(model))
    if not callable(model):
        kind = type(model).__name__
        found = repr(model) if isinstance(model, int | float | None) else f"a {kind}"
        if isinstance(model, str):
            found = f"{model!r}; Task.named takes networks by name"
        elif hasattr(model, "model_type"):  # a configuration of transformers
            found = (
                f"a {kind}: write lambda: AutoModelForSequenceClassification.from_config(config), or another AutoModel"
            )
        raise ConfigError(f"model must be an nn.Module or a function that builds one, such as its class, got {found}")
    built: Factory = model
    return built


def build(model: Factory) -> nn.Module:
    """Build the network; refuse a function that needs arguments, or that builds something else."""
    try:
        module = model()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # raised inside of the function, so it is the function's own
        name = getattr(model, "__name__", "Net")
        raise ConfigError(f"the model is built without arguments, but {error}: write lambda: {name}(...)") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"Task.model must build an nn.Module, got a {type(module).__name__}")
    # The weights of lazy layers have no size before the first batch.
    tensors = (*module.named_parameters(), *module.named_buffers())
    lazy = next((name for name, tensor in tensors if is_lazy(tensor)), None)
    if lazy is not None:
        raise ConfigError(
            f"the model's {lazy} has no size yet: write the sizes of its layers, such as nn.Linear(64, 10) for "
            "nn.LazyLinear(10), or run the model on one sample inside of the function that builds it"
        )
    return module


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
    for name in (*trained, *averaged):
        if tensors[name].dtype not in TYPES:
            raise ConfigError(
                f"the model's tensor {name} has type {tensors[name].dtype}: models are trained in float32 or float64; "
                "build the network in one of these, with model.float() (for half-precision messages use "
                "Dense('float16'))"
            )
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
    declared = ((name, getattr(type(layer), "constant_buffers", ())) for name, layer in module.named_modules())
    return {f"{name}.{buffer}" if name else buffer for name, buffers in declared for buffer in buffers}


class Place(NamedTuple):
    """Where a module has a tensor.

    Args:
        registry: the module's parameters, or its buffers
        attribute: the name in it
        name: the name of the tensor in the network
    """

    registry: dict[str, Any]
    attribute: str
    name: str


Places = dict[str, list[Place]]
"""The places of each tensor by its name; a tensor that modules share has several."""


def places(module: nn.Module) -> Places:
    """Return the places of all tensors of a network."""
    names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    found: Places = {name: [] for name in names.values()}
    registries = [registry for part in module.modules() for registry in (part._parameters, part._buffers)]
    for registry in registries:
        for attribute, tensor in registry.items():
            if tensor is not None:
                found[names[id(tensor)]].append(Place(registry, attribute, names[id(tensor)]))
    return found


def put(tensors: Params, into: Places) -> None:
    """Give the modules of a network these tensors."""
    for name, tensor in tensors.items():
        for place in into[name]:
            place.registry[place.attribute] = tensor
