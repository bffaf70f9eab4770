"""The recipes: each a handful of lines that reads like its paper.

A recipe is a function with typed, defaulted parameters that returns a :class:`~gossamer.method.Method`. Its
parameters are flags of ``gossamer run``; what they mean is told by its docstring, or by that of the part they go to.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from gossamer.capacity import SHARES, Capacities
from gossamer.codecs import (
    Codec,
    Dense,
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
from gossamer.errors import require
from gossamer.fleet import Fleet
from gossamer.forms import Supermask
from gossamer.method import Method
from gossamer.servers import Average, MaskAverage, Mean, Weights
from gossamer.solvers import SGD, Adam, Ditto, Exponential, NotingSGD, PruningSGD
from gossamer.views import Bernoulli, Channels, Full, Personal, Pruned, View, Windows
from gossamer.widths import Ties

By = Literal["channel", "coordinate"]
Over = Literal["cohort", "holders"]
Labels = Literal["all", "own"]


def fedavg(
    lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16, weights: Weights = "samples"
) -> Method:
    """Federated averaging (McMahan et al., 2017): clients train, the server averages their changes."""
    return Method(Full(), SGD(lr, epochs, steps, batch), Dense(), Mean(weights))


def fedsgd(lr: float = 0.5, weights: Weights = "samples") -> Method:
    """One full-batch gradient from each client a round: gradient descent, spread out."""
    return Method(Full(), SGD(lr, steps=1, batch=None), Dense(), Mean(weights))


def fedprox(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    mu: float = 0.01,
) -> Method:
    """FedAvg with a pull back to the global model (Li et al., 2020).

    mu: strength of the pull; 0 is FedAvg
    """
    return Method(Full(), SGD(lr, epochs, steps, batch, proximal=mu), Dense(), Mean(weights))


def local(lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16) -> Method:
    """Every client alone: no communication, each goes on from its own model."""
    return Method(Full(), SGD(lr, epochs, steps, batch), send="nothing")


def centralised(lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16) -> Method:
    """All samples in one place, no federation: the upper reference."""
    return Method(Full(), SGD(lr, epochs, steps, batch), send="nothing", pooled=True)


def ditto(
    lr: float = 0.1,
    epochs: int = 2,
    personal_epochs: int = 3,
    batch: int | None = 16,
    weights: Weights = "samples",
    lam: float = 0.5,
) -> Method:
    """FedAvg, and at each client a model of its own that is pulled towards the global one (Li et al., 2021)."""
    solver = Ditto(lr, epochs, batch=batch, personal_epochs=personal_epochs, lam=lam)
    return Method(Full(), solver, Dense(), Mean(weights))


# One bit a parameter, learned while training, and what it is compared with. Weight matrices are compressed; norms,
# biases and running statistics go dense in the same message.


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


def fedpm(
    lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16, scale: float = math.e
) -> Method:
    """Masks over frozen weights, drawn from trained scores: one bit a parameter (Isik et al., 2023)."""
    solver = Adam(lr, epochs, steps, batch)
    server = MaskAverage("uniform")
    return Method(Full(), solver, Lift(SampledMask()), server, send="model", form=Supermask(scale))


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
    return Method(Full(), solver, Lift(Sparse()), Average(weights), send="model")


def signsgd(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    scale: Literal["max", "norm"] | float = "max",
    feedback: bool = False,
) -> Method:
    """The sign of each change, drawn at random so that it is right on average (Safaryan and Richtarik, 2021)."""
    return _compressed(fedavg(lr, epochs, steps, batch, weights), StochasticSign(scale), feedback)


def topk(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    share: float = 0.03,
    feedback: bool = False,
) -> Method:
    """The largest changes alone, with their places."""
    return _compressed(fedavg(lr, epochs, steps, batch, weights), TopK(share), feedback, each=False)


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


def terngrad(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    feedback: bool = False,
) -> Method:
    """Each change as -1, 0 or 1 times the largest of its tensor (Wen et al., 2017)."""
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Ternary(), feedback)


def drive(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    scale: Literal["unbiased", "least-squares"] = "unbiased",
    feedback: bool = False,
) -> Method:
    """Signs after a random rotation, and a scale (Vargaftik et al., 2021)."""
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Drive(scale), feedback, each=False)


def eden(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    bits: int = 1,
    feedback: bool = False,
) -> Method:
    """A few bits an entry after a random rotation, right on average (Vargaftik et al., 2022)."""
    return _compressed(fedavg(lr, epochs, steps, batch, weights), Eden(bits), feedback, each=False)


# Sub-models: clients that hold some channels of every layer, or some entries of every tensor, and train these alone.


def submodel_random(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "uniform",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    by: By = "channel",
    capacities: Capacities = SHARES,
    drawn: bool = False,
    fleet: Fleet | None = None,
    streams: bool = True,
    ties: Ties | None = None,
    over: Over = "cohort",
    labels: Labels = "all",
) -> Method:
    """Every client trains a random part of the model, drawn anew each round (Deng et al., Algorithm 1).

    by: channel narrows the network, coordinate masks entries of its tensors
    """
    view = _part(by, Channels(capacities, drawn, "random", streams=streams, ties=ties, fleet=fleet), Bernoulli)
    solver = SGD(lr, epochs, steps, batch, momentum, weight_decay, clip)
    return Method(view, solver, server=Mean(weights, over), labels=labels)


def submodel_rolling(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "uniform",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    by: By = "channel",
    capacities: Capacities = SHARES,
    drawn: bool = False,
    fleet: Fleet | None = None,
    ties: Ties | None = None,
    places: int = 64,
    over: Over = "cohort",
    labels: Labels = "all",
) -> Method:
    """Every client trains a window of the model, and all windows have their turn (Deng et al., Algorithm 2).

    by: channel narrows the network, coordinate masks entries of its tensors
    """
    view = _part(by, Channels(capacities, drawn, "shuffled", places, ties=ties, fleet=fleet), Windows, places=places)
    solver = SGD(lr, epochs, steps, batch, momentum, weight_decay, clip)
    return Method(view, solver, server=Mean(weights, over), labels=labels)


def heterofl(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 10,
    weights: Weights = "uniform",
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    clip: float | None = 1.0,
    by: By = "channel",
    capacities: Capacities = SHARES,
    drawn: bool = False,
    fleet: Fleet | None = None,
    ties: Ties | None = None,
    over: Over = "holders",
    labels: Labels = "own",
) -> Method:
    """Every client trains the first channels of each layer, as many as it can (Diao et al., 2021).

    by: channel narrows the network, coordinate masks entries of its tensors
    """
    view = _part(by, Channels(capacities, drawn, "static", ties=ties, fleet=fleet), Windows, places=1)
    solver = SGD(lr, epochs, steps, batch, momentum, weight_decay, clip)
    return Method(view, solver, server=Mean(weights, over), labels=labels)


def fedrolex(
    lr: float = 2e-4,
    epochs: int = 1,
    steps: int | None = None,
    batch: int | None = 10,
    weights: Weights = "uniform",
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    clip: float | None = 1.0,
    by: By = "channel",
    capacities: Capacities = SHARES,
    drawn: bool = False,
    fleet: Fleet | None = None,
    ties: Ties | None = None,
    places: int = 64,
    over: Over = "holders",
    labels: Labels = "own",
) -> Method:
    """Every client trains neighbouring channels of each layer, which move on by one a round (Alam et al., 2022).

    by: channel narrows the network, coordinate masks entries of its tensors
    """
    channels = Channels(capacities, drawn, "rolling", ties=ties, fleet=fleet)
    view = _part(by, channels, Windows, places=places, shuffled=False)
    solver = SGD(lr, epochs, steps, batch, momentum, weight_decay, clip)
    return Method(view, solver, server=Mean(weights, over), labels=labels)


# Personal sparse models: every client has a mask of its own.


def fedspa(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 128,
    weights: Weights = "uniform",
    weight_decay: float = 5e-4,
    clip: float | None = 10.0,
    decay: float = 0.998,
    density: float = 0.5,
    mask: Literal["dst", "rsm"] = "dst",
    init: Literal["erk", "uniform"] = "erk",
    own_init: bool = False,
    regrow: Literal["gradient", "random"] = "gradient",
    rate: float = 0.5,
) -> Method:
    """Every client its own sparse model, of which the masks move (Huang et al., 2022).

    mask: dst moves masks while training (dynamic sparse training), rsm leaves them as they start
    decay: what each round multiplies the learning rate by
    """
    view = Personal(density, init, own_init, mask == "dst", regrow, rate)
    solver = SGD(lr, epochs, steps, batch, weight_decay=weight_decay, clip=clip, schedule=Exponential(decay))
    return Method(view, solver, server=Mean(weights))


def sub_fedavg(
    lr: float = 0.1,
    epochs: int = 5,
    batch: int | None = 16,
    weights: Weights = "uniform",
    target: float = 0.5,
    share: float = 0.05,
    distance: float = 1e-4,
    accuracy: float = 0.5,
) -> Method:
    """Every client prunes its own model round by round, and shares what is left (Vahidian et al., 2021)."""
    view = Pruned(target, share, distance, accuracy)
    return Method(view, NotingSGD(lr, epochs, batch=batch), server=Mean(weights, over="holders"))


def _part(by: By, channels: Channels, entries: Callable[..., View], **more: Any) -> View:
    """The view by channels; or one by entries of tensors, for which a fleet or a width rule mean nothing."""
    if by == "channel":
        return channels
    require(
        (by == "coordinate", f"by must be channel or coordinate, got {by!r}"),
        (channels.fleet is None, "by=coordinate: masks take as much memory as the whole model, so fleet says nothing"),
        (channels.ties is None, "by=coordinate: entries of tensors are not tied, so ties says nothing"),
        (channels.streams, "by=coordinate: entries of tensors are drawn one by one, so streams says nothing"),
    )
    return entries(channels.capacities, channels.drawn, **more)


def _compressed(method: Method, codec: Codec, feedback: bool = False, each: bool = True) -> Method:
    """A method with another codec for its weight matrices; ``each`` of them by itself, or all as one."""
    return method.with_parts(codec=Lift(Feedback(codec) if feedback else codec, each))


METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedsgd": fedsgd,
    "fedprox": fedprox,
    "local": local,
    "centralised": centralised,
    "ditto": ditto,
    "fedmrn": fedmrn,
    "fedmrns": fedmrns,
    "fedpm": fedpm,
    "fedsparsify": fedsparsify,
    "signsgd": signsgd,
    "topk": topk,
    "subsample": subsample,
    "terngrad": terngrad,
    "drive": drive,
    "eden": eden,
    "submodel-random": submodel_random,
    "submodel-rolling": submodel_rolling,
    "heterofl": heterofl,
    "fedrolex": fedrolex,
    "fedspa": fedspa,
    "sub-fedavg": sub_fedavg,
}
"""Recipes by the name that the command line uses."""
