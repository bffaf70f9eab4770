"""What a pass of a network costs: its floating-point operations, and the bytes of the tensors that are alive.

**Modes of torch** see every operation. A ``TorchDispatchMode`` keeps torch's compiler out of itself, and imports it for
this purpose when it first runs. That takes 1 s and 100 MB in every process. The modes here do not. They are never
active while something is compiled.

**Operations.** torch's counter gives the operations of each layer. Those of a layer with masks are divided among the
entries of its weight matrices. A trained entry takes part in three products: in the output, in the gradient of the
layer's inputs, and in its own gradient. A frozen one takes part in the first two. This is exact for a layer with one
weight matrix, and for one whose inputs need a gradient. Biases and norms are negligible.

**Bytes**, storage by storage, on any device: ``Allocations`` notes the storages of the results of every operation. A
weak reference says when a storage is freed. Temporary memory inside of an operation is not seen. The count does not
depend on an allocator, so it is the same on every machine.
"""

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

from gossamer.core.types import Flops, Params


class LightMode(TorchDispatchMode):
    """A mode that does not import torch's compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _LightCounting(_FlopCounterMode):
    __torch_dispatch__ = inspect.unwrap(_FlopCounterMode.__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class FlopCounter(FlopCounterMode):
    """torch's counter of floating-point operations."""

    def __init__(self) -> None:
        super().__init__(display=False)

    def __enter__(self) -> Any:
        super().__enter__()  # type: ignore[no-untyped-call]
        assert self.mode is not None
        self.mode.__class__ = _LightCounting  # the same methods, but for the one that imports the compiler
        return self


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Disable cuDNN and oneDNN: not all machines have them, and they compute recurrent layers as single operations."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def stackable_attention(device: torch.device) -> Iterator[None]:
    """Run attention as single operations on a CPU, because ``torch.vmap`` has no rule for the fused one there.

    These operations stay in bf16 under autocast: their gradient fails where torch would compute them in float32.
    """
    if device.type != "cpu" or torch.compiler.is_compiling():
        yield
        return
    before = bool(torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed())
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


TRAINED, FROZEN = 3, 2
"""The number of products that an entry takes part in."""


class Counted(NamedTuple):
    """The operations of a pass.

    Args:
        total: all operations
        layers: those of each layer, without those of the layers inside it
    """

    total: int
    layers: dict[str, int]


def count(run: Callable[[], object]) -> Counted:
    """Count the operations of a pass; with plain kernels, as the counter does not see inside of all others."""
    with plain_kernels(), sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:
        run()
    layers = {name.partition(".")[2]: sum(each.values()) for name, each in counter.get_flop_counts().items()}
    own = Counter(layers)
    for name, operations in layers.items():
        if name:  # the operations of a layer are among those of the layers around it
            own[_nearest(name, layers)] -= operations
    return Counted(counter.get_total_flops(), {name: max(0, operations) for name, operations in own.items()})


def with_masks(counted: Counted, trained: Params, frozen: Params, keep: Params) -> Flops:
    """Return the operations of a pass with masks of some tensors; tensors without a mask are held whole."""
    every, masked = Counter[str](), Counter[str]()
    for weights, products in ((trained, TRAINED), (frozen, FROZEN)):
        for name, tensor in weights.items():
            if tensor.dim() > 1:
                every[_around(name)] += products * tensor.numel()
                masked[_around(name)] += products * (tensor.numel() - int(keep[name].sum())) if name in keep else 0
    saved = sum(
        counted.layers.get(layer, 0) * left_out / every[layer] for layer, left_out in masked.items() if left_out
    )
    return Flops(counted.total, counted.total - round(saved))


def _nearest(layer: str, layers: dict[str, int]) -> str:
    """Return the innermost of some layers around a layer; lists of layers, for example, have no operations."""
    outer = _around(layer)
    return outer if outer in layers or not outer else _nearest(outer, layers)


def _around(name: str) -> str:
    """Return the layer of a tensor, or the layer around a layer."""
    return name.rpartition(".")[0]


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
