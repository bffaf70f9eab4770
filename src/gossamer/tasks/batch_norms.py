"""BatchNorm layers: statistics of static ones in evaluation, and layers that see one value per channel.

A static batch norm keeps no running statistics. In training it normalizes by the batch. Published code evaluates it in
three ways, and results depend on the choice:

    batch:SIZE   statistics of the test batch, of SIZE samples in the order of the test set (FedRolex: 100)
    own:SIZE     the same, but personal metrics use batches of each client's own test samples
    train:SIZE   mean statistics over batches of SIZE training samples, augmented as in training (HeteroFL: 10)

For other networks the choice only sets the batch size of the evaluation.

BatchNorm uses batch statistics in training, also for a single image, which has many values per channel. If a batch of
one sample has a single value per channel, its variance is undefined. Layers with running statistics then use these and
leave them unchanged: ``lonely_norms`` finds them.
"""

import copy
from abc import ABC
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.core.errors import require, wrong


@dataclass(frozen=True)
class Statistics(ABC):  # noqa: B024
    """The statistics of static batch norms in evaluation.

    Args:
        size: number of samples per evaluation batch
    """

    size: int = 1000

    def __post_init__(self) -> None:
        require((self.size >= 1, wrong(self, "size", "must be at least 1")))


@dataclass(frozen=True)
class OfBatch(Statistics):
    """Statistics of the test batch."""


@dataclass(frozen=True)
class OfOwnBatch(Statistics):
    """Statistics of the test batch; for personal metrics, batches hold only a client's own samples."""


@dataclass(frozen=True)
class OfTraining(Statistics):
    """Mean statistics of a pass over the training samples."""


STATISTICS: dict[str, type[Statistics]] = {"batch": OfBatch, "own": OfOwnBatch, "train": OfTraining}
"""Choices by their name on the command line."""


def static_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return the static batch norms of a network."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and not part.track_running_stats]


def tracking(module: nn.Module) -> nn.Module:
    """Return a copy of a network whose static norms track the mean statistics of training batches."""
    network = copy.deepcopy(module)
    some = next(network.parameters())
    for norm in static_norms(network):
        norm.track_running_stats, norm.momentum = True, None
        channels = len(norm.weight) if norm.affine else norm.num_features  # fewer in a narrower network
        for name, buffer in type(norm)(channels).to(some.device, some.dtype).named_buffers():
            norm.register_buffer(name, buffer)
    return network


def without_counters(network: nn.Module) -> nn.Module:
    """Let BatchNorm layers count no batches if nothing depends on the count; counting takes two operations per step.

    Of torch's own layers, only those with ``momentum=None`` depend on it. A subclass may use the count in its own way.
    """
    for norm in network.modules():
        if isinstance(norm, _BatchNorm) and type(norm).forward is _BatchNorm.forward and norm.momentum is not None:
            norm.num_batches_tracked = None
    return network


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
