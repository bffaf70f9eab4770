"""BatchNorm layers that see one value per channel in a batch of one sample.

BatchNorm uses batch statistics in training, also for a single image, which has many values per channel. If a batch of
one sample has a single value per channel, its variance is undefined. Layers with running statistics then use these and
leave them unchanged.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def lonely_norms(module: nn.Module, run: Callable[[], object]) -> list[nn.Module]:
    """Return the BatchNorm layers with running statistics that see one value per channel while ``run`` runs."""
    found: list[nn.Module] = []

    def look(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            found.append(norm)

    with ExitStack() as hooks:
        for norm in module.modules():
            if isinstance(norm, _BatchNorm) and norm.track_running_stats:
                hooks.callback(norm.register_forward_pre_hook(look).remove)
        run()
    return found
