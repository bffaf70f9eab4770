"""Personal mixtures (PERM): clients are weighted by gradient similarity, and each model is trained on its mixture."""

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
from gossamer.parts.solvers.probes import GradientProbe
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.entries import Full
from gossamer.parts.views.sliced import WidthSlice
from gossamer.tasks.widths import Ties

__all__ = ["perm", "perm_two_stage"]


class SimilarityFields(TypedDict, total=False):
    """Computation of mixing weights: fields of ``GradientSimilarity``."""

    solve: Annotated[Literal["exact"] | int, Default("exact")]
    sketch: Annotated[int | None, Default(None)]
    keep: Annotated[int | None, Default(None)]
    clusters: Annotated[int | None, Default(None)]


class MixtureFields(Training, SimilarityFields, total=False):
    """Local training, comparison of clients, and model rotation.

    Args:
        lambda_: regularization that spreads mixing weights; none estimates it from the gradient noise
        bound: maximum of lr times loss factor; a larger one is divided among several visits; none disables it
        probe: batch size of the gradients by which clients are compared; none takes all samples
        capacities: width of each client's model (fraction of channels); 1 gives every client the full model
        complexity: penalty of larger models, in units of a typical distance; 0 disables it
        fleet: devices of the clients: each model gets the largest width that fits; none uses capacities
        ties: width rule given by hand (see gossamer widths --toml); none derives it from the network
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
    """Personal mixtures: clients are weighted by gradient similarity while their models rotate.

    Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761

    Args:
        every: recompute mixing weights in every round, or in the first round of each epoch
        global_lr: learning rate of the global model, at which gradients are compared
    """
    view, complexity = _widths(fields)
    probe, lr, radius = _probe(view, fields), fields["global_lr"], fields["radius"]
    compare = _compare(fields, complexity=complexity, lr=lr, radius=radius, every=every)
    before = Exchange(view, probe, Dense(), compare, Dense())
    return compose(view, SGD(**pick(Training, fields)), server=_shuffle(fields), before=(before,))


@recipe(lr=0.01, warmup=20)
def perm_two_stage(**fields: Unpack[MixtureFields]) -> Method:
    """Personal mixtures in two stages: FedAvg, then mixing weights and rotating personal models.

    Deng et al., Distributed Personalized Empirical Risk Minimization, NeurIPS 2023, https://arxiv.org/abs/2310.17761

    Args:
        warmup: rounds of FedAvg; clients are compared after them
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
    """Return the server that compares clients and computes mixing weights."""
    return GradientSimilarity("uniform", "cohort", lam=fields["lambda_"], **pick(SimilarityFields, fields), **more)


def _probe(view: View, fields: MixtureFields) -> GradientProbe:
    """Return the solver that computes the gradients to compare. Its batch size determines the memory of a device."""
    fleet, probe, lam = fields["fleet"], fields["probe"], fields["lambda_"]
    unbounded = f"with a fleet {{}} must be a number, as memory depends on the batch size: add --probe N; {AIR}"
    fewest, why = (2, ", as half of the samples estimate the noise") if lam is None else (1, "")
    unequal = "clients with unequal models need full gradients: leave out sketch, keep and clusters"
    require(
        (view == Full() or not (fields["sketch"] or fields["keep"] or fields["clusters"]), unequal),
        (fleet is None or probe is not None, Mistake(unbounded, None, Setting("", "probe"))),
        (lam is None or 0 <= lam < math.inf, wrong_argument("lambda_", lam, "must be finite and not negative")),
        (probe is None or probe >= fewest, wrong_argument("probe", probe, f"must be at least {fewest}{why}")),
    )
    return GradientProbe(probe, noise=lam is None)


def _shuffle(fields: MixtureFields) -> ModelRotation:
    """Return the server that rotates models, with loss factors bounded by ``bound``."""
    bound = fields["bound"]
    require((bound is None or bound > 0, wrong_argument("bound", bound, "must be positive")))
    return ModelRotation(fields["warmup"], None if bound is None else bound / fields["lr"], fields["radius"])


def _widths(fields: MixtureFields) -> tuple[View, float]:
    """Return the view and the complexity penalty. The penalty is 0 if all clients have the full model."""
    capacities, fleet, ties = fields["capacities"], fields["fleet"], fields["ties"]
    complexity = fields["complexity"]
    finite = wrong_argument("complexity", complexity, "must be finite and not negative")
    require((0 <= complexity < math.inf, finite))
    if set(capacities) != {1} or fleet is not None or ties is not None:
        return WidthSlice(capacities, order="static", ties=ties, fleet=fleet), complexity
    unused = Mistake(": all models have the same size, so it has no effect", Setting("", "complexity"))
    require((complexity in (0, 1), unused))
    return Full(), 0.0
