"""Personal masks that are pruned step by step (Sub-FedAvg): weights, or weights and whole convolution channels.

Vahidian et al., Personalized Federated Learning by Structured and Unstructured Pruning under Data Heterogeneity, 2021,
https://arxiv.org/abs/2105.00562.

**Pruned.** A client starts with all entries. After training it may prune a fraction of its remaining weights, the
smallest of each tensor. It prunes if three conditions hold:

    its density is above the target
    the candidate masks after the first and the last epoch differ, so training has not converged
    the pruned model is accurate enough on the client's training samples

Biases and norms are held whole. The new mask takes effect once the server has received it.

**PrunedChannels** (hybrid Sub-FedAvg). The network's width rule (``gossamer.tasks.widths``) defines the entries of a
channel: rows of one layer's weights, columns of the next layer's weights, the bias, and the norm with its running
statistics. Residual connections and group norms can tie further tensors to them. A channel is held in all of these
tensors or in none. The least important channels are pruned. The importance of a channel is the scale of its norms
(network slimming, Liu et al., 2017, https://arxiv.org/abs/1708.06519). Without such a scale it is the squared norm of
its weights. Fully connected weights are pruned first, as in ``Pruned``. Channels follow, with their own thresholds.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.bits import bits, unbits
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, Payload, State
from gossamer.fleet.capacity import held as rounded_up
from gossamer.parts.views import masks
from gossamer.parts.views.masks import Bits, MaskView
from gossamer.tasks.widths import Axis, Ties, Widths

Flags = dict[str, Tensor]
"""Masks as boolean vectors, by tensor name."""

CONVOLUTION = 3
"""Minimum number of dimensions of a convolution's weights."""


@dataclass(frozen=True)
class Pruning(MaskView):
    """Base of views whose clients prune weights by magnitude, down to a target density.

    Args:
        target: density of the weights at which a client stops pruning
        share: fraction of the remaining weights that is pruned at a time
        distance: prune only if the masks after the first and last epoch differ by more than this fraction
        accuracy: prune only if the pruned model's training accuracy is above this value
        names: the names of the weights that are pruned
        sizes: the sizes of all tensors with a mask
    """

    target: float = 0.5
    share: float = 0.05
    distance: float = 1e-4
    accuracy: float = 0.5
    names: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    sizes: tuple[tuple[str, int], ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            (0 < self.target <= 1, wrong(self, "target", "must be in (0, 1]")),
            (0 < self.share < 1, wrong(self, "share", "must be above 0 and below 1")),
            (self.distance >= 0, wrong(self, "distance", "must not be negative")),
            (0 <= self.accuracy <= 1, wrong(self, "accuracy", "must be in [0, 1]")),
        )

    def check_accuracy(self, context: Context) -> None:
        """Refuse a task without accuracy, by which clients decide whether to prune."""
        name, metrics = type(self).__name__, context.network.metrics
        needs = f"{name} prunes by the accuracy of clients, but the task measures {', '.join(metrics)}"
        require(("accuracy" in metrics, f"{needs}: add accuracy to its metrics, or use another view"))

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that the client's mask covers."""
        return masks.part(memory["mask"], like) if memory else Part()

    def first(self, client: int) -> State:
        """Return masks that cover all entries."""
        return {"mask": {name: bits(torch.ones(size, dtype=torch.bool)) for name, size in self.sizes}}

    @abstractmethod
    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune if the three conditions hold."""

    def thinned(self, held: Flags, info: LocalTrainingInfo) -> Flags:
        """Return the masks after pruning, or ``held`` itself if a condition fails."""
        if _density(held) <= self.target:
            return held
        early, late = (self._pruned(held, weights) for weights in (info.carry["early"], info.weights))
        if differences(early, late) <= self.distance * sum(map(len, held.values())):
            return held
        return late if info.accuracy(applied(late, info.weights)) > self.accuracy else held

    def _pruned(self, held: Flags, weights: Params) -> Flags:
        """Return the masks without the smallest of the held weights."""
        found = {}
        for name, mask in held.items():
            count = int(self.share * int(mask.sum()))
            size = torch.where(mask, weights[name].reshape(-1).abs(), torch.inf)
            found[name] = mask & ~masks.smallest(size, count)
        return found

    def follow(self, memory: State, payload: Payload, like: Params) -> State:
        """Apply the changed bits. By default, refuse only a payload that adds pruned entries."""
        if not payload:
            return memory
        new: Bits = masks.turned(memory["mask"], payload, like)
        for name, packed in new.items():
            added = packed & ~memory["mask"][name].cpu()
            masks.refuse_unless(not bool(added.any()), f"adds pruned entries of {name} to its mask")
        return {"mask": new}


@dataclass(frozen=True)
class Pruned(Pruning):
    """Personal masks that are pruned by magnitude, down to a target density.

    Args:
        target: density of the weights at which a client stops pruning
        share: fraction of the remaining weights that is pruned at a time
        distance: prune only if the masks after the first and last epoch differ by more than this fraction
        accuracy: prune only if the pruned model's training accuracy is above this value
    """

    def bind(self, context: Context) -> Self:
        """Return the view with the names and sizes of the weights that can be pruned."""
        self.check_accuracy(context)
        outline = context.network.outline()
        names = tuple(name for name in context.trained if outline[name].dim() >= 2)
        tree.check_entries({name: outline[name] for name in names}, "Pruned")
        return self.filled(names=names, sizes=tuple((name, outline[name].numel()) for name in names))

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune if the three conditions hold."""
        held = opened(memory["mask"], info.weights)
        return mask_update(memory, held, self.thinned(held, info))


@dataclass(frozen=True)
class PrunedChannels(Pruning):
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
        widths: the width rule of the channels that can be pruned
    """

    channel_target: float = 0.5
    channel_share: float = 0.45
    channel_distance: float = 0.01
    ties: Ties | None = None
    widths: Widths = field(default=Widths((), ()), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        target, share, distance = self.channel_target, self.channel_share, self.channel_distance
        require(
            (0 < target <= 1, wrong(self, "channel_target", "must be in (0, 1]")),
            (0 < share < 1, wrong(self, "channel_share", "must be above 0 and below 1")),
            (distance >= 0, wrong(self, "channel_distance", "must not be negative")),
        )

    def bind(self, context: Context) -> Self:
        """Return the view with the fully connected weights, the convolution channels and the tensors they are in."""
        self.check_accuracy(context)
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
        return self.filled(names=names, sizes=sizes, widths=replace(rule, sizes=channels))

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


def opened(packed: Bits, like: Params) -> Flags:
    """Unpack masks to boolean vectors, on the devices of the tensors."""
    return {name: unbits(mask.to(like[name].device), like[name].numel()) for name, mask in packed.items()}


def mask_update(mine: State, held: Flags, kept: Flags) -> tuple[State, Payload]:
    """Return the new state and the payload for the server. Without new masks, the payload is empty."""
    if all(kept[name] is mask for name, mask in held.items()):
        return mine, {}
    new: Bits = {name: bits(mask).cpu() for name, mask in kept.items()}
    return {"mask": new}, masks.difference(mine["mask"], new)


def applied(kept: Flags, weights: Params) -> Params:
    """Return the tensors with masked-out entries set to zero."""
    return {name: w * kept[name].view(w.shape) if name in kept else w for name, w in weights.items()}


def differences(one: Flags, other: Flags) -> int:
    """Return the number of entries in which two sets of masks differ."""
    return sum(int((one[name] != other[name]).sum()) for name in one)


def _density(held: Flags) -> float:
    return sum(int(mask.sum()) for mask in held.values()) / max(1, sum(map(len, held.values())))
