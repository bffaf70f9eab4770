"""One bit a parameter, learned while training, and what it is compared with.

Weight matrices are compressed; norms, biases and running statistics go dense in the same message.
"""

import math
from typing import Annotated, Literal, TypedDict, Unpack

from gossamer.codecs import (
    Codec,
    Drive,
    Eden,
    Feedback,
    Lift,
    MaskedNoise,
    SampledMask,
    Sparse,
    StochasticSign,
    Subsample,
    Ternary,
    TopK,
)
from gossamer.codecs.noise import Kind
from gossamer.forms import Supermask
from gossamer.method import Method
from gossamer.methods.averaging import fedavg
from gossamer.methods.registry import Averaging, Default, Training, pick, recipe
from gossamer.servers import Average, MaskAverage
from gossamer.solvers import Adam, PruningSGD
from gossamer.views import Full

__all__ = ["drive", "eden", "fedmrn", "fedmrns", "fedpm", "fedsparsify", "signsgd", "subsample", "terngrad", "topk"]


class Masks(TypedDict, total=False):
    """How masks over noise are learned: fields of :class:`~gossamer.codecs.MaskedNoise`."""

    noise: Annotated[Kind, Default("uniform")]
    stochastic: Annotated[bool, Default(True)]
    progressive: Annotated[bool, Default(True)]
    rehearsed: Annotated[bool, Default(True)]
    coded: Annotated[bool, Default(False)]


class Masking(Averaging, Masks, total=False):
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
    return Method.of(Full(), solver, Lift(SampledMask()), server, send="model", form=Supermask(scale))


@recipe
def fedsparsify(*, sparsity: float = 0.7, **fields: Unpack[Averaging]) -> Method:
    """Weights are pruned by magnitude while training, and the pruned model is sent (Stripelis et al., 2022)."""
    solver = PruningSGD(**pick(Training, fields), sparsity=sparsity)
    return Method.of(Full(), solver, Lift(Sparse()), Average(fields["weights"]), send="model")


@recipe
def signsgd(
    *, scale: Literal["max", "norm"] | float = "max", feedback: bool = False, **fields: Unpack[Averaging]
) -> Method:
    """The sign of each change, drawn at random so that it is right on average (Safaryan and Richtarik, 2021).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), StochasticSign(scale), feedback)


@recipe
def topk(*, share: float = 0.03, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """The largest changes alone, with their places.

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

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), Ternary(), feedback)


@recipe
def drive(
    *, scale: Literal["unbiased", "least-squares"] = "unbiased", feedback: bool = False, **fields: Unpack[Averaging]
) -> Method:
    """Signs after a random rotation, and a scale (Vargaftik et al., 2021).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), Drive(scale), feedback, each=False)


@recipe
def eden(*, bits: int = 1, feedback: bool = False, **fields: Unpack[Averaging]) -> Method:
    """A few bits an entry after a random rotation, right on average (Vargaftik et al., 2022).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(**fields), Eden(bits), feedback, each=False)


def _masked(signed: bool, alpha: float, fields: Masking) -> Method:
    """FedMRN, with signed masks or others."""
    codec = MaskedNoise(signed=signed, alpha=alpha, **pick(Masks, fields))
    return _compressed(fedavg(**pick(Averaging, fields)), codec, each=False)


def _compressed(method: Method, codec: Codec, feedback: bool = False, each: bool = True) -> Method:
    """A method with another codec for its weight matrices; ``each`` of them by itself, or all as one."""
    return method.with_parts(codec=Lift(Feedback(codec) if feedback else codec, each))
