"""Modes of torch: those that see every operation, without the import of torch's compiler, and those of kernels.

A ``TorchDispatchMode`` keeps torch's compiler out of itself, and imports it for this purpose when it first runs. That
takes 1 s and 100 MB in every process. The modes here are never active while something is compiled.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode


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
