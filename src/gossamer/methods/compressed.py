"""Compressed updates: learned masks with one bit per parameter, signs, sparsification and quantization.

Weight matrices are compressed. Norms, biases and running statistics are sent uncompressed in the same message.
"""

import math
from dataclasses import replace
from typing import Annotated, Literal, TypedDict, Unpack

from gossamer.core.codec import Codec
from gossamer.core.errors import require, wrong_argument
from gossamer.core.method import Method
from gossamer.core.random.noise import Kind
from gossamer.methods.averaging import fedavg
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Default, Training, pick, recipe
from gossamer.parts.codecs.masked_noise import CommonMaskedNoise, DenseMaskedNoise, MaskedNoise, NoiseMask
from gossamer.parts.codecs.masks import SampledMask
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.rotated import Drive, Eden
from gossamer.parts.codecs.signs import Noise, NoisySign, StochasticSign, Ternary
from gossamer.parts.codecs.sparse import Subsample, TopK
from gossamer.parts.codecs.wrappers import Feedback
from gossamer.parts.parametrizations import Supermask
from gossamer.parts.servers.average import MaskAverage
from gossamer.parts.servers.sums import SumThenDecode
from gossamer.parts.solvers.adam import Adam
from gossamer.parts.views.entries import Full

__all__ = [
    "drive",
    "eden",
    "fedmrn",
    "fedmrns",
    "fedpm",
    "signsgd",
    "subsample",
    "terngrad",
    "topk",
    "z_signfedavg",
]


class MaskFields(TypedDict, total=False):
    """Mask training: fields of ``MaskedNoise``."""

    noise: Annotated[Kind, Default("bernoulli")]
    stochastic: Annotated[bool, Default(True)]
    progressive: Annotated[bool, Default(True)]
    learn_masks: Annotated[bool | None, Default(None)]
    coded: Annotated[bool, Default(True)]
    block: Annotated[int | None, Default(256)]


class Masking(Averaging, MaskFields, total=False):
    """Local training, aggregation weights and mask training."""


@recipe
def fedmrn(
    *,
    alpha: Literal["auto"] | float = "auto",
    spread: float = 1.0,
    train_base: bool = False,
    common_noise: bool = False,
    **fields: Unpack[Masking],
) -> Method:
    """Masks over shared random noise: at most one bit per parameter.

    Li et al., Masked Random Noise for Communication Efficient Federated Learning, ACM Multimedia 2024,
    https://arxiv.org/abs/2408.03220

    Args:
        alpha: magnitude of the noise; auto measures it from each update, per block, and sends a scale per block
        spread: with alpha auto, the magnitude in units of the update's own; more gives sparser masks and fewer bits
        train_base: also train the base weights and send the sum uncompressed, as the authors' code for Shakespeare
        common_noise: all clients of a round use the same noise, so that their masks add up; needs a number as alpha
    """
    made = _noise(common_noise)(False, alpha=alpha, spread=spread, **pick(MaskFields, fields))
    return _masked(made, train_base, fields)


@recipe
def fedmrns(
    *,
    alpha: Literal["auto"] | float = "auto",
    spread: float = 1.0,
    train_base: bool = False,
    common_noise: bool = False,
    **fields: Unpack[Masking],
) -> Method:
    """FedMRN with signed masks, which keep or negate the noise: one bit per parameter.

    Li et al., Masked Random Noise for Communication Efficient Federated Learning, ACM Multimedia 2024,
    https://arxiv.org/abs/2408.03220

    Args:
        alpha: magnitude of the noise; auto measures it from each update, per block, and sends a scale per block
        spread: with alpha auto, the magnitude in units of the update's own; less clips more, with a smaller error
        train_base: also train the base weights and send the sum uncompressed, as the authors' code for Shakespeare
        common_noise: all clients of a round use the same noise, so that their masks add up; needs a number as alpha
    """
    made = _noise(common_noise)(True, alpha=alpha, spread=spread, **pick(MaskFields, fields))
    return _masked(made, train_base, fields)


@recipe
def fedpm(
    *,
    scale: float = math.e,
    coded: bool = False,
    around: Literal["zero", "start"] = "zero",
    **fields: Unpack[Training],
) -> Method:
    """Stochastic masks over frozen random weights: one bit per parameter.

    Isik et al., Sparse Random Networks for Communication-Efficient Federated Learning, ICLR 2023,
    https://arxiv.org/abs/2209.15328

    Args:
        scale: magnitude of the frozen weights, multiplied by the square root of the fan-in
        coded: send the entropy code of a mask where it is shorter
        around: start: masks shift the initial weights by a small scale, for adapters; zero: they replace them
    """
    codec = OnWeights(SampledMask(coded))
    server = MaskAverage("uniform")
    return compose(Full(), Adam(**fields), codec, server, send="model", parametrization=Supermask(scale, around=around))


@recipe
def signsgd(
    *, scale: Literal["max", "norm"] | float = "max", feedback: bool = False, **fields: Unpack[Averaging]
) -> Method:
    """Stochastic signs of the update, unbiased: one bit per parameter.

    Safaryan and Richtarik, Stochastic Sign Descent Methods: New Algorithms and Better Theory, ICML 2021,
    https://arxiv.org/abs/1905.12938

    Args:
        scale: magnitude of the signs: max (largest entry), norm (Euclidean norm), or a fixed number
        feedback: use error feedback: add the compression error to the next update
    """
    return _compressed(fedavg(**fields), StochasticSign(scale), feedback)


@recipe
def z_signfedavg(
    *, sigma: float = 0.1, noise: Noise = "gauss", server_lr: float = 1.0, **fields: Unpack[Averaging]
) -> Method:
    """Signs of the update after noise is added: one bit per parameter, and no scale.

    Tang et al., z-SignFedAvg: A Unified Stochastic Sign-based Compression for Federated Learning, 2023,
    https://arxiv.org/abs/2302.02589

    Args:
        sigma: scale of the noise, in units of the update divided by lr (the sum of a client's gradients)
        noise: gauss (z = 1) or uniform (z = infinity)
        server_lr: factor of the mean of the signs; 1 makes it an estimate of the mean update
    """
    codec = NoisySign(sigma * fields["lr"], noise)
    return _compressed(fedavg(**fields, server_lr=server_lr), codec, each=False)


@recipe
def topk(*, share: float = 0.03, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """The entries of largest magnitude, with their indices.

    Stich et al., Sparsified SGD with Memory, NeurIPS 2018, https://arxiv.org/abs/1809.07599

    Args:
        share: fraction of the entries that is sent, rounded up
        feedback: use error feedback: add the compression error to the next update
    """
    return _compressed(fedavg(**fields), TopK(share), feedback, each=False)


@recipe
def subsample(*, share: float = 0.03125, rescale: bool = True, **fields: Unpack[Averaging]) -> Method:
    """Random entries, chosen by a shared random key; no indices are sent.

    Konecny et al., Federated Learning: Strategies for Improving Communication Efficiency, 2016,
    https://arxiv.org/abs/1610.05492

    Args:
        share: probability that an entry is sent
        rescale: divide the entries by this probability, so that the update is unbiased
    """
    return _compressed(fedavg(**fields), Subsample(share, rescale), each=False)


@recipe
def terngrad(*, feedback: bool = False, coded: bool = True, **fields: Unpack[Averaging]) -> Method:
    """Ternary updates: each entry is -1, 0 or 1 times the largest entry of its tensor.

    Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NeurIPS 2017,
    https://arxiv.org/abs/1705.07878

    Args:
        feedback: use error feedback: add the compression error to the next update
        coded: send the entropy code of an update where it is shorter
    """
    return _compressed(fedavg(**fields), Ternary(coded), feedback)


@recipe
def drive(
    *, scale: Literal["unbiased", "least-squares"] = "unbiased", feedback: bool = False, **fields: Unpack[Averaging]
) -> Method:
    """Signs after a random rotation, with a scale: one bit per parameter.

    Vargaftik et al., DRIVE: One-bit Distributed Mean Estimation, NeurIPS 2021, https://arxiv.org/abs/2105.08339

    Args:
        scale: unbiased, or least-squares for the smallest error of a single update
        feedback: use error feedback: add the compression error to the next update
    """
    return _compressed(fedavg(**fields), Drive(scale), feedback, each=False)


@recipe
def eden(*, bits: int = 1, feedback: bool = False, coded: bool = False, **fields: Unpack[Averaging]) -> Method:
    """A few bits per entry after a random rotation, unbiased.

    Vargaftik et al., EDEN: Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning,
    ICML 2022, https://arxiv.org/abs/2108.08842

    Args:
        bits: bits per entry, from 1 to 8
        feedback: use error feedback: add the compression error to the next update
        coded: send the entropy code of an update where it is shorter
    """
    return _compressed(fedavg(**fields), Eden(bits, coded), feedback, each=False)


def _masked(codec: NoiseMask, train_base: bool, fields: Masking) -> Method:
    """Return FedMRN with signed or binary masks."""
    if train_base and codec.learn_masks is None:
        codec = replace(codec, learn_masks=True)  # as in the authors' code, whatever the magnitude
    sent = DenseMaskedNoise(codec) if train_base else codec
    method = _compressed(fedavg(**pick(Averaging, fields)), sent, each=False)
    if not codec.common:
        return method
    rule = "must be False with train_base, which sends floats"
    require((not train_base, wrong_argument("common_noise", codec.common, rule)))
    return method.with_parts(server=SumThenDecode(fields["weights"]))


def _noise(common: bool) -> type[NoiseMask]:
    """Return the codec with noise of each client, or with that of the round."""
    return CommonMaskedNoise if common else MaskedNoise


def _compressed(method: Method, codec: Codec, feedback: bool = False, each: bool = True) -> Method:
    """Return the method with a codec for its weight matrices, applied to each matrix or to all as one vector."""
    return method.with_parts(codec=OnWeights(Feedback(codec) if feedback else codec, each))
