"""Find tied dimensions of a network's tensors by tracing a forward pass.

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
from gossamer.tasks.modes import LightMode
from gossamer.tasks.widths.dims import Dim, MismatchError, fix, fresh
from gossamer.tasks.widths.opened import opened
from gossamer.tasks.widths.rules import Call, UnknownOperationError, rule


class Trace(LightMode):
    """Tracks the dimensions of tensors through operations.

    With ``streams`` added dimensions are tied. Without it, a sum takes the channels of the newest layer: each layer
    then draws its own channels, as in published code for random sub-models.
    """

    def __init__(self, tensors: Mapping[str, Tensor], layers: list[str], streams: bool) -> None:
        super().__init__()
        self.layers, self.streams = layers, streams
        self.known: dict[int, tuple[Tensor, list[Dim]]] = {}
        for tensor in tensors.values():
            self.dims(tensor)

    def dims(self, tensor: Tensor) -> list[Dim]:
        """Return the dimensions of a tensor; an unknown tensor gets new ones."""
        if id(tensor) not in self.known:
            self.put(tensor, [fresh(size) for size in tensor.shape])
        return self.known[id(tensor)][1]

    def put(self, tensor: Tensor, dims: list[Dim]) -> None:
        """Store the dimensions of a tensor, and keep the tensor so that its id is not reused."""
        self.known[id(tensor)] = tensor, dims

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and apply its rule."""
        out = func(*args, **(kwargs or {}))
        call = Call(self, func, args, kwargs or {}, out)
        try:
            rule(func)(call)
        except (MismatchError, UnknownOperationError) as error:
            raise ConfigError(f"{self.where()}: {error} (in {func})") from None
        return out

    def where(self) -> str:
        """Return the current layer."""
        return self.layers[-1] if self.layers else "the network itself"


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


def follow(module: nn.Module, tensors: Mapping[str, Tensor], x: Nest, streams: bool) -> tuple[Trace, list[Dim]]:
    """Run a module on samples; return the trace, and the dimensions of the output.

    The dimensions of the output, of ``x``, and of the module's tensors outside ``tensors`` (frozen ones) are fixed.
    """
    with torch.no_grad(), watched(module) as layers:
        trace = Trace(tensors, layers, streams)
        held = {id(tensor) for tensor in tensors.values()}
        whole = [tensor for tensor in (*module.parameters(), *module.buffers()) if id(tensor) not in held]
        for tensor in (*nests.leaves(x).values(), *whole):
            for dim in trace.dims(tensor):
                fix(dim)
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]  # the pass changes running statistics
        with opened(module), trace:
            output = nests.forward(module, x)
        for buffer, value in before:
            buffer.copy_(value)
    dims = trace.dims(output)
    for dim in dims:
        fix(dim)
    return trace, dims
