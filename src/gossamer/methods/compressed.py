"""One bit a parameter, learned while training, and what it is compared with.

Weight matrices are compressed; norms, biases and running statistics go dense in the same message.
"""

import math
from typing import Literal

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
from gossamer.methods.registry import recipe
from gossamer.servers import Average, MaskAverage, Weights
from gossamer.solvers import Adam, PruningSGD
from gossamer.views import Full

__all__ = ["drive", "eden", "fedmrn", "fedmrns", "fedpm", "fedsparsify", "signsgd", "subsample", "terngrad", "topk"]


@recipe
def fedmrn(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    noise: Kind = "uniform",
    alpha: float = 0.01,
    stochastic: bool = True,
    progressive: bool = True,
    rehearsed: bool = True,
    coded: bool = False,
) -> Method:
    """Masks over random noise, learned while training: one bit a parameter (Li et al., 2024)."""
    codec = MaskedNoise(False, noise, alpha, stochastic, progressive, rehearsed, coded)
    return _compressed(fedavg(lr, epochs, steps, batch, weights), codec, each=False)


@recipe
def fedmrns(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    noise: Kind = "uniform",
    alpha: float = 0.005,
    stochastic: bool = True,
    progressive: bool = True,
    rehearsed: bool = True,
    coded: bool = False,
) -> Method:
    """FedMRN with signed masks: the noise is kept or turned round."""
    codec = MaskedNoise(True, noise, alpha, stochastic, progressive, rehearsed, coded)
    return _compressed(fedavg(lr, epochs, steps, batch, weights), codec, each=False)


@recipe
def fedpm(
    lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16, scale: float = math.e
) -> Method:
    """Masks over frozen weights, drawn from trained scores: one bit a parameter (Isik et al., 2023)."""
    solver = Adam(lr, epochs, steps, batch)
    server = MaskAverage("uniform")
    return Method.of(Full(), solver, Lift(SampledMask()), server, send="model", form=Supermask(scale))


@recipe
def fedsparsify(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    sparsity: float = 0.97,
) -> Method:
    """Weights are pruned by magnitude while training, and the pruned model is sent (Stripelis et al., 2022)."""
    solver = PruningSGD(lr, epochs, steps, batch, sparsity=sparsity)
    return Method.of(Full(), solver, Lift(Sparse()), Average(weights), send="model")


@recipe
def signsgd(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    scale: Literal["max", "norm"] | float = "max",
    feedback: bool = False,
) -> Method:
    """The sign of each change, drawn at random so that it is right on average (Safaryan and Richtarik, 2021).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(lr, epochs, steps, batch, weights), StochasticSign(scale), feedback)


@recipe
def topk(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    share: float = 0.03,
    feedback: bool = False,
) -> Method:
    """The largest changes alone, with their places.

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(lr, epochs, steps, batch, weights), TopK(share), feedback, each=False)


@recipe
def subsample(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    share: float = 0.03125,
    rescale: bool = True,
) -> Method:
    """Changes chosen at random by a key that both ends have: no places are sent."""
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Subsample(share, rescale), each=False)


@recipe
def terngrad(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    feedback: bool = False,
) -> Method:
    """Each change as -1, 0 or 1 times the largest of its tensor (Wen et al., 2017).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Ternary(), feedback)


@recipe
def drive(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    scale: Literal["unbiased", "least-squares"] = "unbiased",
    feedback: bool = False,
) -> Method:
    """Signs after a random rotation, and a scale (Vargaftik et al., 2021).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Drive(scale), feedback, each=False)


@recipe
def eden(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    bits: int = 1,
    feedback: bool = False,
) -> Method:
    """A few bits an entry after a random rotation, right on average (Vargaftik et al., 2022).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Eden(bits), feedback, each=False)


def _compressed(method: Method, codec: Codec, feedback: bool = False, each: bool = True) -> Method:
    """A method with another codec for its weight matrices; ``each`` of them by itself, or all as one."""
    return method.with_parts(codec=Lift(Feedback(codec) if feedback else codec, each))
