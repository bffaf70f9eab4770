"""A network as a program of ``torch.export``, which runs with torch alone.

A program accepts any batch size if the network does. It is traced with zeros on the CPU, so it contains no training
sample. ``thinned`` returns the same program with bitmap and values in place of a tensor, wherever this is smaller; the
program fills in the zeros at every call, with the operators of torch.
"""

import io
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from gossamer.core.sparse import pays, split
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest

ABOUT = "gossamer"
"""Metadata entry with the origin of a model, as JSON."""

ONE = "1 only"

OVERHEAD = 16_000
"""Bytes that the operators for one tensor take in the file."""


class Traced(NamedTuple):
    """A program, the inputs of its trace, the batch sizes it accepts, and the problem if there is no program."""

    program: ExportedProgram | None
    x: Nest
    batch: str
    problem: str | None = None


def trace(module: nn.Module, x: Nest) -> Traced:
    """Export a network for any batch size, or else for batches of one; if both fail, return the reason."""
    problem = ""
    for example, batch in ((x, _sizes(module, x)), (nests.take(x, slice(1)), ONE)):
        try:
            return Traced(_exported(module, example, batch), example, batch)
        except Exception as error:  # torch.export raises many types of errors
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Traced(None, x, "any", problem)


def _exported(module: nn.Module, x: Nest, batch: str) -> ExportedProgram:
    args, kwargs = nests.arguments(x)
    program = torch.export.export(module, args, kwargs, dynamic_shapes=_dynamic(x, batch), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of source code on this machine
    return program


def _dynamic(example: Nest, batch: str) -> Any:
    """Return which dimensions of the inputs may vary: the first of each tensor, unless the batch size is fixed."""
    dims = {} if batch == ONE else {0: torch.export.Dim("batch")}

    def each(nest: Nest) -> Any:
        if isinstance(nest, Tensor):
            return dims
        if isinstance(nest, tuple):
            return tuple(map(each, nest))
        return {name: each(inner) for name, inner in nest.items()}

    return (dims,) if isinstance(example, Tensor) else each(example)


def _sizes(module: nn.Module, x: Nest) -> str:
    """Return the accepted batch sizes: norms with batch statistics may refuse a batch of one."""
    try:
        nests.forward(module, nests.take(x, slice(1)))
    except ValueError:
        return "2 or more"
    return "any"


def save(program: ExportedProgram) -> bytes:
    """Return the content of a ``.pt2`` file."""
    data = io.BytesIO()
    torch.export.save(program, data)
    return data.getvalue()


def load(data: bytes) -> nn.Module:
    """Load the network of a program, without a warning of torch 2.11 about its own buffer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(io.BytesIO(data)).module()


class Filled(nn.Module):
    """A tensor that is stored as bitmap and values."""

    bitmap: Tensor
    values: Tensor

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        values, bitmap = split(tensor)
        self.shape = tensor.shape
        self.register_buffer("bitmap", bitmap)
        self.register_buffer("values", values)

    def forward(self) -> Tensor:
        """Return the dense tensor."""
        size = self.shape.numel()
        shifts = torch.arange(8, dtype=torch.uint8)
        held = ((self.bitmap.unsqueeze(1) >> shifts) & 1).view(-1)[:size] != 0
        return torch.zeros(size, dtype=self.values.dtype).masked_scatter(held, self.values).view(self.shape)


def thinned(traced: Traced) -> ExportedProgram | None:
    """Return the program with bitmaps where they pay; none if there is no program, or no bitmap pays."""
    if traced.program is None:
        return None
    network = traced.program.module()
    assert isinstance(network, fx.GraphModule)
    if not _fill_in(network):
        return None
    return _exported(network, traced.x, traced.batch)


def _fill_in(network: fx.GraphModule) -> bool:
    """Replace tensors by bitmap and values, of the same name; return whether one was replaced."""
    named = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
    stored = {name: tensor for name, tensor in named if pays(tensor, OVERHEAD)}
    filled: dict[int, fx.Node] = {}
    for node in [node for node in network.graph.nodes if node.op == "get_attr" and node.target in stored]:
        at = stored[node.target].data_ptr()  # tied weights have one address, and are stored once
        if at not in filled:
            filled[at] = _insert(network, node, Filled(stored[node.target]))
        node.replace_all_uses_with(filled[at])
        network.graph.erase_node(node)
    for name in [name for name, tensor in stored.items() if tensor.data_ptr() in filled]:
        _remove(network, name)
    network.recompile()
    return bool(filled)


def _insert(network: fx.GraphModule, node: fx.Node, filled: Filled) -> fx.Node:
    """Add a module, and its call before a node."""
    name = f"{node.target}_sparse"
    network.add_submodule(name, filled)
    with network.graph.inserting_before(node):
        return network.graph.call_module(name)


def _remove(network: nn.Module, name: str) -> None:
    owner, _, attribute = name.rpartition(".")
    delattr(network.get_submodule(owner), attribute)
