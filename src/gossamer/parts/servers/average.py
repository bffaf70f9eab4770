"""Servers for clients that send models instead of updates."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exact import log
from gossamer.core.exchange import Arrival
from gossamer.core.server import SummingServer
from gossamer.core.types import Clock, Params, State
from gossamer.parts.servers.mean import Mean, Sum, with_vector


@dataclass(frozen=True)
class Average(Mean):
    """Weighted mean of client models."""

    replays: ClassVar[bool] = True
    folds_sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fixed_rate())

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Return the mean as the next model. An entry that no client sent keeps its value."""
        if acc.weight == 0:
            return state
        mean = acc.mean()
        if acc.cover is None:
            return {**state, "params": self.projected(mean)}
        params: Params = state["params"]
        sent = {name: torch.where(cover > 0, mean[name], params[name]) for name, cover in acc.cover.items()}
        return {**state, "params": self.projected(sent)}


@dataclass(frozen=True)
class MaskAverage(Average, SummingServer):
    """Mean of client masks, converted to scores by the logit, for tensors with two or more dimensions (FedPM).

    Isik et al., Sparse Random Networks for Communication-Efficient Federated Learning, ICLR 2023,
    https://arxiv.org/abs/2209.15328.

    Args:
        eps: mask bits 0 and 1 count as eps and 1 - eps, so that all scores are finite
    """

    replays: ClassVar[bool] = True
    folds_sums: ClassVar[bool] = True

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 < self.eps < 0.5, wrong(self, "eps", "must be between 0 and 0.5")))

    def fold_sum(self, acc: Sum, arrival: Arrival, total: Tensor, clients: int) -> Sum:
        """Add the sum of several clients' masks, which is exact, and of their other values."""
        assert arrival.from_sum is not None
        whole = total.double()
        # Decoding is affine. For masks it is the identity, and the offset is zero: no division rounds their sum.
        offset = arrival.from_sum(torch.zeros_like(whole))
        self.spread(acc, with_vector(arrival, arrival.from_sum(whole) + offset * (clients - 1)), 1.0)
        return self.counted(acc, arrival, float(clients))

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Return the mean as the next model, with means of masks converted to scores."""
        new = super().finish(state, acc, clock)
        if new is state:
            return state
        mean: Params = new["params"]
        return {**new, "params": {name: self._scores(t) if t.dim() >= 2 else t for name, t in mean.items()}}

    def _scores(self, mean: Tensor) -> Tensor:
        share = self.eps + (1 - 2 * self.eps) * mean.clamp(0, 1)
        return log(share / (1 - share))  # torch.logit is rounded differently on different devices
