"""Record the operations of a function as a graph, by running it.

A mode of torch below autograd sees every operation, those of the backward pass too. The graph is that of the operations
that ran, so the function must not depend on values in Python. Hence it runs twice, on different values: both graphs and
all constants must be equal. Recording takes milliseconds, and does not import torch's compiler, which takes seconds and
100 MB. What the graph and the kinds of its inputs say is all that a compiled program depends on.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.random import draw_bits
from gossamer.core.types import State
from gossamer.tasks.operations import LightMode

Path = tuple[str, ...]
"""Names along the way to a tensor of a nest."""


@dataclass(frozen=True)
class Drawn:
    """Random bits that are drawn before a call, by ``draw_bits``.

    On a CPU this is faster than an operation in the program, and a shared library cannot call Python.
    """

    key: Path
    step: Path
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A tensor behind a vector, as its entries."""

    path: Path
    start: int
    size: int


Source = Path | Piece | Drawn | Tensor
"""Where an input of a graph is found: a path in the function's argument, a piece there, random bits, or a constant."""

REFUSED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Operations that give Python a value, or a shape that depends on values."""


class Recording(NamedTuple):
    """A graph from a list of tensors to one tensor; it may update its inputs in place.

    Args:
        graph: the operations, with one placeholder per input
        inputs: where each input is found
        examples: the inputs of the recorded call
    """

    graph: fx.GraphModule
    inputs: list[Source]
    examples: list[Tensor]

    def describe(self) -> str:
        """Return all operations, and the kinds of all inputs, as text; values are not part of it."""
        numbers = {node: str(number) for number, node in enumerate(self.graph.graph.nodes)}
        lines = [f"{node.target} {_text(node.args, numbers)} {_text(node.kwargs, numbers)}" for node in numbers]
        return "\n".join((*map(form, self.examples), *lines))


def record(function: Callable[[State], Tensor], nest: State) -> Recording:
    """Return the operations of a function on nested tensors, which stay unchanged."""
    generator = torch.get_rng_state()
    first, second = _recorded(function, nest), _recorded(function, _other(nest))
    if not torch.equal(generator, torch.get_rng_state()):
        raise ConfigError("a step draws from torch's generator: it cannot be compiled or captured")
    if first.describe() != second.describe() or not all(map(_same, first.inputs, second.inputs)):
        raise ConfigError("the operations of a step depend on values: it cannot be compiled or captured")
    return first


def _same(a: Source, b: Source) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or torch.equal(a, b)
    return type(a) is type(b) and a == b


def form(tensor: Tensor) -> str:
    """Return what a program depends on of an input."""
    return f"{tensor.dtype} {tensor.device.type} {tuple(tensor.shape)} {tensor.stride()}"


def _recorded(function: Callable[[State], Tensor], nest: State) -> Recording:
    """Run a function on other tensor objects with the same memory, which is restored."""
    leaves, before = tree.flatten(nest), tree.flatten(tree.clone(nest))
    versions = {path: leaf._version for path, leaf in leaves.items()}
    aliases = {path: leaf.detach() for path, leaf in leaves.items()}
    recorder = Recorder(aliases)
    with _compiling(True), recorder:
        result = function(_with_leaves(nest, aliases))
    for path, leaf in leaves.items():
        if leaf._version != versions[path]:
            leaf.copy_(before[path])
    return recorder.finish(result)


@contextmanager
def _compiling(on: bool) -> Iterator[None]:
    """Let ``torch.compiler.is_compiling`` return true, as in ``torch.export``: some libraries then read no values."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = on
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _other(nest: State) -> State:
    """Return tensors of the same kinds with other values: floating-point values grow, others change places."""
    return {
        name: _other(value)
        if isinstance(value, dict)
        else value * 1.0625
        if value.is_floating_point()
        else value.roll(1)
        for name, value in nest.items()
    }


def _with_leaves(nest: State, leaves: dict[str, Tensor]) -> State:
    """Return a nest with other tensors; unlike ``tree.unflatten`` it keeps empty branches."""
    empty = {name: _with_leaves(value, {}) for name, value in nest.items() if isinstance(value, dict)}
    return _merged(empty, tree.unflatten(leaves))


def _merged(a: State, b: State) -> State:
    return {**a, **{name: _merged(a[name], v) if isinstance(v, dict) else v for name, v in b.items()}}


class Recorder(LightMode):
    """Records operations while it is active."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        super().__init__()
        self.graph, self.nodes = fx.Graph(), dict[int, fx.Node]()
        self.seen: list[Tensor] = []  # kept alive: nodes are found by the identity of tensors
        self.sources: list[tuple[Source, Tensor, fx.Node]] = []
        self.paths = {id(tensor): tree.names(path) for path, tensor in named.items()}
        for tensor in named.values():
            self._input(self.paths[id(tensor)], tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if REFUSED & set(func.tags) and not _by_numbers(func, args):
            raise ConfigError(f"a step cannot be compiled or captured: it uses {func}")
        if func is torch.ops.gossamer.draw_bits.default and all(id(a) in self.paths and a.is_cpu for a in args[:2]):
            return self._drawn(*args)
        node = self.graph.call_function(func, *tree_map(self._node, (tuple(args), kwargs or {})))
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._note(result, node)
        elif isinstance(result, (tuple, list)):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._note(part, self.graph.call_function(operator.getitem, (node, number)))
        return result

    def _drawn(self, key: Tensor, step: Tensor, *numbers: int) -> Tensor:
        """Add random bits as an input."""
        with _compiling(False):
            values = draw_bits(key, step, *numbers)
        self._input(Drawn(self.paths[id(key)], self.paths[id(step)], numbers), values)
        return values

    def finish(self, result: Tensor) -> Recording:
        """Return the graph with this result; inputs that no operation uses are left out."""
        self.graph.output((self._node(result),))
        used = [(source, tensor) for source, tensor, node in self.sources if node.users]
        for _, _, node in self.sources:
            if not node.users:
                self.graph.erase_node(node)
        module = fx.GraphModule({}, self.graph)
        return Recording(module, [source for source, _ in used], [tensor for _, tensor in used])

    def _node(self, value: Any) -> Any:
        if isinstance(value, Tensor) and id(value) not in self.nodes:
            self._input(value, value)
        return self.nodes[id(value)] if isinstance(value, Tensor) else value

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["shape"] = tensor.shape
        self.nodes[id(tensor)] = node
        self.seen.append(tensor)

    def _input(self, source: Source, tensor: Tensor) -> None:
        """Add an input after those before it, and before all operations."""
        with self.graph.inserting_after(self.sources[-1][2] if self.sources else self.graph._root):
            node = self.graph.placeholder(f"input_{len(self.sources)}")
        self.sources.append((source, tensor, node))
        self._note(tensor, node)


def _by_numbers(func: Any, args: Any) -> bool:
    """Return whether an operation indexes by integers; by booleans, the shape of the result depends on values."""
    return func is torch.ops.aten.index.Tensor and all(i is None or i.dtype == torch.int64 for i in args[1])


def _text(value: Any, numbers: dict[fx.Node, str]) -> str:
    """Return arguments as text, with the numbers of operations for their results."""
    return repr(fx.node.map_arg(value, lambda node: _Number(numbers[node])))


class _Number(str):
    """The number of an operation; unlike a text argument it has no quotes."""

    def __repr__(self) -> str:
        return f"%{self}"
