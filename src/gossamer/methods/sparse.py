"""Personal sparse models: every client has its own mask."""

from collections.abc import Iterator
from typing import Literal, Unpack

from gossamer.core.errors import Mistake, Setting, require, wrong_argument
from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.servers.mean import Mean, Weighting
from gossamer.parts.solvers.schedules import Exponential
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.sparse import SnapshotSGD
from gossamer.parts.views.personal_mask import PersonalMask
from gossamer.parts.views.pruned import Pruned, PrunedChannels
from gossamer.parts.views.sparsity import Distribution
from gossamer.tasks.widths import Ties

__all__ = ["fedspa", "sub_fedavg"]

STILL = ": the masks do not move, so {} has no effect"
BY_WEIGHT = ": only hybrid pruning removes channels, so {} has no effect"


@recipe(batch=128, weights="uniform")
def fedspa(
    *,
    weight_decay: float = 5e-4,
    clip: float | None = 10.0,
    decay: float = 0.998,
    density: float = 0.5,
    mask: Literal["dst", "rsm"] = "dst",
    distribution: Distribution = "erk",
    own_init: bool = False,
    regrow: Literal["gradient", "random"] = "gradient",
    rate: float = 0.5,
    **fields: Unpack[Averaging],
) -> Method:
    """Personal sparse masks that move while training (dynamic sparse training).

    Huang et al., Achieving Personalized Federated Learning with Sparse Local Models, 2022,
    https://arxiv.org/abs/2201.11380

    Args:
        distribution: density of each tensor: erk (small tensors are denser), uniform (the same for all tensors) or
            uniform-weights (the same for all weights; biases and norms are held whole)
        mask: dst changes the masks after training (dynamic sparse training), rsm keeps the initial masks
        decay: factor of the learning rate per round
    """
    if mask == "rsm":
        require(*_unused(PersonalMask, STILL, Setting("", "mask", "rsm"), regrow=regrow, rate=rate))
    view = PersonalMask(density, distribution, own_init, mask == "dst", regrow, rate)
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
    """Each client prunes its own model step by step; the server averages the remaining weights.

    Vahidian et al., Personalized Federated Learning by Structured and Unstructured Pruning under Data Heterogeneity,
    2021, https://arxiv.org/abs/2105.00562

    Args:
        epochs: local epochs per round, at least 2
        prune: weights prunes single weights; hybrid prunes convolution channels and fully connected weights
        channel_target: with hybrid, fraction of a layer's channels at which a client stops pruning
        channel_share: with hybrid, fraction of a layer's remaining channels pruned at a time, rounded up
        channel_distance: with hybrid, like distance, for masks of channels
        ties: with hybrid, width rule given by hand; none derives it from the network
    """
    require(
        (prune in ("weights", "hybrid"), wrong_argument("prune", prune, "must be weights or hybrid")),
        (
            epochs > 1,
            wrong_argument("epochs", epochs, "must be at least 2, to compare masks after the first and last epoch"),
        ),
    )
    if prune == "weights":
        given: dict[str, object] = {"channel_target": channel_target, "channel_share": channel_share}
        given |= {"channel_distance": channel_distance, "ties": ties}
        require(*_unused(PrunedChannels, BY_WEIGHT, Setting("", "prune", "weights"), **given))
    by_weight = target, share, distance, accuracy
    by_channel = channel_target, channel_share, channel_distance, ties
    view = PrunedChannels(*by_weight, *by_channel) if prune == "hybrid" else Pruned(*by_weight)
    return compose(view, SnapshotSGD(lr, epochs, batch=batch), server=Mean(weights, over="holders"))


def _unused(part: type, rest: str, about: Setting, **given: object) -> Iterator[tuple[bool, Mistake]]:
    """Return the mistakes of fields that have no effect here, and yet another value than the part's default."""
    return ((value == getattr(part, name), Mistake(rest, about, Setting("", name))) for name, value in given.items())
