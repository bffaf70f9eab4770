"""Sub-models: clients hold some channels of every layer, or some entries of every tensor, and train these alone."""

from collections.abc import Callable
from typing import Any, Literal

from gossamer.capacity import SHARES, Capacities
from gossamer.errors import require
from gossamer.fleet import AIR, Fleet
from gossamer.method import Method
from gossamer.methods.registry import recipe
from gossamer.servers import Mean, Weights
from gossamer.solvers import SGD
from gossamer.views import Bernoulli, Channels, View, Windows
from gossamer.widths import Ties

__all__ = ["fedrolex", "heterofl", "submodel_random", "submodel_rolling"]

By = Literal["channel", "coordinate"]
Over = Literal["cohort", "holders"]
Labels = Literal["all", "own"]


@recipe
def submodel_random(
    lr: float = 0.3,
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
    return Method.of(view, solver, server=Mean(weights, over), labels=labels)


@recipe
def submodel_rolling(
    lr: float = 0.3,
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
    return Method.of(view, solver, server=Mean(weights, over), labels=labels)


@recipe
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
    return Method.of(view, solver, server=Mean(weights, over), labels=labels)


@recipe
def fedrolex(
    lr: float = 0.1,
    epochs: int = 5,
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
    return Method.of(view, solver, server=Mean(weights, over), labels=labels)


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
