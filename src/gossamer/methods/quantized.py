"""Quantized updates: unbiased levels of a few bits per entry.

Weight matrices are compressed as one vector. Norms, biases and running statistics are sent uncompressed in the same
message.
"""

from typing import Literal, Unpack

from gossamer.core.codec import Codec
from gossamer.core.method import Method
from gossamer.methods.averaging import fedavg
from gossamer.methods.recipes import Averaging, recipe
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.quantized import QSGD, Int8, Rounding
from gossamer.parts.codecs.quic_fl import QuicFL
from gossamer.parts.codecs.wrappers import Feedback

__all__ = ["int8", "qsgd", "quic_fl"]


@recipe
def qsgd(
    *,
    levels: int = 7,
    bucket: int | None = 512,
    norm: Literal["l2", "max"] = "l2",
    feedback: bool = False,
    **fields: Unpack[Averaging],
) -> Method:
    """Random levels of a norm per bucket, unbiased, in Elias code.

    Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017,
    https://arxiv.org/abs/1610.02132; with local steps, it is FedPAQ, https://arxiv.org/abs/1909.13014

    Args:
        levels: number of positive levels, from 1 to 127
        bucket: number of entries with one norm; none is the whole vector
        norm: l2 (Euclidean) or max (largest magnitude, as in the experiments of the paper)
        feedback: use error feedback: add the compression error to the next update
    """
    return _quantized(QSGD(levels, bucket, norm), feedback, fields)


@recipe
def int8(
    *,
    rounding: Rounding = "stochastic",
    block: int | None = 256,
    feedback: bool = False,
    **fields: Unpack[Averaging],
) -> Method:
    """One byte per entry, with a scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: number of entries with one scale; none is the whole vector
        feedback: use error feedback: add the compression error to the next update
    """
    return _quantized(Int8(rounding, block), feedback, fields)


@recipe
def quic_fl(*, bits: int = 2, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """A few bits per entry after a random rotation, with shared randomness; every entry is unbiased.

    Ben Basat et al., Accelerating Federated Learning with Quick Distributed Mean Estimation, ICML 2024,
    https://arxiv.org/abs/2205.13341

    Args:
        bits: bits per entry, from 1 to 4
        feedback: use error feedback: add the compression error to the next update
    """
    return _quantized(QuicFL(bits), feedback, fields)


def _quantized(codec: Codec, feedback: bool, fields: Averaging) -> Method:
    return fedavg(**fields).with_parts(codec=OnWeights(Feedback(codec) if feedback else codec))
