"""A compiled function without the guard checks of every call.

``torch.compile`` checks before each call that the arguments fit the compiled graph. For a small network these checks
take half as long as the step. Here arguments of one kind always have the same shapes, so one check per kind is enough.
Later calls pick the tensors that the graph needs from the arguments, and call the graph directly.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.types import State
from gossamer.tasks.random_layers.rules import RULES

PROGRAMS = 64
"""Maximum number of client kinds that a step is compiled for."""

Path = tuple[str, ...]
Graph = Callable[..., Sequence[Any]]


class Program:
    """A compiled function from nested tensors to one tensor; it may update the nested tensors in place."""

    def __init__(self, function: Callable[[State], Tensor]) -> None:
        self._compiled: Callable[[State], Tensor] = torch.compile(
            function, fullgraph=True, dynamic=False, backend=self._backend
        )
        self._direct: dict[Any, tuple[Graph, list[Path | Tensor]]] = {}
        self._called: tuple[Graph, tuple[Any, ...], Sequence[Any]] | None = None

    def __call__(self, kind: Any, nest: State) -> Tensor:
        """Call the function; all arguments of one kind have the same names and shapes."""
        if kind not in self._direct:
            return self._first(kind, nest)
        graph, wanted = self._direct[kind]
        result: Tensor = graph(*[_picked(nest, w) if isinstance(w, tuple) else w for w in wanted])[0]
        return result

    def _backend(self, module: Any, inputs: Any) -> Graph:
        """Compile with inductor, and record the arguments of each graph call."""
        with nullcontext() if any(_on_gpu(value) for value in inputs) else alone():
            graph: Graph = torch._dynamo.lookup_backend("inductor")(module, inputs)

        def recording(*args: Any) -> Sequence[Any]:
            outputs = graph(*args)
            self._called = graph, args, outputs
            return outputs

        return recording

    def _first(self, kind: Any, nest: State) -> Tensor:
        """Call the function with guard checks, and find the origin of each tensor that the graph uses.

        If the origin is ambiguous (one tensor has two names, say), later calls use the guard checks too.
        """
        self._called = None
        result = self._compiled(nest)
        leaves = tree.flatten(nest)
        paths = {id(tensor): tree.names(path) for path, tensor in leaves.items()}
        if self._called is not None and len(paths) == len(leaves):
            graph, args, outputs = self._called
            if len(outputs) == 1 and outputs[0] is result and all(isinstance(arg, Tensor) for arg in args):
                self._direct[kind] = graph, [paths.get(id(arg), arg) for arg in args]
        self._called = None
        return result


def reset_compiler() -> None:
    """Discard the programs of earlier runs in this process, and raise the limit to one program per client width.

    Recurrent layers are allowed: ``gossamer.tasks.random_layers`` runs them as loops. Its operations are added to those
    that the compiler passes to a mode; some, such as ``torch.rand_like``, would draw from torch's generator instead.
    """
    import torch._dynamo.config as dynamo
    from torch._dynamo.variables.torch import get_overridable_functions

    get_overridable_functions().update(RULES)
    torch.compiler.reset()
    dynamo.allow_rnn = True
    dynamo.recompile_limit = max(dynamo.recompile_limit, PROGRAMS)


def compile_on_gpu(module: Any, inputs: Any) -> Graph:
    """Compile with inductor, without its advice to enable TF32: the precision of a run is chosen by ``--precision``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores for float32 matrix multiplication available")
        graph: Graph = torch._dynamo.lookup_backend("inductor")(module, inputs)
    return graph


def alone() -> AbstractContextManager[Any]:
    """Compile without threads: a forked process does not inherit its parent's threads and would wait for them.

    Workers compile if a client holds other tensors of the model than the first one.
    """
    import torch._inductor.config as inductor  # imported here because it takes a second

    patch: AbstractContextManager[Any] = inductor.patch(compile_threads=1)
    return patch


def _on_gpu(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def _picked(nest: State, path: Path) -> Any:
    value: Any = nest
    for name in path:
        value = value[name]
    return value
