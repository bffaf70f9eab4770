"""One bit a parameter, learned while training, and what it is compared with.

Weight matrices are compressed; norms, biases and running statistics go dense in the same message.
"""

import math
from typing import Annotated, Literal, TypedDict, Unpack

from gossamer.core.codec import Codec
from gossamer.core.method import Method
from gossamer.core.random.noise import Kind
from gossamer.methods.averaging import fedavg
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Default, Training, pick, recipe
from gossamer.parts.codecs.drive import Drive
from gossamer.parts.codecs.eden import Eden
from gossamer.parts.codecs.feedback import Feedback
from gossamer.parts.codecs.masked_noise import MaskedNoise
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.sampled_mask import SampledMask
from gossamer.parts.codecs.sign import StochasticSign
from gossamer.parts.codecs.sparse import Sparse
from gossamer.parts.codecs.subsample import Subsample
from gossamer.parts.codecs.ternary import Ternary
from gossamer.parts.codecs.topk import TopK
from gossamer.parts.parametrizations.supermask import Supermask
from gossamer.parts.servers.average import Average, MaskAverage
from gossamer.parts.solvers.adam import Adam
from gossamer.parts.solvers.pruning import PruningSGD
from gossamer.parts.views.full import Full

__all__ = ["drive", "eden", "fedmrn", "fedmrns", "fedpm", "fedsparsify", "signsgd", "subsample", "terngrad", "topk"]


class MaskFields(TypedDict, total=False):
    """How masks over noise are learned: fields of ``MaskedNoise``."""

    noise: Annotated[Kind, Default("uniform")]
    stochastic: Annotated[bool, Default(True)]
    progressive: Annotated[bool, Default(True)]
    rehearsed: Annotated[bool, Default(True)]
    coded: Annotated[bool, Default(False)]


class Masking(Averaging, MaskFields, total=False):
    """How clients train, are averaged and learn masks."""


@recipe
def fedmrn(*, alpha: float = 0.01, **fields: Unpack[Masking]) -> Method:
    """Masks over random noise, learned while training: one bit a parameter (Li et al., 2024)."""
    return _masked(False, alpha, fields)


@recipe
def fedmrns(*, alpha: float = 0.005, **fields: Unpack[Masking]) -> Method:
    """FedMRN with signed masks: the noise is kept or turned round."""
    return _masked(True, alpha, fields)


@recipe
def fedpm(*, scale: float = math.e, **fields: Unpack[Training]) -> Method:
    """Masks over frozen weights, drawn from trained scores: one bit a parameter (Isik et al., 2023)."""
    solver = Adam(**fields)
    server = MaskAverage("uniform")
    return compose(Full(), solver, OnWeights(SampledMask()), server, send="model", parametrization=Supermask(scale))


@recipe
def fedsparsify(*, sparsity: float = 0.7, **fields: Unpack[Averaging]) -> Method:
    """Weights are pruned by magnitude while training, and the pruned model is sent (Stripelis et al., 2022)."""
    solver = PruningSGD(**pick(Training, fields), sparsity=sparsity)
    return compose(Full(), solver, OnWeights(Sparse()), Average(fields["weights"]), send="model")


@recipe
def signsgd(
    *, scale: Literal["max", "norm"] | float = "max", feedback: bool = False, **fields: Unpack[Averaging]
) -> Method:
    """The sign of each change, drawn at random so that it is right on average (Safaryan and Richtarik, 2021).

    Args:
        feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), StochasticSign(scale), feedback)


@recipe
def topk(*, share: float = 0.03, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """The largest changes alone, with their places.

    Args:
        feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), TopK(share), feedback, each=False)


@recipe
def subsample(*, share: float = 0.03125, rescale: bool = True, **fields: Unpack[Averaging]) -> Method:
    """Changes chosen at random by a key that both ends have: no places are sent."""
    return _compressed(fedavg(**fields), Subsample(share, rescale), each=False)


@recipe
def terngrad(*, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """Each change as -1, 0 or 1 times the largest of its tensor (Wen et al., 2017).

    Args:
        feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), Ternary(), feedback)


@recipe
def drive(
    *, scale: Literal["unbiased", "least-squares"] = "unbiased", feedback: bool = False, **fields: Unpack[Averaging]
) -> Method:
    """Signs after a random rotation, and a scale (Vargaftik et al., 2021).

    Args:
        feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), Drive(scale), feedback, each=False)


@recipe
def eden(*, bits: int = 1, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """A few bits an entry after a random rotation, right on average (Vargaftik et al., 2022).

    Args:
        feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), Eden(bits), feedback, each=False)


def _masked(signed: bool, alpha: float, fields: Masking) -> Method:
    """FedMRN, with signed masks or others."""
    codec = MaskedNoise(signed=signed, alpha=alpha, **pick(MaskFields, fields))
    return _compressed(fedavg(**pick(Averaging, fields)), codec, each=False)


def _compressed(method: Method, codec: Codec, feedback: bool = False, each: bool = True) -> Method:
    """A method with another codec for its weight matrices; ``each`` of them by itself, or all as one."""
    return method.with_parts(codec=OnWeights(Feedback(codec) if feedback else codec, each))
