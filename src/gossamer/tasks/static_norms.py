"""What static batch norms normalise by in evaluation.

A static batch norm keeps no running statistics: it normalises by the batch at hand in training, and has nothing of its
own to evaluate with. Published code does it in three ways, and figures depend on which:

    batch:SIZE   by the test batch at hand, of so many samples in the order of the test set (FedRolex: 100)
    own:SIZE     the same, and for personal figures by batches of each client's own test samples alone
    train:SIZE   by the mean over batches of so many training samples, augmented as in training (HeteroFL: 10)

For other networks the three are the same but for how many samples are evaluated at once.
"""

import copy
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.core.errors import require, wrong


@dataclass(frozen=True)
class OfBatch:
    """Statistics of the test batch at hand.

    Args:
        size: samples that are evaluated together
    """

    size: int = 1000

    def __post_init__(self) -> None:
        require((self.size >= 1, wrong(self, "size", "must be at least 1")))


@dataclass(frozen=True)
class OfOwnBatch(OfBatch):
    """Statistics of the test batch at hand, which for personal figures holds a client's own samples alone."""


@dataclass(frozen=True)
class OfTraining(OfBatch):
    """Mean statistics of a pass over the training samples."""


Statistics = OfBatch
STATISTICS: dict[str, type[OfBatch]] = {"batch": OfBatch, "own": OfOwnBatch, "train": OfTraining}
"""Choices by the name that the command line uses."""


def static_norms(module: nn.Module) -> list[_BatchNorm]:
    """The static batch norms of a network."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and not part.track_running_stats]


def tracking(module: nn.Module) -> nn.Module:
    """A copy of a network whose static norms keep the mean of the statistics that they see in training."""
    network = copy.deepcopy(module)
    some = next(network.parameters())
    for norm in static_norms(network):
        norm.track_running_stats, norm.momentum = True, None
        channels = len(norm.weight) if norm.affine else norm.num_features  # fewer in a narrower network
        for name, buffer in type(norm)(channels).to(some.device, some.dtype).named_buffers():
            norm.register_buffer(name, buffer)
    return network
