"""Personal mixtures: clients learn who to learn with, and their models go round."""

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, TypedDict, Unpack

from gossamer.core.errors import Mistake, Setting, require, wrong_argument
from gossamer.core.method import Exchange, Method
from gossamer.core.view import View
from gossamer.fleet.capacity import Capacities
from gossamer.fleet.fleet import AIR, Fleet
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Default, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.gradient_similarity import GradientSimilarity
from gossamer.parts.servers.model_rotation import ModelRotation, WarmUp
from gossamer.parts.solvers.gradient_probe import GradientProbe
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.full import Full
from gossamer.parts.views.width_slice import WidthSlice
from gossamer.tasks.widths import Ties

__all__ = ["perm", "perm_two_stage"]


class SimilarityFields(TypedDict, total=False):
    """How weights are found: fields of ``GradientSimilarity``."""

    solve: Annotated[Literal["exact"] | int, Default("exact")]
    sketch: Annotated[int | None, Default(None)]
    keep: Annotated[int | None, Default(None)]


class MixtureFields(Training, SimilarityFields, total=False):
    """How clients train, how they are compared, and what is done with the weights found.

    Args:
        lambda_: how strongly a client's weight is spread over others; none chooses it from the noise of gradients
        bound: the largest learning rate times number of clients times weight: what is above is capped; none is no bound
        probe: samples in the batch of the gradient by which clients are compared; none means all of a client's
        capacities: with 1 all models are whole; else the width of each client's own
        complexity: how much farther away a larger model is, times sqrt(parameters / samples), where models are unequal
        fleet: the clients' devices: each model is as wide as its client's memory allows; none means capacities count
        ties: the width rule by hand (gossamer widths --toml shows its form); none derives it from the network
    """

    warmup: Annotated[int, Default(10)]
    lambda_: Annotated[float | None, Default(None)]
    bound: Annotated[float | None, Default(0.5)]
    global_lr: Annotated[float, Default(0.1)]
    probe: Annotated[int | None, Default(None)]
    capacities: Annotated[Capacities, Default((1.0,))]
    complexity: Annotated[float, Default(1.0)]
    fleet: Annotated[Fleet | None, Default(None)]
    ties: Annotated[Ties | None, Default(None)]
    radius: Annotated[float | None, Default(None)]


@recipe(warmup=3, global_lr=0.3)
def perm(*, every: Literal["round", "epoch"] = "round", **fields: Unpack[MixtureFields]) -> Method:
    """Each client's model goes round those with data like its own, who are found out meanwhile (Deng et al., 2023).

    Args:
        global_lr: learning rate of the global model, by whose gradients clients are compared
    """
    view, complexity = _widths(fields)
    probe, lr, radius = _probe(view, fields), fields["global_lr"], fields["radius"]
    compare = _compare(fields, complexity=complexity, lr=lr, radius=radius, every=every)
    before = Exchange(view, probe, Dense(), compare, Dense())
    return compose(view, SGD(**pick(Training, fields)), server=_shuffle(fields), before=(before,))


@recipe(lr=0.05, warmup=20)
def perm_two_stage(**fields: Unpack[MixtureFields]) -> Method:
    """First FedAvg; then clients are compared once at its model, and each one's own goes round (Deng et al., 2023).

    Args:
        warmup: rounds of FedAvg
        global_lr: learning rate of FedAvg
    """
    view, complexity = _widths(fields)
    solver, probe = SGD(**pick(Training, fields)), _probe(view, fields)
    mean = WarmUp("uniform", "cohort", fields["radius"], rounds=fields["warmup"])
    compare = _compare(fields, complexity=complexity, lr=0.0, every="round", once=fields["warmup"])
    warm = replace(solver, lr=fields["global_lr"])
    before = Exchange(view, warm, Dense(), mean, Dense()), Exchange(view, probe, Dense(), compare, Dense())
    return compose(view, solver, server=_shuffle(fields), before=before)


def _compare(fields: MixtureFields, **more: Any) -> GradientSimilarity:
    """The server that compares clients and finds their weights."""
    return GradientSimilarity("uniform", "cohort", lam=fields["lambda_"], **pick(SimilarityFields, fields), **more)


def _probe(view: View, fields: MixtureFields) -> GradientProbe:
    """The gradient by which clients are compared; memory depends on its batch."""
    fleet, probe, lam = fields["fleet"], fields["probe"], fields["lambda_"]
    few = f"with a fleet {{}} must be a number, as memory depends on the batch: add --probe N; {AIR}"
    unequal = "clients with unequal models are compared in full: no sketch, no keep"
    require(
        (view == Full() or not (fields["sketch"] or fields["keep"]), unequal),
        (fleet is None or probe is not None, Mistake(few, None, Setting("", "probe"))),
        (lam is None or 0 <= lam < math.inf, wrong_argument("lambda_", lam, "must be a number from 0 on")),
    )
    return GradientProbe(probe, noise=lam is None)


def _shuffle(fields: MixtureFields) -> ModelRotation:
    """Models that go round, with losses multiplied by no more than keeps a step within a bound."""
    bound = fields["bound"]
    require((bound is None or bound > 0, wrong_argument("bound", bound, "must be positive")))
    return ModelRotation(fields["warmup"], None if bound is None else bound / fields["lr"], fields["radius"])


def _widths(fields: MixtureFields) -> tuple[View, float]:
    """Whole models, or as wide as their clients hold; and how much a size counts: nothing where all are whole."""
    capacities, fleet, ties = fields["capacities"], fields["fleet"], fields["ties"]
    if set(capacities) == {1} and fleet is None and ties is None:
        return Full(), 0.0
    return WidthSlice(capacities, order="static", ties=ties, fleet=fleet), fields["complexity"]
