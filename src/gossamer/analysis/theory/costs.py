"""Costs of training as FedSpa's paper counts them (https://arxiv.org/abs/2201.11380).

A forward pass of one sample costs two operations per held weight for each application of a layer, and one per output
with a bias. Norms, activations and pooling are free. Training costs three forward passes. On the links, a held value
costs four bytes, and masks are free.

These numbers are for comparison with the paper. The metrics of a run hold the real operations and bytes.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.errors import require

TRAINING = 3
"""Cost of training on a sample, in forward passes."""

VALUE = 4
"""Bytes per value on a link."""

COPIES = 2
"""Batch size of the counting pass: static batch norms may refuse a batch of one."""

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def paper_forward_flops(module: nn.Module, x: Tensor, nonzeros: Mapping[str, int] | None = None) -> int:
    """Return the operations of one forward pass on the sample ``x``, which has no batch dimension.

    ``nonzeros`` gives the number of held entries by parameter name; other parameters are complete.

    >>> paper_forward_flops(nn.Conv2d(1, 2, 3), torch.zeros(1, 5, 5)), (2 * 18 + 2) * 9
    (342, 342)
    >>> paper_forward_flops(nn.Linear(4, 3), torch.zeros(4), {"weight": 5})
    13
    """
    held, total = _held(module, nonzeros or {}), 0

    def count(layer: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        linear = isinstance(layer, nn.Linear)
        wide = layer.out_features if linear else layer.out_channels
        bias = 0 if layer.bias is None else held[id(layer.bias)] if linear else wide
        total += (2 * held[id(layer.weight)] + bias) * (output.numel() // (COPIES * wide))

    training = module.training
    with ExitStack() as stack:
        stack.callback(module.train, training)
        for layer in module.modules():
            if isinstance(layer, LAYERS):
                stack.callback(layer.register_forward_hook(count).remove)
        module.eval()(x.expand(COPIES, *x.shape))
    return total


def _held(module: nn.Module, nonzeros: Mapping[str, int]) -> dict[int, int]:
    """Return the number of held entries of each parameter."""
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    for name, number in nonzeros.items():
        require((name in sizes, f"nonzeros: the network has no parameter {name!r}"))
        require(
            (0 <= number <= sizes[name], f"nonzeros: {name} has {sizes[name]:,} entries, {number:,} cannot be held")
        )
    return {id(parameter): nonzeros.get(name, sizes[name]) for name, parameter in module.named_parameters()}


def paper_round_flops(forward: int, samples: int, epochs: int = 5, screened: int = 0, dense: int = 0) -> int:
    """Return the operations of one client's round.

    Args:
        forward: operations of a forward pass of the client's sparse network
        samples: number of training samples
        epochs: number of local epochs
        screened: number of samples for the dense gradient that updates the mask; the paper uses a batch of 128
        dense: operations of a forward pass of the dense network
    """
    return TRAINING * (epochs * samples * forward + screened * dense)


def paper_bytes(nonzeros_down: float, nonzeros_up: float, clients: int, rounds: int) -> int:
    """Return the bytes of all rounds, given the held values per client in a download and an upload.

    >>> paper_bytes(100, 50, clients=10, rounds=2)
    12000
    """
    return round(VALUE * (nonzeros_down + nonzeros_up) * clients * rounds)
