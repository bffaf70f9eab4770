"""A function that is recorded once for each kind of arguments, compiled, and then called without checks.

``torch.compile`` traces Python code, and checks before each call that the arguments fit the compiled graph. For a small
network these checks take half as long as the step. Here arguments of one kind always have the same shapes, so one
recording per kind is enough. A call picks the tensors that the graph needs from the arguments.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import Tensor

from gossamer.core import tree
from gossamer.core.random import draws
from gossamer.core.types import State
from gossamer.engines.executors.building import Graph, compile_graph, key
from gossamer.engines.executors.kept import KeptPrograms
from gossamer.engines.executors.recording import Drawn, Source, record


class Program:
    """A compiled function from nested tensors to one tensor; it may update the nested tensors in place."""

    def __init__(self, function: Callable[[State], Tensor]) -> None:
        self.function = function
        self._compiled: dict[Any, tuple[Graph, list[Source]]] = {}

    @cached_property
    def kept(self) -> KeptPrograms:
        """The programs of earlier runs."""
        return KeptPrograms.of_user()

    def is_kept(self, nest: State) -> bool:
        """Return whether arguments like these need no compiler."""
        return key(record(self.function, nest)) in self.kept

    def __call__(self, kind: Any, nest: State) -> Tensor:
        """Call the function; all arguments of one kind have the same names, shapes and strides."""
        if kind not in self._compiled:
            recording = record(self.function, nest)
            self._compiled[kind] = compile_graph(recording, self.kept), recording.inputs
        graph, wanted = self._compiled[kind]
        return graph([_picked(nest, source) for source in wanted])[0]


def _picked(nest: State, source: Source) -> Tensor:
    """Return an input of a graph."""
    if isinstance(source, tuple):
        value: Any = nest
        for name in source:
            value = value[name]
        return value  # type: ignore[no-any-return]
    if isinstance(source, Drawn):
        return draws(_picked(nest, source.key), _picked(nest, source.step), *source.numbers)
    return source


def kind(*nests: State) -> tuple[Any, ...]:
    """Return names, shapes, strides and types of all tensors: arguments of one kind fit the same program."""
    leaves = [(name, leaf) for nest in nests for name, leaf in tree.flatten(nest).items()]
    return tuple((name, leaf.shape, leaf.stride(), leaf.dtype) for name, leaf in leaves)
