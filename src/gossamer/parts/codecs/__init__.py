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
    from gossamer.parts.codecs.drive import Drive as Drive
    from gossamer.parts.codecs.eden import Eden as Eden
    from gossamer.parts.codecs.feedback import Feedback as Feedback
    from gossamer.parts.codecs.fixed_point import FixedPoint as FixedPoint
    from gossamer.parts.codecs.integers import Int4 as Int4
    from gossamer.parts.codecs.integers import Int8 as Int8
    from gossamer.parts.codecs.klms import KLMS as KLMS
    from gossamer.parts.codecs.masked_noise import CommonMaskedNoise as CommonMaskedNoise
    from gossamer.parts.codecs.masked_noise import DenseMaskedNoise as DenseMaskedNoise
    from gossamer.parts.codecs.masked_noise import MaskedNoise as MaskedNoise
    from gossamer.parts.codecs.noisy_sign import NoisySign as NoisySign
    from gossamer.parts.codecs.on_weights import OnWeights as OnWeights
    from gossamer.parts.codecs.one_bit import OneBit as OneBit
    from gossamer.parts.codecs.poisson_binomial import PoissonBinomial as PoissonBinomial
    from gossamer.parts.codecs.private import LocalGaussian as LocalGaussian
    from gossamer.parts.codecs.qsgd import QSGD as QSGD
    from gossamer.parts.codecs.quic_fl import QuicFL as QuicFL
    from gossamer.parts.codecs.retain import Retain as Retain
    from gossamer.parts.codecs.sampled_mask import SampledMask as SampledMask
    from gossamer.parts.codecs.seeds import Seeds as Seeds
    from gossamer.parts.codecs.sign import StochasticSign as StochasticSign
    from gossamer.parts.codecs.sparse import Sparse as Sparse
    from gossamer.parts.codecs.subsample import Subsample as Subsample
    from gossamer.parts.codecs.ternary import Ternary as Ternary
    from gossamer.parts.codecs.topk import TopK as TopK

CODECS: "Registry[type[Codec]]" = Registry(
    __name__,
    {
        "dense": "dense.Dense",
        "sparse": "sparse.Sparse",
        "topk": "topk.TopK",
        "subsample": "subsample.Subsample",
        "sign": "sign.StochasticSign",
        "noisy-sign": "noisy_sign.NoisySign",
        "ternary": "ternary.Ternary",
        "qsgd": "qsgd.QSGD",
        "int8": "integers.Int8",
        "int4": "integers.Int4",
        "fixed-point": "fixed_point.FixedPoint",
        "drive": "drive.Drive",
        "eden": "eden.Eden",
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
