"""Where the modules of a network have its tensors, to replace them without ``torch.func.functional_call``."""

from typing import Any, NamedTuple

from torch import nn

from gossamer.core.types import Params


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
