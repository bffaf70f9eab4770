"""Codecs: how a vector is compressed for the uplink or the downlink.

A codec is two pure functions: ``encode`` turns a vector into a payload, ``decode`` turns the payload into a vector. All
else that it may do has a default, see ``gossamer.core.codec``.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.codec import Codec as Codec
    from gossamer.core.codec import Coding as Coding
    from gossamer.parts.codecs.dense import Dense as Dense
    from gossamer.parts.codecs.distributed_noise import DiscreteGaussian as DiscreteGaussian
    from gossamer.parts.codecs.distributed_noise import Skellam as Skellam
    from gossamer.parts.codecs.fixed_point import FixedPoint as FixedPoint
    from gossamer.parts.codecs.masked_noise import CommonMaskedNoise as CommonMaskedNoise
    from gossamer.parts.codecs.masked_noise import DenseMaskedNoise as DenseMaskedNoise
    from gossamer.parts.codecs.masked_noise import MaskedNoise as MaskedNoise
    from gossamer.parts.codecs.masks import KLMS as KLMS
    from gossamer.parts.codecs.masks import SampledMask as SampledMask
    from gossamer.parts.codecs.on_weights import OnWeights as OnWeights
    from gossamer.parts.codecs.one_bit import OneBit as OneBit
    from gossamer.parts.codecs.poisson_binomial import PoissonBinomial as PoissonBinomial
    from gossamer.parts.codecs.private import LocalGaussian as LocalGaussian
    from gossamer.parts.codecs.quantized import QSGD as QSGD
    from gossamer.parts.codecs.quantized import Int4 as Int4
    from gossamer.parts.codecs.quantized import Int8 as Int8
    from gossamer.parts.codecs.quic_fl import QuicFL as QuicFL
    from gossamer.parts.codecs.rotated import Drive as Drive
    from gossamer.parts.codecs.rotated import Eden as Eden
    from gossamer.parts.codecs.seeds import Seeds as Seeds
    from gossamer.parts.codecs.signs import NoisySign as NoisySign
    from gossamer.parts.codecs.signs import StochasticSign as StochasticSign
    from gossamer.parts.codecs.signs import Ternary as Ternary
    from gossamer.parts.codecs.sparse import Sparse as Sparse
    from gossamer.parts.codecs.sparse import Subsample as Subsample
    from gossamer.parts.codecs.sparse import TopK as TopK
    from gossamer.parts.codecs.wrappers import Feedback as Feedback
    from gossamer.parts.codecs.wrappers import Retain as Retain

CODECS: "Registry[type[Codec]]" = Registry(
    __name__,
    {
        "dense": "dense.Dense",
        "sparse": "sparse.Sparse",
        "topk": "sparse.TopK",
        "subsample": "sparse.Subsample",
        "sign": "signs.StochasticSign",
        "noisy-sign": "signs.NoisySign",
        "ternary": "signs.Ternary",
        "qsgd": "quantized.QSGD",
        "int8": "quantized.Int8",
        "int4": "quantized.Int4",
        "fixed-point": "fixed_point.FixedPoint",
        "drive": "rotated.Drive",
        "eden": "rotated.Eden",
        "quic-fl": "quic_fl.QuicFL",
        "masked-noise": "masked_noise.MaskedNoise",
        "one-bit": "one_bit.OneBit",
        "discrete-gaussian": "distributed_noise.DiscreteGaussian",
        "skellam": "distributed_noise.Skellam",
        "poisson-binomial": "poisson_binomial.PoissonBinomial",
        "local-gaussian": "private.LocalGaussian",
    },
)
"""Codecs by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, CODECS)
