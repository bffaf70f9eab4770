"""A compiled function that is called without asking each time whether it still fits.

``torch.compile`` checks before every call that its arguments are such as it was compiled for. For a step of a small
network that takes as long as half of the step. Here arguments of one kind always have the same shapes, so this is asked
once a kind; from then on the compiled graph is called directly, with the tensors it wants picked from the arguments.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.types import State

PROGRAMS = 64
"""A step is compiled for so many kinds of clients at most."""

Path = tuple[str, ...]
Graph = Callable[..., Sequence[Any]]


class Program:
    """A function from a nest of tensors to one tensor, compiled; it may change the nest's tensors in place."""

    def __init__(self, function: Callable[[State], Tensor]) -> None:
        self._compiled: Callable[[State], Tensor] = torch.compile(
            function, fullgraph=True, dynamic=False, backend=self._backend
        )
        self._direct: dict[Any, tuple[Graph, list[Path | Tensor]]] = {}
        self._called: tuple[Graph, tuple[Any, ...], Sequence[Any]] | None = None

    def __call__(self, kind: Any, nest: State) -> Tensor:
        """Call it; nests of one kind have the same names and shapes."""
        if kind not in self._direct:
            return self._first(kind, nest)
        graph, wanted = self._direct[kind]
        result: Tensor = graph(*[_picked(nest, w) if isinstance(w, tuple) else w for w in wanted])[0]
        return result

    def _backend(self, module: Any, inputs: Any) -> Graph:
        """Torch's own compiler, and a note of what the graph that it makes is called with."""
        with nullcontext() if any(_on_gpu(value) for value in inputs) else alone():
            graph: Graph = torch._dynamo.lookup_backend("inductor")(module, inputs)

        def noting(*args: Any) -> Sequence[Any]:
            outputs = graph(*args)
            self._called = graph, args, outputs
            return outputs

        return noting

    def _first(self, kind: Any, nest: State) -> Tensor:
        """Call it the long way, and find out which tensors the graph took from where.

        If that is not clear (a tensor stands in two places, say), it is called the long way next time too.
        """
        self._called = None
        result = self._compiled(nest)
        leaves = tree.flatten(nest)
        places = {id(tensor): tuple(path.split("/")) for path, tensor in leaves.items()}
        if self._called is not None and len(places) == len(leaves):
            graph, args, outputs = self._called
            if len(outputs) == 1 and outputs[0] is result and all(isinstance(arg, Tensor) for arg in args):
                self._direct[kind] = graph, [places.get(id(arg), arg) for arg in args]
        self._called = None
        return result


def begin_anew() -> None:
    """Forget the programs of earlier runs in this process, and have room for one a width that clients have."""
    import torch._dynamo.config as dynamo

    torch.compiler.reset()
    dynamo.recompile_limit = max(dynamo.recompile_limit, PROGRAMS)


def alone() -> AbstractContextManager[Any]:
    """The compiler without threads: a forked process, which has only the ghosts of its parent's, would wait for them.

    Workers compile when clients hold other parts of the model than the one they were made with.
    """
    import torch._inductor.config as inductor  # takes a second, and is needed only here

    patch: AbstractContextManager[Any] = inductor.patch(compile_threads=1)
    return patch


def _on_gpu(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def _picked(nest: State, path: Path) -> Any:
    value: Any = nest
    for name in path:
        value = value[name]
    return value
