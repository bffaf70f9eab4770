"""Sampled mask (FedPM): one bit per score, drawn as 1 with probability sigmoid(score).

Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import entropy
from gossamer.core.codec import Codec, Coding
from gossamer.core.random import uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite


@dataclass(frozen=True)
class SampledMask(Codec):
    """Sends a random mask in place of scores. Its expectation is the sigmoid of the scores.

    FedPM, https://arxiv.org/abs/2209.15328.

    Args:
        coded: send the entropy code of the mask where it is shorter than one bit per entry
    """

    coded: bool = False

    @property
    def exact(self) -> bool:
        """False: sigmoids differ between devices in the last bit, which may change a draw."""
        return False

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the mask as bits."""
        drawn = uniform(ctx.key, ctx.layout.size, dtype=x.dtype, device=x.device)
        mask = drawn < torch.sigmoid(finite(x, "scores"))
        packed = {"mask": packing.bits(mask)}
        return entropy.shorter(packed, mask, 2) if self.coded else packed

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the mask as zeros and ones."""
        if self.coded and entropy.NAME in payload:
            return entropy.expect_symbols(payload, 2, ctx.layout.size, -(-ctx.layout.size // 8)).to(ctx.layout.dtype)
        return packing.numbers(packing.expect_bits(payload, "mask", ctx.layout.size), ctx.layout.dtype)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1: the decoded vector is a mask."""
        return (SumSegment(layout.size, 1),)

    def unreplayable(self) -> str:
        """Return nothing: only the draws depend on the device, not the decoded mask."""
        return ""
