"""Masks relative to what the server already knows: FedPM with importance sampling."""

import math
from typing import Literal, Unpack

from gossamer.core.method import Method
from gossamer.methods.compressed import fedpm
from gossamer.methods.recipes import Training, recipe
from gossamer.parts.codecs.masks import KLMS
from gossamer.parts.codecs.on_weights import OnWeights

__all__ = ["klms"]


@recipe
def klms(
    *,
    scale: float = math.e,
    bits: int = 6,
    rate: float = 0.5,
    around: Literal["zero", "start"] = "zero",
    **fields: Unpack[Training],
) -> Method:
    """FedPM with importance-sampled masks: about the divergence from the mean mask, far below one bit per parameter.

    Isik et al., Adaptive Compression in Federated Learning via Side Information, AISTATS 2024,
    https://arxiv.org/abs/2306.12625

    Args:
        scale: magnitude of the frozen weights, multiplied by the square root of the fan-in
        bits: binary logarithm of the number of candidates per block, from 1 to 8
        rate: mean divergence of a block, in units of bits; smaller values take more bits, with a smaller bias
        around: start: masks shift the initial weights by a small scale, for adapters; zero: they replace them
    """
    return fedpm(scale=scale, around=around, **fields).with_parts(codec=OnWeights(KLMS(bits, rate), per_tensor=True))
