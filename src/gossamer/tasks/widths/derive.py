"""Derive the width rule of a network from one forward pass: find the tied dimensions of its tensors.

The trace sees every operation with its tensors. A rule per type of operation determines which dimensions it ties. The
rules are in ``gossamer.tasks.widths.rules``.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.errors import ConfigError
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.operations import LightMode
from gossamer.tasks.widths.base import Axis, Factor, Widths
from gossamer.tasks.widths.dims import Dim, MismatchError, Tracked, Unit, fix, length, plain
from gossamer.tasks.widths.elastic import opened
from gossamer.tasks.widths.rules import Call, UnknownOperationError, rule


class Trace(LightMode):
    """Tracks the dimensions of tensors through operations."""

    def __init__(self, tracked: Tracked, layers: list[str]) -> None:
        super().__init__()
        self.tracked, self.layers = tracked, layers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and apply its rule."""
        out = func(*args, **(kwargs or {}))
        call = Call(self.tracked, func, args, kwargs or {}, out)
        try:
            rule(func)(call)
        except (MismatchError, UnknownOperationError) as error:
            where = self.layers[-1] if self.layers else "the network itself"
            raise ConfigError(f"{where}: {error} (in {func})") from None
        return out


@contextmanager
def watched(module: nn.Module) -> Iterator[list[str]]:
    """Return the stack of running layers, innermost last, for a module inside the block."""
    running: list[str] = []

    def enter(name: str) -> Any:
        return lambda module, inputs: running.append(f"layer {name} ({type(module).__name__})")

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as stack:
        for name, part in module.named_modules():
            if name:
                stack.callback(part.register_forward_pre_hook(enter(name)).remove)
                stack.callback(part.register_forward_hook(leave).remove)
        yield running


def follow(module: nn.Module, tensors: Mapping[str, Tensor], x: Nest, streams: bool) -> tuple[Tracked, list[Dim]]:
    """Run a module on samples; return the dimensions of all tensors, and those of the output.

    The dimensions of the output, of ``x``, and of the module's tensors outside ``tensors`` (frozen ones) are fixed.
    """
    with torch.no_grad(), watched(module) as layers:
        tracked = Tracked(streams)
        for tensor in tensors.values():
            tracked.dims(tensor)
        held = {id(tensor) for tensor in tensors.values()}
        whole = [tensor for tensor in (*module.parameters(), *module.buffers()) if id(tensor) not in held]
        for tensor in (*nests.leaves(x).values(), *whole):
            for dim in tracked.dims(tensor):
                fix(dim)
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]  # the pass changes running statistics
        with opened(module), Trace(tracked, layers):
            output = nests.forward(module, x)
        for buffer, value in before:
            buffer.copy_(value)
    dims = tracked.dims(output)
    for dim in dims:
        fix(dim)
    return tracked, dims


def derive(module: nn.Module, tensors: Mapping[str, Tensor], x: Nest, streams: bool = True) -> Widths:
    """Derive the rule for the tensors of a module from one forward pass on samples ``x``.

    ``streams`` ties dimensions that are added, so that a residual stream has the same channels everywhere. Without it,
    every layer has its own channels, and sums add up unrelated channels.
    """
    x = nests.concatenate([x, x]) if nests.count(x) == 1 else x  # a batch norm needs two samples for a variance
    try:
        tracked, output = follow(module, tensors, x, streams)
    except ConfigError as error:
        raise ConfigError(
            *(f"the width rule cannot be derived: {mistake}; state it by hand" for mistake in error.mistakes)
        ) from None
    names = _Names()
    known = {name: tracked.dims(tensor) for name, tensor in tensors.items()}
    axes = {
        name: tuple(names.axis(name, number, dim) for number, dim in enumerate(dims)) for name, dims in known.items()
    }
    last = plain(output[-1]) if output else []
    labels = [(name, number) for name, dims in known.items() for number, dim in enumerate(dims) if plain(dim) == last]
    return Widths(tuple(names.sizes.items()), tuple(axes.items()), tuple(labels))


class _Names:
    """Names each group after its first layer."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.sizes: dict[str, int] = {}

    def axis(self, tensor: str, number: int, dim: Dim) -> Axis:
        if length(dim) == 1:
            return Axis((Factor(1),))
        found: list[Factor] = []
        for factor in (self.factor(tensor, unit) for unit in plain(dim)):
            if found and not factor.groups and not found[-1].groups:  # neighbours without groups are one factor
                found[-1] = Factor(found[-1].size * factor.size)
            else:
                found.append(factor)
        return Axis(tuple(found))

    def factor(self, tensor: str, unit: Unit) -> Factor:
        if unit.sum:
            parts = tuple(self.axis(tensor, 0, part) for part in unit.sum)
            return Factor(unit.size, None, parts if any(part.groups for part in parts) else ())
        return Factor(unit.size, None if unit.fixed else self.name(tensor, unit))

    def name(self, tensor: str, unit: Unit) -> str:
        if id(unit) not in self.names:
            layer = tensor.rpartition(".")[0] or tensor
            taken = sum(1 for name in self.sizes if name == layer or name.startswith(f"{layer}#"))
            self.names[id(unit)] = f"{layer}#{taken + 1}" if taken else layer
            self.sizes[self.names[id(unit)]] = unit.size
        return self.names[id(unit)]
