"""A function that is recorded once for each kind of arguments, compiled, and then called without checks.

``torch.compile`` traces Python code, and checks before each call that the arguments fit the compiled graph. For a small
network these checks take half as long as the step. Here arguments of one kind always have the same shapes, so one
recording per kind is enough. A call picks the tensors that the graph needs from the arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from gossamer.core import tree
from gossamer.core.random import draw_bits
from gossamer.core.types import State
from gossamer.engines.executors.building import Graph, compile_graph, key
from gossamer.engines.executors.kept import KeptPrograms
from gossamer.engines.executors.pieces import take_apart
from gossamer.engines.executors.products import add_products, separate
from gossamer.engines.executors.recording import Drawn, Piece, Recording, Source, record


class Program:
    """A compiled function from nested tensors to one tensor; it may update the nested tensors in place."""

    def __init__(self, function: Callable[[State], Tensor]) -> None:
        self.function = function
        self._compiled: dict[Any, Compiled] = {}

    @cached_property
    def kept(self) -> KeptPrograms:
        """The programs of earlier runs."""
        return KeptPrograms.of_user()

    def is_kept(self, kind: Any, nest: State) -> bool:
        """Return whether arguments of this kind, like these, need no compiler; a kept program is loaded."""
        recording = take_apart(record(self.function, nest))
        weights = separate(recording)
        if key(recording) not in self.kept:
            return False
        self._load(kind, recording, weights)
        return True

    def on(self, nest: State) -> "Calls":
        """Return the function with all arguments but those named ``feed``, for several calls."""
        return Calls(self, nest)

    def compiled(self, kind: Any, nest: State) -> "Compiled":
        """Return the compiled function for arguments of this kind, like these."""
        if kind not in self._compiled:
            recording = take_apart(record(self.function, nest))
            self._load(kind, recording, separate(recording))
        return self._compiled[kind]

    def _load(self, kind: Any, recording: Recording, weights: list[int]) -> None:
        self._compiled[kind] = Compiled(compile_graph(recording, self.kept), recording.inputs, weights)


class Calls:
    """Calls of a program with the same arguments, except those named ``feed``; it may update them in place."""

    def __init__(self, program: Program, nest: State) -> None:
        self.program, self.nest = program, nest
        self._kind: Any = None
        self._compiled: Compiled | None = None
        self._inputs: list[Tensor] = []

    def __call__(self, kind: Any, feed: State) -> Tensor:
        """Call the function; all arguments of one kind have the same names, shapes and strides."""
        nest, compiled, inputs = {**self.nest, "feed": feed}, self._compiled, self._inputs
        if compiled is None or kind is not self._kind:  # to compare kinds takes longer
            self._kind, self._compiled = kind, self.program.compiled(kind, nest)
            compiled = self._compiled
            inputs = self._inputs = [_picked(nest, source) for source in compiled.sources]
        else:
            for number, source in compiled.changing:
                inputs[number] = _picked(nest, source)
        return add_products(inputs, compiled.weights, compiled.graph(inputs))


@dataclass(frozen=True)
class Compiled:
    """A compiled function.

    Args:
        graph: the program
        sources: where its inputs are found
        weights: the numbers of the inputs to which products are added after a call
    """

    graph: Graph
    sources: list[Source]
    weights: list[int]

    @cached_property
    def changing(self) -> list[tuple[int, Source]]:
        """The inputs that differ between the calls of a client."""
        return [(number, source) for number, source in enumerate(self.sources) if _changes(source)]


def _changes(source: Source) -> bool:
    return isinstance(source, Drawn) or (isinstance(source, tuple) and source[0] == "feed")


def _picked(nest: State, source: Source) -> Tensor:
    """Return an input of a graph."""
    if isinstance(source, Piece):
        return _picked(nest, source.path).narrow(0, source.start, source.size)
    if isinstance(source, tuple):
        value: Any = nest
        for name in source:
            value = value[name]
        return value  # type: ignore[no-any-return]
    if isinstance(source, Drawn):
        return draw_bits(_picked(nest, source.key), _picked(nest, source.step), *source.numbers)
    return source


def kind(*nests: State) -> tuple[Any, ...]:
    """Return names, shapes, strides and types of all tensors: arguments of one kind fit the same program."""
    leaves = [(name, leaf) for nest in nests for name, leaf in tree.flatten(nest).items()]
    return tuple((name, leaf.shape, leaf.stride(), leaf.dtype) for name, leaf in leaves)
