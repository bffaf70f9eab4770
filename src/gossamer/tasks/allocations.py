"""The bytes of all tensors that are alive during a computation on any device, storage by storage.

Every operation of torch passes a mode, which notes the storages of its results. A weak reference says when a storage is
freed. Temporary memory inside of an operation is not seen. The count does not depend on an allocator, so it is the same
on every machine.
"""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from gossamer.tasks.modes import LightMode


class Allocations(LightMode):
    """Counts the bytes of tensors that are alive: those known at the start, and those that operations make.

    Args:
        known: tensors that exist before
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.current = self.peak = 0
        self._alive: dict[int, Any] = {}
        for tensor in known:
            self._note(tensor)

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()

        def gone(_: object) -> None:
            self.current -= size
            del self._alive[address]

        if address not in self._alive:
            self._alive[address] = weakref.ref(storage, gone)
            self.current += size
            self.peak = max(self.peak, self.current)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and note the tensors that it returns."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return made
