"""What training costs as FedSpa's paper counts it: operations of convolutions and linear layers, and held values sent.

A forward pass of one sample is charged two operations for every held weight, wherever a layer is applied, and one for
every output that a bias is added to. Norms, activations and pooling are free. Training takes three times a forward
pass. On the links a held value is four bytes, and the masks that say which are held travel free.

These are figures to set beside those of the paper. What a run really computes and sends is in its metrics.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.errors import require

TRAINING = 3
"""Forward passes that training on a sample is charged as."""

VALUE = 4
"""Bytes that a value is charged on a link."""

COPIES = 2
"""Copies of the sample that are sent through the network: static batch norms may refuse one alone."""

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def paper_forward_flops(module: nn.Module, x: Tensor, nonzeros: Mapping[str, int] | None = None) -> int:
    """Operations of one forward pass on the sample ``x``, which has no batch around it.

    ``nonzeros`` says how many entries of a parameter are held, by its name; one that it does not name is held whole.

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
    """How many entries are held of each parameter."""
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    for name, number in nonzeros.items():
        require((name in sizes, f"nonzeros: the network has no parameter {name!r}"))
        require(
            (0 <= number <= sizes[name], f"nonzeros: {name} has {sizes[name]:,} entries, {number:,} cannot be held")
        )
    return {id(parameter): nonzeros.get(name, sizes[name]) for name, parameter in module.named_parameters()}


def paper_round_flops(forward: int, samples: int, epochs: int = 5, screened: int = 0, dense: int = 0) -> int:
    """Operations of one client's round.

    Args:
        forward: those of a forward pass of what it holds
        samples: how many it has, each of which it trains on once an epoch
        screened: samples that all gradients are taken of, to move its mask by; the paper has a batch of 128
        dense: operations of a forward pass of the whole network, which those go through
    """
    return TRAINING * (epochs * samples * forward + screened * dense)


def paper_bytes(nonzeros_down: float, nonzeros_up: float, clients: int, rounds: int) -> int:
    """Bytes of all rounds with so many clients in each, of which each gets and sends so many held values.

    >>> paper_bytes(100, 50, clients=10, rounds=2)
    12000
    """
    return round(VALUE * (nonzeros_down + nonzeros_up) * clients * rounds)
