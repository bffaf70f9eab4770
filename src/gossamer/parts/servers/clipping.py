"""Norm clipping of updates, which bounds the influence of one client.

An update D is multiplied by min(1, c / |D|). The bound c protects against poisoning (``robust.Clip``), and is the
sensitivity of the sum, from which the noise of differential privacy follows (``PrivateMean``, ``TreeMean``).
"""

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.exchange import Arrival
from gossamer.core.types import Layout, Params


def shrink(norms: Tensor, most: float) -> Tensor:
    """Return the factors that bring norms down to ``most``, and leave smaller ones as they are."""
    return torch.where(norms > most, most / norms, 1.0)


def whole_vector(arrival: Arrival, model: Params, layout: Layout) -> Tensor:
    """Decode an update, and return it over the whole model, zero at entries that are not aggregated."""
    device = tree.device(model)
    if arrival.part.whole:
        return arrival.vector(device)
    if arrival.part.masked and arrival.layout.held is not None:
        return arrival.layout.spread(arrival.vector(device))
    return layout.flatten(arrival.part.spread(arrival.change(device), model))
