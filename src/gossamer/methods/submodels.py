"""Sub-models: clients hold some channels of every layer, or some entries of every tensor, and train these alone."""

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
from gossamer.parts.views.bernoulli import Bernoulli
from gossamer.parts.views.width_slice import WidthSlice
from gossamer.parts.views.windows import Windows
from gossamer.tasks.widths import Ties

__all__ = ["fedrolex", "heterofl", "submodel_random", "submodel_rolling"]

By = Literal["channel", "coordinate"]
Over = Literal["cohort", "holders"]
Labels = Literal["all", "own"]


class Damping(TypedDict, total=False):
    """More fields of ``SGD``."""

    momentum: Annotated[float, Default(0.0)]
    weight_decay: Annotated[float, Default(0.0)]
    clip: Annotated[float | None, Default(None)]


class Narrowing(Averaging, Damping, total=False):
    """How clients train and are averaged, and which part of the model each holds."""

    by: Annotated[By, Default("channel")]
    capacities: Annotated[Capacities, Default(SHARES)]
    drawn: Annotated[bool, Default(False)]
    fleet: Annotated[Fleet | None, Default(None)]
    ties: Annotated[Ties | None, Default(None)]
    over: Annotated[Over, Default("cohort")]
    labels: Annotated[Labels, Default("all")]


@recipe(lr=0.3, weights="uniform")
def submodel_random(*, streams: bool = True, **fields: Unpack[Narrowing]) -> Method:
    """Every client trains a random part of the model, drawn anew each round (Deng et al., Algorithm 1).

    Args:
        by: channel narrows the network, coordinate masks entries of its tensors
    """
    return _narrowed(fields, partial(WidthSlice, order="random", streams=streams), Bernoulli)


@recipe(lr=0.3, weights="uniform")
def submodel_rolling(*, places: int = 64, **fields: Unpack[Narrowing]) -> Method:
    """Every client trains a window of the model, and all windows have their turn (Deng et al., Algorithm 2).

    Args:
        by: channel narrows the network, coordinate masks entries of its tensors
    """
    return _narrowed(fields, partial(WidthSlice, order="shuffled", places=places), partial(Windows, places=places))


@recipe(batch=10, weights="uniform", momentum=0.9, weight_decay=5e-4, clip=1.0, over="holders", labels="own")
def heterofl(**fields: Unpack[Narrowing]) -> Method:
    """Every client trains the first channels of each layer, as many as it can (Diao et al., 2021).

    Args:
        by: channel narrows the network, coordinate masks entries of its tensors
    """
    return _narrowed(fields, partial(WidthSlice, order="static"), partial(Windows, places=1))


@recipe(batch=10, weights="uniform", momentum=0.9, weight_decay=1e-3, clip=1.0, over="holders", labels="own")
def fedrolex(*, places: int = 64, **fields: Unpack[Narrowing]) -> Method:
    """Every client trains neighbouring channels of each layer, which move on by one a round (Alam et al., 2022).

    Args:
        by: channel narrows the network, coordinate masks entries of its tensors
    """
    return _narrowed(fields, partial(WidthSlice, order="rolling"), partial(Windows, places=places, shuffled=False))


def _narrowed(fields: Narrowing, channels: Callable[..., WidthSlice], entries: Callable[..., View]) -> Method:
    """Clients that train a part of the model: by channels, or by entries of tensors."""
    held = channels(fields["capacities"], fields["drawn"], ties=fields["ties"], fleet=fields["fleet"])
    solver, server = SGD(**pick(Training, fields), **pick(Damping, fields)), Mean(fields["weights"], fields["over"])
    return compose(_part(fields["by"], held, entries), solver, server=server, labels=fields["labels"])


def _part(by: By, channels: WidthSlice, entries: Callable[..., View]) -> View:
    """The view by channels; or one by entries of tensors, for which a fleet or a width rule mean nothing."""
    if by == "channel":
        return channels
    about, (fleet, ties, streams) = Setting("", "by", by), (Setting("", name) for name in ("fleet", "ties", "streams"))
    whole = f": masks take as much memory as the whole model, so {{}} says nothing; {AIR}"
    require(
        (by == "coordinate", wrong_argument("by", by, "must be channel or coordinate")),
        (channels.fleet is None, Mistake(whole, about, fleet)),
        (channels.ties is None, Mistake(": entries of tensors are not tied, so {} says nothing", about, ties)),
        (channels.streams, Mistake(": entries of tensors are drawn one by one, so {} says nothing", about, streams)),
    )
    return entries(channels.capacities, channels.drawn)
