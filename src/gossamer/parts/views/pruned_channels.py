"""Masks of clients' own that lose fully connected weights and whole channels of convolutions (Sub-FedAvg's hybrid).

Which entries are a channel is the network's width rule (``gossamer.tasks.widths``): rows of one layer's weights,
columns of the next one's, its bias, its norm with running statistics, and whatever a residual stream or a group norm
ties to these. A channel is held in all of them or in none. Those that matter least are pruned: by the scales of their
norms (network slimming), or by their weights where no norm has a scale for them. Fully connected weights are pruned
first, as ``Pruned`` does it; then channels of what is left, by thresholds of their
own.
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
from gossamer.parts.views import masks
from gossamer.parts.views.pruned import BoundPruned, Flags, Pruned, applied, differences, opened, told
from gossamer.parts.views.width_slice import held as rounded_up
from gossamer.tasks.widths import Axis, Ties, Widths

CONVOLUTION = 3
"""How many dimensions the weights of a convolution have at least."""


@dataclass(frozen=True)
class PrunedChannels(Pruned):
    """Masks that lose fully connected weights and channels of convolutions, each towards a target.

    Args:
        target: share of the fully connected weights at which a client prunes no more of them
        share: of the fully connected weights held, how many are pruned at a time
        distance: mean difference of the two candidate masks of these above which a client prunes them
        accuracy: share of its training samples that the pruned model must get right
        channel_target: share of a layer's channels at which a client prunes no more of them; one is always left
        channel_share: of the channels held of a layer, how many are pruned at a time, rounded up
        channel_distance: mean difference of the two candidates for channels above which a client prunes channels
        ties: the width rule by hand (gossamer widths --toml shows its form); none derives it from the network
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
            (0 < share < 1, wrong(self, "channel_share", "must be between 0 and 1")),
            (distance >= 0, wrong(self, "channel_distance", "must not be negative")),
        )

    def bind(self, context: Context) -> "BoundPrunedChannels":
        """With the names of fully connected weights, the channels of convolutions, and the tensors these are in."""
        network, like = context.network, context.network.outline()
        rule: Widths = network.widths() if self.ties is None else Widths.stated(self.ties, like)
        wide = [name for name in network.trained if like[name].dim() >= CONVOLUTION]
        groups = {group for name, axes in rule.axes if name in wide for axis in axes for group in axis.groups}
        none = "this network has no channels of convolutions that could be pruned: prune weights alone (Pruned)"
        require((bool(groups), none))
        names = tuple(name for name in network.trained if like[name].dim() == 2)
        have = {name for name, axes in rule.axes if any(axis.groups & groups for axis in axes)}
        channels = tuple((group, size) for group, size in rule.sizes if group in groups)
        masked = sorted({*names, *have})  # in name order, as stored masks have it
        sizes = tuple((name, like[name].numel()) for name in masked)
        return BoundPrunedChannels(**vars(self), names=names, sizes=sizes, widths=replace(rule, sizes=channels))


@dataclass(frozen=True)
class BoundPrunedChannels(BoundPruned, PrunedChannels):
    """The same with the width rule of the channels that are pruned."""

    widths: Widths = field(kw_only=True)

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune weights, then channels, each if its three thresholds are passed."""
        held = opened(memory["mask"], info.weights)
        weights = {name: held[name] for name in self.names}
        return told(memory, held, self.narrowed(held | self.thinned(weights, info), info))

    def narrowed(self, held: Flags, info: LocalTrainingInfo) -> Flags:
        """Masks without channels that matter least; the same, if a threshold is not passed."""
        channels = self.channels(held, info.weights)
        early, late = (self._fewer(channels, weights) for weights in (info.carry["early"], info.weights))
        if differences(early, late) <= self.channel_distance * sum(map(len, channels.values())):
            return held
        inside = self._inside(late, info.weights)
        kept = {name: mask & inside[name] for name, mask in held.items()}
        return kept if info.accuracy(applied(kept, info.weights)) > self.accuracy else held

    def channels(self, held: Flags, like: Params) -> Flags:
        """Which channels masks hold, by group: those of which a convolution has an entry."""
        whole = {name: mask.view(like[name].shape) for name, mask in held.items()}
        found = {}
        for group, _ in self.widths.sizes:
            first = next(name for name in self._having(group) if like[name].dim() >= CONVOLUTION)
            found[group] = self._sums({first: whole[first]}, group) > 0
        return found

    def _fewer(self, channels: Flags, weights: Params) -> Flags:
        """Without those that matter least, as many as may go."""
        found = {}
        for group, mask in channels.items():
            many = int(mask.sum())
            going = min(rounded_up(many, self.channel_share), many - rounded_up(len(mask), self.channel_target))
            matters = torch.where(mask, self.importance(group, weights), torch.inf)
            found[group] = mask & ~masks.smallest(matters, max(0, going))
        return found

    def importance(self, group: str, weights: Params) -> Tensor:
        """How much each channel of a group matters: the sum of its norm scales, or else that of its weights squared."""
        having = {name: weights[name] for name in self._having(group)}
        scales = {name: w.abs() for name, w in having.items() if w.dim() == 1 and name.split(".")[-1] == "weight"}
        return self._sums(scales or {name: w.square() for name, w in having.items() if w.dim() > 1}, group)

    def _inside(self, channels: Flags, like: Params) -> Flags:
        """The entries that are in no channel but these."""
        kept = {group: mask.nonzero().view(-1) for group, mask in channels.items()}
        part = self.widths.part(kept, tree.device(like))
        return {name: t.view(-1) > 0 for name, t in part.coverage({name: like[name] for name, _ in self.sizes}).items()}

    def follow(self, memory: State, said: Payload, like: Params) -> State:
        """Turn over the bits that changed; refused is what takes up pruned entries, or cuts a channel in part."""
        then = super().follow(memory, said, like)
        if then is memory:
            return memory
        held = opened(then["mask"], like)
        channels = self.channels(held, like)
        for group, mask in channels.items():
            masks.refuse_unless(bool(mask.any()), f"prunes all channels of {group}")
        for name, inside in self._inside(channels, like).items():
            wrong = held[name] & ~inside if name in self.names else held[name] != inside
            masks.refuse_unless(not bool(wrong.any()), f"prunes channels of {name} in part")
        return then

    def _having(self, group: str) -> list[str]:
        """The tensors that a group is in."""
        return [name for name, axes in self.widths.axes if any(group in axis.groups for axis in axes)]

    def _sums(self, values: Params, group: str) -> Tensor:
        """For each channel the sum of all values that belong to it."""
        size = dict(self.widths.sizes)[group]
        total = torch.zeros(size, dtype=torch.float64, device=tree.device(values))
        for name, axes in self.widths.axes:
            for dim, axis in enumerate(axes):
                if name in values and group in axis.groups:
                    along = values[name].double().movedim(dim, 0).reshape(axis.size, -1).sum(1)
                    total += along[_places(axis, group, size)].sum(1)
        return total


@lru_cache(maxsize=4096)
def _places(axis: Axis, group: str, size: int) -> Tensor:
    """Where in a dimension the entries of each channel are: a row for each."""
    return torch.stack([axis.chosen({group: torch.tensor([channel])}) for channel in range(size)])
