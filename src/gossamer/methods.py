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
    OneBit,
    SampledMask,
    Sparse,
    StochasticSign,
    Subsample,
    Ternary,
    TopK,
)
from gossamer.codecs.noise import Kind
from gossamer.codecs.one_bit import Decoder
from gossamer.errors import require
from gossamer.fleet import AIR, Fleet
from gossamer.forms import Supermask
from gossamer.method import Method
from gossamer.servers import Average, CodedMean, Compare, MaskAverage, Mean, Shuffle, WarmUp, Weights
from gossamer.solvers import SGD, Adam, Ditto, Exponential, NotingSGD, PerFedAvg, PFedMe, Probe, PruningSGD
from gossamer.views import Bernoulli, Channels, Full, Magnitude, Personal, Pruned, PrunedChannels, View, Windows
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


def fedavg_tuned(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    tune_epochs: int = 1,
) -> Method:
    """FedAvg, whose clients train the global model some more, alone, before they deploy it.

    tune_epochs: passes over its own samples by which a client tunes the global model
    """
    require((tune_epochs >= 1, f"tune_epochs must be at least 1, got {tune_epochs}"))
    return fedavg(lr, epochs, steps, batch, weights).with_parts(tune=SGD(lr, tune_epochs, batch=batch))


def per_fedavg(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    inner: float = 0.05,
) -> Method:
    """A global model that is good after one step on a client's own samples, first order (Fallah et al., 2020).

    inner: rate of the step ahead, and of the one step by which a client tunes the global model; 0: neither
    """
    solver = PerFedAvg(lr, epochs, steps, batch, inner=inner)
    tune = SGD(inner, steps=1, batch=batch) if inner else None
    return Method(Full(), solver, Dense(), Mean(weights), tune=tune)


def pfedme(
    lr: float = 0.01,
    personal_lr: float = 0.05,
    steps: int = 20,
    inner_steps: int = 5,
    batch: int | None = 20,
    weights: Weights = "samples",
    weight_decay: float = 0.0,
    lam: float = 15.0,
    beta: float = 1.0,
) -> Method:
    """Each client a model of its own near the global one, which follows them (Dinh et al., 2020).

    beta: how far the global model moves towards the mean of what clients send: 1 all the way
    """
    solver = PFedMe(
        lr,
        steps=steps,
        batch=batch,
        weight_decay=weight_decay,
        personal_lr=personal_lr,
        inner_steps=inner_steps,
        lam=lam,
    )
    return Method(Full(), solver, Dense(), Mean(weights, step=beta))


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
    """The sign of each change, drawn at random so that it is right on average (Safaryan and Richtarik, 2021).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
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
    """The largest changes alone, with their places.

    feedback: whether what a message has lost is remembered, and added to the next change
    """
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
    """Each change as -1, 0 or 1 times the largest of its tensor (Wen et al., 2017).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
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
    """Signs after a random rotation, and a scale (Vargaftik et al., 2021).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
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
    """A few bits an entry after a random rotation, right on average (Vargaftik et al., 2022).

    feedback: whether what a message has lost is remembered, and added to the next change
    """
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
    prune: Literal["weights", "hybrid"] = "weights",
    channel_target: float = 0.5,
    channel_share: float = 0.45,
    channel_distance: float = 0.01,
    ties: Ties | None = None,
) -> Method:
    """Every client prunes its own model round by round, and shares what is left (Vahidian et al., 2021).

    prune: weights one by one; or hybrid: these in fully connected layers, and whole channels of convolutions
    channel_target: with hybrid, share of a layer's channels at which a client prunes no more of them
    channel_share: with hybrid, of the channels held of a layer, how many are pruned at a time, rounded up
    channel_distance: with hybrid, mean difference of the candidates for channels above which a client prunes channels
    ties: with hybrid, the width rule by hand (gossamer widths --toml shows its form); none derives it from the network
    """
    require(
        (prune in ("weights", "hybrid"), f"prune must be weights or hybrid, got {prune!r}"),
        (
            epochs > 1,
            f"epochs must be at least 2, as the masks after the first and the last are compared, got {epochs}",
        ),
        (prune == "hybrid" or ties is None, "prune=weights: weights are pruned one by one, so ties says nothing"),
    )
    by_weight = target, share, distance, accuracy
    by_channel = channel_target, channel_share, channel_distance, ties
    view = PrunedChannels(*by_weight, *by_channel) if prune == "hybrid" else Pruned(*by_weight)
    return Method(view, NotingSGD(lr, epochs, batch=batch), server=Mean(weights, over="holders"))


# Personal mixtures: clients learn who to learn with, and their models go round.


def perm(
    lr: float = 0.05,
    epochs: int = 1,
    steps: int | None = None,
    batch: int | None = 16,
    warmup: int = 10,
    lambda_: float | None = None,
    bound: float | None = 0.5,
    global_lr: float = 0.1,
    probe: int | None = None,
    solve: Literal["exact"] | int = "exact",
    every: Literal["round", "epoch"] = "round",
    sketch: int | None = None,
    keep: int | None = None,
    capacities: Capacities = (1.0,),
    complexity: float = 1.0,
    fleet: Fleet | None = None,
    ties: Ties | None = None,
    radius: float | None = None,
) -> Method:
    """Each client's model goes round those with data like its own, who are found out meanwhile (Deng et al., 2023).

    lambda_: how strongly a client's weight is spread over others; none chooses it from the noise of gradients
    bound: the largest learning rate times number of clients times weight: what is above is capped; none is no bound
    global_lr: learning rate of the global model, by whose gradients clients are compared
    probe: samples in the batch of such a gradient; none means all of a client's
    capacities: with 1 all models are whole; else the width of each client's own
    complexity: how much farther away a larger model is, times sqrt(parameters / samples), where models are unequal
    fleet: the clients' devices: each model is as wide as its client's memory allows; none means capacities count
    ties: the width rule by hand (gossamer widths --toml shows its form); none derives it from the network
    """
    view, size = _widths(capacities, fleet, ties, complexity)
    _check_compared(view, fleet, probe, lambda_, sketch, keep)
    server = Compare("uniform", "cohort", radius, global_lr, lambda_, solve, every, None, sketch, keep, size)
    before = Method(view, Probe(probe, noise=lambda_ is None), server=server)
    return Method(view, SGD(lr, epochs, steps, batch), server=_shuffle(warmup, bound, lr, radius), before=(before,))


def perm_two_stage(
    lr: float = 0.05,
    epochs: int = 1,
    steps: int | None = None,
    batch: int | None = 16,
    warmup: int = 20,
    lambda_: float | None = None,
    bound: float | None = 0.5,
    global_lr: float = 0.1,
    probe: int | None = None,
    solve: Literal["exact"] | int = "exact",
    sketch: int | None = None,
    keep: int | None = None,
    capacities: Capacities = (1.0,),
    complexity: float = 1.0,
    fleet: Fleet | None = None,
    ties: Ties | None = None,
    radius: float | None = None,
) -> Method:
    """First FedAvg; then clients are compared once at its model, and each one's own goes round (Deng et al., 2023).

    warmup: rounds of FedAvg
    lambda_: how strongly a client's weight is spread over others; none chooses it from the noise of gradients
    bound: the largest learning rate times number of clients times weight: what is above is capped; none is no bound
    global_lr: learning rate of FedAvg
    probe: samples in the batch of the gradient by which clients are compared; none means all of a client's
    capacities: with 1 all models are whole; else the width of each client's own
    complexity: how much farther away a larger model is, times sqrt(parameters / samples), where models are unequal
    fleet: the clients' devices: each model is as wide as its client's memory allows; none means capacities count
    ties: the width rule by hand (gossamer widths --toml shows its form); none derives it from the network
    """
    view, size = _widths(capacities, fleet, ties, complexity)
    _check_compared(view, fleet, probe, lambda_, sketch, keep)
    first, mean = SGD(global_lr, epochs, steps, batch), WarmUp("uniform", "cohort", radius, rounds=warmup)
    compare = Compare("uniform", "cohort", None, 0.0, lambda_, solve, "round", warmup, sketch, keep, size)
    before = Method(view, first, server=mean), Method(view, Probe(probe, noise=lambda_ is None), server=compare)
    return Method(view, SGD(lr, epochs, steps, batch), server=_shuffle(warmup, bound, lr, radius), before=before)


def _shuffle(warmup: int, bound: float | None, lr: float, radius: float | None) -> Shuffle:
    """Models that go round, with losses multiplied by no more than keeps a step within a bound."""
    require((bound is None or bound > 0, f"bound must be positive, got {bound}"))
    return Shuffle(warmup, None if bound is None else bound / lr, radius)


def _widths(capacities: Capacities, fleet: Fleet | None, ties: Ties | None, complexity: float) -> tuple[View, float]:
    """Whole models, or as wide as their clients hold; and how much a size counts: nothing where all are whole."""
    if set(capacities) == {1} and fleet is None and ties is None:
        return Full(), 0.0
    return Channels(capacities, order="static", ties=ties, fleet=fleet), complexity


def _check_compared(
    view: View, fleet: Fleet | None, probe: int | None, lambda_: float | None, sketch: int | None, keep: int | None
) -> None:
    few = f"with a fleet probe must be a number, as memory depends on the batch: add --probe N; {AIR}"
    equal, fits = view == Full(), lambda_ is None or 0 <= lambda_ < math.inf
    require(
        (equal or not (sketch or keep), "clients with unequal models are compared in full: no sketch, no keep"),
        (fleet is None or probe is not None, few),
        (fits, f"lambda must be a number from 0 on, got {lambda_}"),
    )


# Thin links: pruned models, and signs of a few measurements.


def onebit_cs(
    lr: float = 0.5,
    weights: Weights = "samples",
    ratio: tuple[float, ...] = (0.5,),
    by: Literal["model", "tensor"] = "model",
    rise: int = 0,
    measurements: float = 0.25,
    rows: int | None = None,
    matrix: Literal["hadamard", "gaussian"] = "hadamard",
    fresh: bool = True,
    decoder: Decoder = "least-squares",
    share: float = 0.1,
    length: float | None = None,
    retain: Literal["nothing", "signs", "change"] = "change",
    coefficient: float = 1.0,
    accumulate: bool = False,
) -> Method:
    """One gradient of a pruned model a round, as signs of measurements of it (Guan, Hou et al.).

    retain: what becomes of a message that is lost: nothing, or its signs or the gradient are sent with the next
    """
    codec = OneBit(measurements, rows, matrix, fresh, decoder, share, length, retain, coefficient, accumulate)
    solver = SGD(lr, steps=1, batch=None)
    return Method(Magnitude(ratio, by, rise), solver, Lift(codec), CodedMean(weights))


def _part(by: By, channels: Channels, entries: Callable[..., View], **more: Any) -> View:
    """The view by channels; or one by entries of tensors, for which a fleet or a width rule mean nothing."""
    if by == "channel":
        return channels
    whole = f"by=coordinate: masks take as much memory as the whole model, so fleet says nothing; {AIR}"
    require(
        (by == "coordinate", f"by must be channel or coordinate, got {by!r}"),
        (channels.fleet is None, whole),
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
    "fedavg-tuned": fedavg_tuned,
    "per-fedavg": per_fedavg,
    "pfedme": pfedme,
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
    "onebit-cs": onebit_cs,
    "perm": perm,
    "perm-two-stage": perm_two_stage,
}
"""Recipes by the name that the command line uses."""
