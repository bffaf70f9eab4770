"""Sub-models: clients hold and train some channels of every layer, some entries, or the largest weights."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, TypedDict, Unpack

from gossamer.core.errors import Mistake, Setting, require, wrong_argument
from gossamer.core.method import Method
from gossamer.core.view import View
from gossamer.fleet.capacity import SHARES, Capacities
from gossamer.fleet.fleet import AIR, Fleet
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Default, Training, pick, recipe
from gossamer.parts.servers.mean import Mean
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.sparse import ThresholdSGD
from gossamer.parts.views.entries import Bernoulli, Windows
from gossamer.parts.views.magnitude import LargestWeights
from gossamer.parts.views.sliced import WidthSlice
from gossamer.tasks.widths import Ties

__all__ = ["fedrolex", "fiarse", "heterofl", "submodel_random", "submodel_rolling"]

By = Literal["channel", "coordinate"]
Ranking = Literal["model", "tensor"]
Over = Literal["cohort", "holders"]
Labels = Literal["all", "own"]


class Damping(TypedDict, total=False):
    """More fields of ``SGD``."""

    momentum: Annotated[float, Default(0.0)]
    weight_decay: Annotated[float, Default(0.0)]
    clip: Annotated[float | None, Default(None)]


class Sharing(Averaging, Damping, total=False):
    """Local training, aggregation, and the size of the part that each client holds."""

    capacities: Annotated[Capacities, Default(SHARES)]
    drawn: Annotated[bool, Default(False)]
    over: Annotated[Over, Default("cohort")]
    labels: Annotated[Labels, Default("all")]


class Narrowing(Sharing, total=False):
    """Local training, aggregation, and the part of the model that each client holds."""

    by: Annotated[By, Default("channel")]
    fleet: Annotated[Fleet | None, Default(None)]
    ties: Annotated[Ties | None, Default(None)]


@recipe(lr=0.3, weights="uniform")
def submodel_random(*, streams: bool = True, **fields: Unpack[Narrowing]) -> Method:
    """Every client trains a random sub-model, drawn anew each round (Algorithm 1 of the paper).

    Deng et al., On the convergence and stability of distributed sub-model training, 2025,
    https://arxiv.org/abs/2511.06132

    Args:
        by: channel trains narrower networks, coordinate masks single entries of tensors
    """
    return _narrowed(fields, partial(WidthSlice, order="random", streams=streams), Bernoulli)


@recipe(lr=0.3, weights="uniform")
def submodel_rolling(*, offsets: int = 64, **fields: Unpack[Narrowing]) -> Method:
    """Every client trains a window of the model; the window moves in shuffled order (Algorithm 2 of the paper).

    Deng et al., On the convergence and stability of distributed sub-model training, 2025,
    https://arxiv.org/abs/2511.06132

    Args:
        by: channel trains narrower networks, coordinate masks single entries of tensors
        offsets: number of window offsets, which is the number of rounds until every offset was used once
    """
    return _narrowed(fields, partial(WidthSlice, order="shuffled", offsets=offsets), partial(Windows, offsets=offsets))


@recipe(batch=10, weights="uniform", momentum=0.9, weight_decay=5e-4, clip=1.0, over="holders", labels="own")
def heterofl(**fields: Unpack[Narrowing]) -> Method:
    """Every client trains the first channels of each layer, according to its capacity.

    Diao et al., HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients, ICLR
    2021, https://arxiv.org/abs/2010.01264

    Args:
        by: channel trains narrower networks, coordinate masks single entries of tensors
    """
    return _narrowed(fields, partial(WidthSlice, order="static"), partial(Windows, offsets=1))


@recipe(batch=10, weights="uniform", momentum=0.9, weight_decay=1e-3, clip=1.0, over="holders", labels="own")
def fedrolex(*, offsets: int = 64, **fields: Unpack[Narrowing]) -> Method:
    """Every client trains a rolling window of channels, which moves by one channel per round.

    Alam et al., FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction, NeurIPS 2022,
    https://arxiv.org/abs/2212.01548

    Args:
        by: channel trains narrower networks, coordinate masks single entries of tensors
        offsets: with by=coordinate, number of window offsets
    """
    return _narrowed(fields, partial(WidthSlice, order="rolling"), partial(Windows, offsets=offsets, shuffled=False))


@recipe(weights="uniform", over="holders")
def fiarse(*, by: Ranking = "model", **fields: Unpack[Sharing]) -> Method:
    """Every client trains the largest weights of the model, chosen anew in each round.

    Wu et al., FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction, NeurIPS 2024,
    https://arxiv.org/abs/2407.19389

    Args:
        by: rank the weights over the whole model, or within each tensor (model, tensor)
    """
    view = LargestWeights(fields["capacities"], fields["drawn"], by)
    solver = ThresholdSGD(**pick(Training, fields), **pick(Damping, fields), by=by)
    return compose(view, solver, server=Mean(fields["weights"], fields["over"]), labels=fields["labels"])


def _narrowed(fields: Narrowing, channels: Callable[..., WidthSlice], entries: Callable[..., View]) -> Method:
    """Return a method whose clients train sub-models, by channels or by entries of tensors."""
    held = channels(fields["capacities"], fields["drawn"], ties=fields["ties"], fleet=fields["fleet"])
    solver, server = SGD(**pick(Training, fields), **pick(Damping, fields)), Mean(fields["weights"], fields["over"])
    return compose(_part(fields["by"], held, entries), solver, server=server, labels=fields["labels"])


def _part(by: By, channels: WidthSlice, entries: Callable[..., View]) -> View:
    """Return the view by channels, or by entries of tensors, which supports neither a fleet nor a width rule."""
    if by == "channel":
        return channels
    about, (fleet, ties, streams) = Setting("", "by", by), (Setting("", name) for name in ("fleet", "ties", "streams"))
    whole = f": masks take as much memory as the whole model, so {{}} has no effect; {AIR}"
    require(
        (by == "coordinate", wrong_argument("by", by, "must be channel or coordinate")),
        (channels.fleet is None, Mistake(whole, about, fleet)),
        (channels.ties is None, Mistake(": entries of tensors are not tied, so {} has no effect", about, ties)),
        (
            channels.streams,
            Mistake(": entries of tensors are drawn one by one, so {} has no effect", about, streams),
        ),
    )
    return entries(channels.capacities, channels.drawn)
