"""The floating-point operations of a pass, and those with weights that a client holds.

torch's counter gives the operations of each layer. Those of a layer with masks are divided among the entries of its
weight matrices. A trained entry takes part in three products: in the output, in the gradient of the layer's inputs, and
in its own gradient. A frozen one takes part in the first two. This is exact for a layer with one weight matrix, and for
one whose inputs need a gradient. Biases and norms are negligible.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from torch.nn.attention import SDPBackend, sdpa_kernel

from gossamer.core.types import Flops, Params
from gossamer.tasks.modes import FlopCounter, plain_kernels

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
    return Counted(counter.get_total_flops(), _without_inner(layers))


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


def _without_inner(layers: dict[str, int]) -> dict[str, int]:
    """Return the operations of each layer without those of the layers inside it."""
    own = Counter(layers)
    for name, operations in layers.items():
        if name:
            own[_nearest(name, layers)] -= operations
    return {name: max(0, operations) for name, operations in own.items()}


def _nearest(layer: str, layers: dict[str, int]) -> str:
    """Return the innermost of some layers around a layer; lists of layers, for example, have no operations."""
    outer = _around(layer)
    return outer if outer in layers or not outer else _nearest(outer, layers)


def _around(name: str) -> str:
    """Return the layer of a tensor, or the layer around a layer."""
    return name.rpartition(".")[0]
