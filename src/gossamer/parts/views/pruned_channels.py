"""Personal masks that prune fully connected weights and whole convolution channels (hybrid Sub-FedAvg).

Vahidian et al., Personalized Federated Learning by Structured and Unstructured Pruning under Data Heterogeneity, 2021,
https://arxiv.org/abs/2105.00562.

The network's width rule (``gossamer.tasks.widths``) defines the entries of a channel: rows of one layer's weights,
columns of the next layer's weights, the bias, and the norm with its running statistics. Residual connections and group
norms can tie further tensors to them. A channel is held in all of these tensors or in none.

The least important channels are pruned. The importance of a channel is the scale of its norms (network slimming, Liu et
al., 2017, https://arxiv.org/abs/1708.06519). Without such a scale it is the squared norm of its weights.

Fully connected weights are pruned first, as in ``Pruned``. Channels follow, with their own thresholds.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Payload, State
from gossamer.fleet.capacity import held as rounded_up
from gossamer.parts.views import masks
from gossamer.parts.views.pruned import (
    BoundPruned,
    Flags,
    Pruned,
    applied,
    check_accuracy,
    differences,
    mask_update,
    opened,
)
from gossamer.tasks.widths import Axis, Ties, Widths

CONVOLUTION = 3
"""Minimum number of dimensions of a convolution's weights."""


@dataclass(frozen=True)
class PrunedChannels(Pruned):
    """Personal masks that prune fully connected weights and convolution channels, each down to a target.

    Args:
        target: density of the fully connected weights at which a client stops pruning them
        share: fraction of the remaining fully connected weights that is pruned at a time
        distance: prune weights only if their masks after the first and last epoch differ by more than this
        accuracy: prune only if the pruned model's training accuracy is above this value
        channel_target: fraction of a layer's channels at which a client stops pruning; at least one is kept
        channel_share: fraction of a layer's remaining channels that is pruned at a time, rounded up
        channel_distance: prune channels only if their masks after the first and last epoch differ by more
        ties: width rule given by hand (see gossamer widths --toml); none derives it from the network
    """

    channel_target: float = 0.5
    channel_share: float = 0.45
    channel_distance: float = 0.01
    ties: Ties | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        target, share, distance = self.channel_target, self.channel_share, self.channel_distance
        require(
            (0 < target <= 1, wrong(self, "channel_target", "must be in (0, 1]")),
            (0 < share < 1, wrong(self, "channel_share", "must be above 0 and below 1")),
            (distance >= 0, wrong(self, "channel_distance", "must not be negative")),
        )

    def bind(self, context: Context) -> "BoundPrunedChannels":
        """Return the view with the fully connected weights, the convolution channels and the tensors they are in."""
        check_accuracy(self, context)
        network, like = context.network, context.network.outline()
        rule: Widths = network.widths() if self.ties is None else Widths.stated(self.ties, like)
        wide = [name for name in network.trained if like[name].dim() >= CONVOLUTION]
        groups = {group for name, axes in rule.axes if name in wide for axis in axes for group in axis.groups}
        none = "PrunedChannels: the network has no convolution channels to prune: use Pruned() to prune weights only"
        require((bool(groups), none))
        names = tuple(name for name in network.trained if like[name].dim() == 2)
        have = {name for name, axes in rule.axes if any(axis.groups & groups for axis in axes)}
        channels = tuple((group, size) for group, size in rule.sizes if group in groups)
        masked = sorted({*names, *have})  # in name order, as in stored masks
        tree.check_entries({name: like[name] for name in masked}, "PrunedChannels")
        sizes = tuple((name, like[name].numel()) for name in masked)
        return BoundPrunedChannels(**vars(self), names=names, sizes=sizes, widths=replace(rule, sizes=channels))


@dataclass(frozen=True)
class BoundPrunedChannels(BoundPruned, PrunedChannels):
    """``PrunedChannels`` with the width rule of the channels that can be pruned."""

    widths: Widths = field(kw_only=True)

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune weights, then channels, each if its three conditions hold."""
        held = opened(memory["mask"], info.weights)
        weights = {name: held[name] for name in self.names}
        return mask_update(memory, held, self.narrowed(held | self.thinned(weights, info), info))

    def narrowed(self, held: Flags, info: LocalTrainingInfo) -> Flags:
        """Return the masks without the least important channels, or ``held`` itself if a condition fails."""
        channels = self.channels(held, info.weights)
        early, late = (self._fewer(channels, weights) for weights in (info.carry["early"], info.weights))
        if differences(early, late) <= self.channel_distance * sum(map(len, channels.values())):
            return held
        inside = self._inside(late, info.weights)
        kept = {name: mask & inside[name] for name, mask in held.items()}
        return kept if info.accuracy(applied(kept, info.weights)) > self.accuracy else held

    def channels(self, held: Flags, like: Params) -> Flags:
        """Return the held channels of each group: those with an entry in a convolution's mask."""
        whole = {name: mask.view(like[name].shape) for name, mask in held.items()}
        found = {}
        for group, _ in self.widths.sizes:
            first = next(name for name in self._having(group) if like[name].dim() >= CONVOLUTION)
            found[group] = self._sums({first: whole[first]}, group) > 0
        return found

    def _fewer(self, channels: Flags, weights: Params) -> Flags:
        """Return the channels without the least important ones. The target bounds their number from below."""
        found = {}
        for group, mask in channels.items():
            count = int(mask.sum())
            removed = min(rounded_up(count, self.channel_share), count - rounded_up(len(mask), self.channel_target))
            importance = torch.where(mask, self.importance(group, weights), torch.inf)
            found[group] = mask & ~masks.smallest(importance, max(0, removed))
        return found

    def importance(self, group: str, weights: Params) -> Tensor:
        """Return the importance of each channel of a group: the sum of its norm scales, or of its squared weights."""
        having = {name: weights[name] for name in self._having(group)}
        scales = {name: w.abs() for name, w in having.items() if w.dim() == 1 and name.split(".")[-1] == "weight"}
        return self._sums(scales or {name: w.square() for name, w in having.items() if w.dim() > 1}, group)

    def _inside(self, channels: Flags, like: Params) -> Flags:
        """Return masks of the entries that belong to the given channels only."""
        kept = {group: mask.nonzero().view(-1) for group, mask in channels.items()}
        part = self.widths.part(kept, tree.device(like))
        return {name: t.view(-1) > 0 for name, t in part.coverage({name: like[name] for name, _ in self.sizes}).items()}

    def follow(self, memory: State, payload: Payload, like: Params) -> State:
        """Apply the changed bits. Refuse a payload that adds pruned entries or prunes part of a channel."""
        then = super().follow(memory, payload, like)
        if then is memory:
            return memory
        held = opened(then["mask"], like)
        channels = self.channels(held, like)
        for group, mask in channels.items():
            masks.refuse_unless(bool(mask.any()), f"prunes all channels of {group}")
        for name, inside in self._inside(channels, like).items():
            wrong = held[name] & ~inside if name in self.names else held[name] != inside
            masks.refuse_unless(not bool(wrong.any()), f"prunes only part of a channel in {name}")
        return then

    def _having(self, group: str) -> list[str]:
        """Return the names of the tensors with channels of a group."""
        return [name for name, axes in self.widths.axes if any(group in axis.groups for axis in axes)]

    def _sums(self, values: Params, group: str) -> Tensor:
        """Return the sum of all values of each channel in a group."""
        size = dict(self.widths.sizes)[group]
        total = torch.zeros(size, dtype=torch.float64, device=tree.device(values))
        for name, axes in self.widths.axes:
            for dim, axis in enumerate(axes):
                if name in values and group in axis.groups:
                    along = values[name].double().movedim(dim, 0).reshape(axis.size, -1).sum(1)
                    total += along[_indices(axis, group, size)].sum(1)
        return total


@lru_cache(maxsize=4096)
def _indices(axis: Axis, group: str, size: int) -> Tensor:
    """Return the indices of each channel's entries in a dimension, one row per channel."""
    return torch.stack([axis.chosen({group: torch.tensor([channel])}) for channel in range(size)])
