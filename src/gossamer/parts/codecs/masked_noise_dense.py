"""Masked noise on top of trained base weights, sent dense: what FedMRN's published code for Shakespeare computes.

FedMRN (https://arxiv.org/abs/2408.03220) freezes the weights w of the round's start and trains an update u, of which
only a mask is sent. In the authors' code for Table 3 the base weights are trainable too. They get the gradient of u in
every step, so they move by u as well. The network is evaluated at ``w + u + n m``, and ``u + n m`` is sent as floats.
This is FedAvg with twice the step and noise, at 32 bits per weight. It is here to compare with that table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import StraightThrough
from gossamer.core.random import Key
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.masked_noise import MaskedNoise


@dataclass(frozen=True)
class DenseMaskedNoise(StraightThrough):
    """Sends the update plus its masked noise as floats. No compression: the artefact of FedMRN's Table 3.

    Args:
        masks: the masked noise that is added
    """

    masks: MaskedNoise = MaskedNoise()

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the sum of update and masked noise."""
        noise = self.masks.decode(self.masks.encode(x, layout, key), layout, key)
        return Dense().encode(x + noise, layout, key)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return the values."""
        return Dense().decode(payload, layout, key)

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """Return the context of the masked noise."""
        return self.masks.surrogate_context(layout, steps, key, device)

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return the change plus its masked noise."""
        masked = self.masks.surrogate(change, context, step_index)
        return {name: change[name] + value for name, value in masked.items()}
