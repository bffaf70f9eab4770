"""Personal mixtures: clients learn who to learn with, and their models go round."""

import math
from typing import Literal

from gossamer.capacity import Capacities
from gossamer.errors import require
from gossamer.fleet import AIR, Fleet
from gossamer.method import Exchange, Method
from gossamer.methods.registry import recipe
from gossamer.servers import Compare, Shuffle, WarmUp
from gossamer.solvers import SGD, Probe
from gossamer.views import Channels, Full, View
from gossamer.widths import Ties

__all__ = ["perm", "perm_two_stage"]


@recipe
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
    before = Exchange(view, Probe(probe, noise=lambda_ is None), server=server)
    return Method.of(view, SGD(lr, epochs, steps, batch), server=_shuffle(warmup, bound, lr, radius), before=(before,))


@recipe
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
    before = Exchange(view, first, server=mean), Exchange(view, Probe(probe, noise=lambda_ is None), server=compare)
    return Method.of(view, SGD(lr, epochs, steps, batch), server=_shuffle(warmup, bound, lr, radius), before=before)


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
