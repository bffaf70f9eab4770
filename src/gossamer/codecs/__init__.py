"""Codecs: what crosses a link.

A codec is two pure functions: ``encode`` makes a payload of a vector, ``decode`` makes the vector of the payload.
Whoever needs no memory writes just these two. A codec that keeps something between rounds (what it could not send,
say) extends :class:`CodecMemory`.
"""

from gossamer.codecs.base import Codec, CodecMemory, StraightThrough, Summing
from gossamer.codecs.dense import Dense
from gossamer.codecs.drive import Drive
from gossamer.codecs.eden import Eden
from gossamer.codecs.feedback import Feedback
from gossamer.codecs.lift import Lift
from gossamer.codecs.masked_noise import MaskedNoise
from gossamer.codecs.one_bit import OneBit
from gossamer.codecs.retain import Retain
from gossamer.codecs.sampled_mask import SampledMask
from gossamer.codecs.sign import StochasticSign
from gossamer.codecs.sparse import Sparse
from gossamer.codecs.subsample import Subsample
from gossamer.codecs.ternary import Ternary
from gossamer.codecs.topk import TopK

CODECS: dict[str, type[Codec]] = {
    "dense": Dense,
    "sparse": Sparse,
    "topk": TopK,
    "subsample": Subsample,
    "sign": StochasticSign,
    "ternary": Ternary,
    "drive": Drive,
    "eden": Eden,
    "masked-noise": MaskedNoise,
    "one-bit": OneBit,
}
"""Codecs by the name that the command line uses."""

__all__ = [
    "CODECS",
    "Codec",
    "CodecMemory",
    "Dense",
    "Drive",
    "Eden",
    "Feedback",
    "Lift",
    "MaskedNoise",
    "OneBit",
    "Retain",
    "SampledMask",
    "Sparse",
    "StochasticSign",
    "StraightThrough",
    "Subsample",
    "Summing",
    "Ternary",
    "TopK",
]
