"""Layers that follow the width of their tensors, where torch's own remember the width that they were made with.

A client that holds some channels puts narrower tensors into the network. Most layers take their sizes from these; layer
norms (RMS norms too), norms with a group for each channel and convolutions in groups do not.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


def stretch(module: nn.Module) -> nn.Module:
    """Have every layer of a module follow its tensors; whole, they compute what they did."""
    for part in module.modules():
        if type(part) is nn.LayerNorm and part.elementwise_affine:
            part.forward = _layer_norm(part)  # type: ignore[assignment, method-assign]
        elif type(part) is nn.RMSNorm and part.elementwise_affine:
            part.forward = _root_norm(part)  # type: ignore[assignment, method-assign]
        elif type(part) is nn.GroupNorm and part.num_groups == part.num_channels:
            part.forward = _channel_norm(part)  # type: ignore[assignment, method-assign]
        elif type(part) in CONVOLUTIONS and part.groups != 1 and part.padding_mode == "zeros":
            part.forward = _convolution(part, CONVOLUTIONS[type(part)])
    return module


def _layer_norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _root_norm(norm: nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _channel_norm(norm: nn.GroupNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.group_norm(x, x.shape[1], norm.weight, norm.bias, norm.eps)


def _convolution(conv: Any, apply: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        groups = x.shape[1] // conv.weight.shape[1]
        return apply(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, groups)

    return forward
