"""Personal sparse models: every client has a mask of its own."""

from typing import Literal, Unpack

from gossamer.core.errors import Mistake, Setting, require, wrong_argument
from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.servers.mean import Mean, Weighting
from gossamer.parts.solvers.schedules import Exponential
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.snapshot import SnapshotSGD
from gossamer.parts.views.personal_mask import PersonalMask
from gossamer.parts.views.pruned import Pruned
from gossamer.parts.views.pruned_channels import PrunedChannels
from gossamer.tasks.widths import Ties

__all__ = ["fedspa", "sub_fedavg"]


@recipe(batch=128, weights="uniform")
def fedspa(
    *,
    weight_decay: float = 5e-4,
    clip: float | None = 10.0,
    decay: float = 0.998,
    density: float = 0.5,
    mask: Literal["dst", "rsm"] = "dst",
    init: Literal["erk", "uniform"] = "erk",
    own_init: bool = False,
    regrow: Literal["gradient", "random"] = "gradient",
    rate: float = 0.5,
    **fields: Unpack[Averaging],
) -> Method:
    """Every client its own sparse model, of which the masks move (Huang et al., 2022).

    Args:
        mask: dst moves masks while training (dynamic sparse training), rsm leaves them as they start
        decay: what each round multiplies the learning rate by
    """
    view = PersonalMask(density, init, own_init, mask == "dst", regrow, rate)
    solver = SGD(**pick(Training, fields), weight_decay=weight_decay, clip=clip, schedule=Exponential(decay))
    return compose(view, solver, server=Mean(fields["weights"]))


@recipe
def sub_fedavg(
    lr: float = 0.1,
    epochs: int = 5,
    batch: int | None = 16,
    weights: Weighting = "uniform",
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

    Args:
        prune: weights one by one; or hybrid: these in fully connected layers, and whole channels of convolutions
        channel_target: with hybrid, share of a layer's channels at which a client prunes no more of them
        channel_share: with hybrid, of the channels held of a layer, how many are pruned at a time, rounded up
        channel_distance: with hybrid, mean difference of the candidates for channels above which a client prunes
            channels
        ties: with hybrid, the width rule by hand (gossamer widths --toml shows its form); none derives it from the
            network
    """
    require(
        (prune in ("weights", "hybrid"), wrong_argument("prune", prune, "must be weights or hybrid")),
        (
            epochs > 1,
            wrong_argument("epochs", epochs, "must be at least 2, as masks after the first and the last are compared"),
        ),
        (
            prune == "hybrid" or ties is None,
            Mistake(
                ": weights are pruned one by one, so {} says nothing",
                Setting("", "prune", "weights"),
                Setting("", "ties"),
            ),
        ),
    )
    by_weight = target, share, distance, accuracy
    by_channel = channel_target, channel_share, channel_distance, ties
    view = PrunedChannels(*by_weight, *by_channel) if prune == "hybrid" else Pruned(*by_weight)
    return compose(view, SnapshotSGD(lr, epochs, batch=batch), server=Mean(weights, over="holders"))
