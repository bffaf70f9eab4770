"""Servers for clients that send what they hold rather than how it changed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.types import Clock, Params, State
from gossamer.parts.servers.mean import Mean, Sum


@dataclass(frozen=True)
class Average(Mean):
    """What is held next is the weighted mean of what arrives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fixed_rate())

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """The mean; an entry that nobody sent stays."""
        if acc.weight == 0:
            return state
        mean = acc.mean()
        if acc.cover is None:
            return {**state, "params": self.projected(mean)}
        params: Params = state["params"]
        sent = {name: torch.where(cover > 0, mean[name], params[name]) for name, cover in acc.cover.items()}
        return {**state, "params": self.projected(sent)}


@dataclass(frozen=True)
class MaskAverage(Average):
    """Scores from the mean of masks: its logit, for tensors of two or more dimensions (FedPM).

    Args:
        eps: a mask's 0 and 1 count as this much and as 1 less this much, so that no score is infinite
    """

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 < self.eps < 0.5, wrong(self, "eps", "must be between 0 and 0.5")))

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """The mean, as scores where it is one of masks."""
        new = super().finish(state, acc, clock)
        if new is state:
            return state
        mean: Params = new["params"]
        return {**new, "params": {name: self._scores(t) if t.dim() >= 2 else t for name, t in mean.items()}}

    def _scores(self, mean: Tensor) -> Tensor:
        return torch.logit(self.eps + (1 - 2 * self.eps) * mean.clamp(0, 1))
