"""The precision of local training: the arithmetic of the network's forward and backward pass.

    float32   products of matrices and convolutions in float32
    tf32      the same on a GPU, with factors rounded to 10 bits of mantissa (TensorFloat-32)
    bf16      the forward pass under ``torch.autocast`` to bfloat16, with normalization layers in float32; the backward
              pass has the types of the forward pass

In all three the weights, their gradients, the update, the loss and all messages are float32, and so is evaluation. Only
the network's own pass is computed in another precision: a straight-through estimator and a parametrization see float32.

torch has the settings of TF32 for the whole process, and cuDNN may use it by default. So ``products`` sets them for the
time of a computation, and restores what was set before.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gossamer.core.errors import Mistake, Setting, require
from gossamer.core.specs import unknown

FLOAT32, TF32, BF16 = PRECISIONS = ("float32", "tf32", "bf16")
"""Names of precisions, as on the command line."""

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Normalization layers, with their statistics in float32."""

ELSE = (Setting("", "device", "cuda"), Setting("", "precision", "bf16"))
"""What may be used where there is no TF32."""

AMPERE = (8, 0)
"""The first compute capability with TF32 and bfloat16."""


@dataclass(frozen=True)
class Precision:
    """The precision of training on a device.

    Args:
        name: one of ``PRECISIONS``
        device: the device of the network
    """

    name: str
    device: torch.device

    def __post_init__(self) -> None:
        require((self.name in PRECISIONS, unknown("precision", self.name, PRECISIONS)))
        on_gpu, asked = self.device.type == "cuda", Setting("", "precision", self.name)
        old = on_gpu and self.name != FLOAT32 and torch.cuda.get_device_capability() < AMPERE
        require(
            (on_gpu or self.name != TF32, Mistake("needs a GPU: use {} or {}", asked, *ELSE)),
            (not old, Mistake("needs a GPU of compute capability 8.0 or above (Ampere): use float32", asked)),
        )

    def prepare(self, network: nn.Module) -> None:
        """Let normalization layers compute in float32, as autocast does for some of them on some devices.

        Stacked clients need equal types of inputs and statistics there.
        """
        for layer in network.modules() if self.name == BF16 else ():
            if isinstance(layer, NORMS):
                layer.register_forward_pre_hook(_in_float32)

    def products(self) -> AbstractContextManager[None]:
        """Set the precision of products on a GPU, around steps; not inside a function that is compiled."""
        return products(self.name, self.device)

    def forward(self, network: Callable[[], Tensor]) -> Tensor:
        """Return the output of a network's forward pass in training; losses get it in float32.

        Casts of weights are not cached, because a cached one would be used again by other clients or CUDA graphs.
        """
        if self.name != BF16:
            return network()
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            output = network()
        return output.float()


def _in_float32(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.float() for each in inputs)


def check_type(precision: str, dtype: torch.dtype) -> None:
    """Refuse other precisions than the default for a model of float64, which is trained in float64."""
    text = f"needs a model of float32, and this one has {dtype}: use model.float(), or leave the precision out"
    well = precision == FLOAT32 or dtype == torch.float32
    require((well, Mistake(text, Setting("", "precision", precision))))


def on_cpu(precision: str) -> str:
    """Return the nearest precision that a CPU has, for a run that is inspected there."""
    return FLOAT32 if precision == TF32 else precision


def products(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Compute products on a GPU with or without TF32; restore torch's settings at the end."""
    return _tf32(precision == TF32) if device.type == "cuda" else nullcontext()


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow TF32 in matrix products, convolutions and recurrent layers of cuDNN, or forbid it in all of them.

    torch has two interfaces for this, and fails where one contradicts the other. The compiler reads both, so both are
    set, and both are restored.
    """
    wanted = "high" if allowed else "highest", allowed
    if _older_settings() == wanted and (_operators()[0].fp32_precision == TF32) == allowed:
        yield
        return
    newer = _newer_settings()
    for operator, value in zip(_operators(), ("ieee", TF32, TF32, "ieee"), strict=True):
        operator.fp32_precision = value  # now the older interface can be read, unless it forbids TF32 to cuDNN
    older = _older_settings() or (torch.get_float32_matmul_precision(), False)
    try:
        _set(wanted, [TF32 if allowed else "ieee"] * 3)
        yield
    finally:
        _set(older, newer)


def _set(older: tuple[str, bool], newer: Sequence[str]) -> None:
    """Set the older interface, which also changes the newer one, then the newer one."""
    with _no_advice():
        torch.set_float32_matmul_precision(older[0])
        torch.backends.cudnn.allow_tf32 = older[1]
    for operator, value in zip(_operators(), newer, strict=False):
        operator.fp32_precision = value


def _operators() -> tuple[Any, ...]:
    """Return the objects of torch that hold the precision of each kind of operation, those of a GPU first."""
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul


def _newer_settings() -> list[str]:
    """Return the precision that is set for each kind of operation; ``none`` inherits that of all operations."""
    backends: Any = torch.backends
    everywhere, backends.fp32_precision = backends.fp32_precision, "none"
    on_gpu, backends.cudnn.fp32_precision = backends.cudnn.fp32_precision, "none"
    found = [operator.fp32_precision for operator in _operators()]
    backends.cudnn.fp32_precision, backends.fp32_precision = on_gpu, everywhere
    return found


def _older_settings() -> tuple[str, bool] | None:
    """Return the settings of the older interface; none if they contradict those of the newer one."""
    with _no_advice():
        try:
            return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        except RuntimeError:
            return None


@contextmanager
def _no_advice() -> Iterator[None]:
    """Ignore the warning of torch up to 2.10 that there is a newer interface."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use the new API settings")
        yield
