"""Which dimensions of a network's tensors are tied, from watching it work on a few samples.

Every operation of a forward pass goes by with its tensors; a rule for each kind of operation says which dimensions
meet in it. The rules are in ``gossamer.tasks.widths.rules``.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.core.errors import ConfigError
from gossamer.tasks.widths.dims import Dim, MismatchError, fix, fresh
from gossamer.tasks.widths.opened import opened
from gossamer.tasks.widths.rules import Call, UnknownOperationError, rule


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the dimensions of tensors through operations.

    With ``streams`` what is added up is tied. Without, a sum takes the channels of the layer that comes new to it: each
    layer then draws its own channels, as published code for random sub-models does.
    """

    def __init__(self, tensors: Mapping[str, Tensor], layers: list[str], streams: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers, self.streams = layers, streams
        self.known: dict[int, tuple[Tensor, list[Dim]]] = {}
        for tensor in tensors.values():
            self.dims(tensor)

    def dims(self, tensor: Tensor) -> list[Dim]:
        """The dimensions of a tensor; of one that was never seen, new ones."""
        if id(tensor) not in self.known:
            self.put(tensor, [fresh(size) for size in tensor.shape])
        return self.known[id(tensor)][1]

    def put(self, tensor: Tensor, dims: list[Dim]) -> None:
        """Note the dimensions of a tensor, which is kept: another must not get its number."""
        self.known[id(tensor)] = tensor, dims

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        out = func(*args, **(kwargs or {}))
        call = Call(self, func, args, kwargs or {}, out)
        try:
            rule(func)(call)
        except (MismatchError, UnknownOperationError) as error:
            raise ConfigError(f"{self.where()}: {error} (in {func})") from None
        return out

    def where(self) -> str:
        """The layer that is at work."""
        return self.layers[-1] if self.layers else "the network itself"


@contextmanager
def watched(module: nn.Module) -> Iterator[list[str]]:
    """The layers at work, the innermost last, while a module runs."""
    at_work: list[str] = []

    def enter(name: str) -> Any:
        return lambda module, inputs: at_work.append(f"layer {name} ({type(module).__name__})")

    def leave(*_: Any) -> None:
        at_work.pop()

    with ExitStack() as stack:
        for name, part in module.named_modules():
            if name:
                stack.callback(part.register_forward_pre_hook(enter(name)).remove)
                stack.callback(part.register_forward_hook(leave).remove)
        yield at_work


def follow(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, streams: bool) -> tuple[Trace, list[Dim]]:
    """Run a module on samples; the trace, and the dimensions of its output.

    Fixed are these, those of ``x``, and those of tensors of the module that are not among ``tensors``: frozen ones.
    """
    with torch.no_grad(), watched(module) as layers:
        trace = Trace(tensors, layers, streams)
        held = {id(tensor) for tensor in tensors.values()}
        whole = [tensor for tensor in (*module.parameters(), *module.buffers()) if id(tensor) not in held]
        for tensor in (x, *whole):
            for dim in trace.dims(tensor):
                fix(dim)
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]  # running statistics, which a pass changes
        with opened(module), trace:
            output = module(x)
        for buffer, value in before:
            buffer.copy_(value)
    if not isinstance(output, Tensor):
        raise ConfigError(f"a network must give one tensor, got a {type(output).__name__}")
    dims = trace.dims(output)
    for dim in dims:
        fix(dim)
    return trace, dims
