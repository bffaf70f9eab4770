"""EF21: clients send compressed differences between their update and the last one that the server knows.

Richtárik et al., EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback, NeurIPS 2021,
https://arxiv.org/abs/2106.05203; with partial participation (EF21-PP) Fatkhullin et al., 2021,
https://arxiv.org/abs/2110.03294.

Client i has a state g_i, an estimate of its update u_i. In a round in which it takes part, it sends

    c_i = C(u_i - g_i),    g_i <- g_i + c_i

with any contractive codec C, for example ``TopK``. The server keeps the mean g of all g_i. With n clients, of which S
are heard in a round,

    g <- g + sum_{i in S} c_i / n,    w <- w + server_lr g

As u_i - g_i becomes small, so does the error of C: compression is exact in the limit, also for clients with different
data. ``Feedback`` sends u_i plus the error of earlier messages instead.

g contains the estimates of clients that do not take part, as old as their last message. So with few clients per round,
small steps are needed: a large update of a client is added in every round until it is heard again. In the paper, u_i is
-lr times one gradient.

If a message is lost, g_i is not changed. All g_i start at 0. Running statistics have no estimate: u_i itself is sent,
because the change of a statistic is relative to the model that the client has received.
"""

from dataclasses import dataclass, field
from typing import Self, Unpack

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.method import Method
from gossamer.core.types import Clock, Layout, Params, Payload, State, fits
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Training, recipe
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.sparse import TopK
from gossamer.parts.codecs.wrappers import STATISTICS, CodecWrapper, refuse_private
from gossamer.parts.servers.mean import Sum, WeightedMean, Weighting
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.entries import Full

__all__ = ["EF21", "MeanOfEstimates", "ef21"]


@dataclass(frozen=True)
class EF21(CodecWrapper):
    """Sends the compressed difference between an update and its estimate. It needs the server ``MeanOfEstimates``.

    See https://arxiv.org/abs/2110.03294. A surrogate of the wrapped codec is not used in training.

    Args:
        codec: the codec of the difference
    """

    codec: Codec

    def __post_init__(self) -> None:
        refuse_private(self)

    def bind(self, context: Context) -> "EF21":
        """Refuse a server that does not add up differences."""
        if not isinstance(context.exchange.server, MeanOfEstimates):
            raise ConfigError("EF21 needs the server MeanOfEstimates, which adds up the differences of all clients")
        return self

    @property
    def exact(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.exact

    def companion(self, other: Codec) -> Codec:
        """Return ``other`` with estimates, so that all tensors of a message are differences."""
        return other if isinstance(other, EF21) else EF21(other)

    def init(self, layout: Layout) -> State:
        """Return an estimate of zero."""
        return {"estimate": {name: torch.zeros(shape, dtype=layout.dtype) for name, shape in layout.shapes}}

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payload of the wrapped codec, as with an empty state."""
        return self.codec.encode(x, ctx)

    def encode_with(self, x: Tensor, memory: State, ctx: Coding) -> tuple[Payload, State]:
        """Return the payload of the difference, and the estimates before and after its delivery."""
        estimate = ctx.layout.flatten(memory["estimate"]).to(x.device).expand_as(x)
        payload = self.codec.encode(x - estimate, ctx)
        after = estimate + self.codec.decode(payload, ctx)
        return payload, {"estimate": ctx.layout.unflatten(estimate), "next": _estimated(ctx.layout.unflatten(after))}

    def skipped(self, memory: State) -> State:
        """Return the same estimate."""
        return {"estimate": memory["estimate"], "next": memory["estimate"]}

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the new estimate after a delivery, or the old one after a loss."""
        return {"estimate": memory["next" if delivered else "estimate"]}


def is_statistic(name: str) -> bool:
    """Return whether a tensor is a running statistic, which has no estimate."""
    return any(fits(name, pattern) for pattern in STATISTICS)


def _estimated(tensors: Params) -> Params:
    return {name: torch.zeros_like(tensor) if is_statistic(name) else tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class MeanOfEstimates(WeightedMean):
    """Moves the model by the mean of the estimates of all clients (EF21-PP). It needs the codec ``EF21``.

    Args:
        clients: the number of clients
    """

    weights: Weighting = "uniform"
    clients: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.weights == "uniform", wrong(self, "weights", "must be uniform: the mean is over all clients")),
            (self.over == "cohort", wrong(self, "over", "must be cohort: the mean is over all clients")),
        )

    def bind(self, context: Context) -> Self:
        """Return the server for these clients. Refuse a codec that does not send differences, and partial models."""
        codec = context.exchange.codec
        if not isinstance(codec.codec if isinstance(codec, OnWeights) else codec, EF21):
            raise ConfigError("MeanOfEstimates needs clients that send differences: use EF21(codec)")
        if not context.exchange.view.whole:
            raise ConfigError("MeanOfEstimates needs clients that hold the whole model: use Full()")
        return super().bind(context).filled(clients=context.clients)

    def init(self, params: Params) -> State:
        """Return the model and a mean of 0."""
        return {"params": params, "estimate": {n: torch.zeros_like(t) for n, t in params.items()}}

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Update the mean and the model. Running statistics are averaged over the arrivals."""
        if acc.weight == 0:
            return state
        params: Params = state["params"]
        fresh = {name: total / acc.weight for name, total in acc.total.items() if is_statistic(name)}
        known = {name: total / self.clients for name, total in acc.total.items() if not is_statistic(name)}
        estimate = {n: t + known[n] if n in known else t for n, t in state["estimate"].items()}
        moved = {name: params[name].add(estimate[name], alpha=self.server_lr) for name in known}
        still = {name: params[name] + change for name, change in fresh.items()}
        return {**state, "params": self.projected({**params, **moved, **still}), "estimate": estimate}


@recipe(lr=0.3, steps=1, batch=None)
def ef21(*, share: float = 0.03, server_lr: float = 1.0, **fields: Unpack[Training]) -> Method:
    """Top-k of the difference between a gradient and its estimate; the server keeps the mean of all estimates.

    Fatkhullin et al., EF21 with Bells & Whistles: Practical Algorithmic Extensions of Modern Error Feedback, 2021,
    https://arxiv.org/abs/2110.03294

    Args:
        share: fraction of the entries that is sent, rounded up
        server_lr: server learning rate, the factor of the mean of the estimates
    """
    codec = OnWeights(EF21(TopK(share)))
    return compose(Full(), SGD(**fields), codec, MeanOfEstimates(server_lr=server_lr))
