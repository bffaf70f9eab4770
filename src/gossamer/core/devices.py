"""Values and tensors on a device, without making the host wait.

A copy from ordinary memory to a GPU makes the host wait for all earlier work of the stream. Beside graphs of training,
this takes milliseconds. A copy from pinned memory is only enqueued, and a number travels with the call of its kernel.
"""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def number(value: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number, or a tensor with one, as a tensor without dimensions on a device."""
    if isinstance(value, Tensor):
        return value.to(device, dtype)
    return torch.full((), value, dtype=dtype, device=device)
