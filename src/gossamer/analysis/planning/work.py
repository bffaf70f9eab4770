"""Check that a run does not exceed its plan: same model, no more operations, no longer messages.

``MessageSize`` gives the length of a message with one or two bits per measurement. ``operations`` counts the operations
per sample. ``check_work`` compares a run with its plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.analysis.planning.plan import Plan
from gossamer.core.codec import Coding
from gossamer.core.errors import require, wrong
from gossamer.core.method import Method
from gossamer.core.random import Key
from gossamer.core.types import Layout
from gossamer.core.wire import Body, summed
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.one_bit import OneBit
from gossamer.parts.views.magnitude import MagnitudePruned
from gossamer.tasks.data.partition import Split
from gossamer.tasks.objective import Objective

MEASURED_PART = 10
"""Divisor: this part of the model's entries is measured to find the overhead of a message."""

TRIED_SAMPLES = 4
"""Number of samples for counting the network's operations."""

ALIKE = 1e-9
"""Relative difference of operations that is ignored."""


@dataclass(frozen=True)
class MessageSize:
    """The length of a message.

    Args:
        each: bits per measurement; 2 leave room for retained signs next to the new ones
        overhead: other bytes: header, table, norms, and tensors that are sent dense
    """

    each: int = 1
    overhead: int = 64

    def __post_init__(self) -> None:
        require(
            (self.each >= 1, wrong(self, "each", "must be at least 1 bit")),
            (self.overhead >= 0, wrong(self, "overhead", "must not be negative")),
        )

    @classmethod
    def of(cls, layout: Layout, each: int = 1) -> "MessageSize":
        """Return the size for a model with the codec ``OneBit``; norms and biases are sent dense."""
        codec = OnWeights(OneBit(rows=max(1, layout.size // MEASURED_PART)))
        payload = codec.encode(torch.ones(layout.size, dtype=layout.dtype), Coding(layout, Key(0, 0)))
        again = {"lost": payload["scale"]} if each > 1 else {}
        sizes = summed(Body.of({**payload, **again}))
        return cls(each, sum(sizes.values()) - sizes["signs"])

    def bits(self, measurements: float) -> int:
        """Return the bits of a message, which has complete bytes."""
        return 8 * (self.overhead + math.ceil(self.each * measurements / 8))

    def filled(self, measurements: int) -> int:
        """Return the number of measurements that fit into the same number of bytes."""
        return 8 * math.ceil(self.each * measurements / 8) // self.each


def tried(objective: Objective) -> Tensor:
    """Return the samples for counting operations."""
    return torch.arange(min(TRIED_SAMPLES, len(objective.samples)))


def operations(objective: Objective) -> float:
    """Return the operations of a forward and backward pass, per sample."""
    rows = tried(objective)
    return objective.flops(objective.initial(), rows).done / len(rows)


def check_work(plan: Plan, method: Method, objective: Objective, split: Split) -> list[str]:
    """Refuse a run that takes more than was planned; return warnings for a run that takes less."""
    adapted = "the plan is for a whole network, whose weights are pruned: leave out the adapter, or the plan"
    require((method.adapter is None, adapted))
    size, planned = objective.layout.size, f"the plan is for {plan.parameters:,} parameters"
    require((plan.parameters == size, f"{planned}, and the model has {size:,}: plan anew, for this model"))
    each = operations(objective)
    seen = [sum(map(len, method.solver.plan(len(split.train(c)), Key(0, 0)))) for c in range(len(plan.clients))]
    parts = [each * count / share.flops for count, share in zip(seen, plan.clients, strict=True) if share.flops]
    more = [client for client, part in enumerate(parts) if part > 1 + ALIKE]
    view = method.view
    other = isinstance(view, MagnitudePruned) and (view.ratio, view.by, view.rise) != (plan.ratios, "tensor", 0)
    require(
        (not other, "the plan sets the pruning of every round: do not set ratio, by or rise of the view"),
        *_sent(plan, method, objective.layout),
        (not more, f"{_extreme(more, parts)} of the operations that were planned: plan anew, for these samples"),
    )
    fewer = [client for client, part in enumerate(parts) if part < 1 - ALIKE]
    return (
        [f"{_extreme(fewer, parts)} of the operations that were planned: a plan for these would be better"]
        if fewer
        else []
    )


def _extreme(clients: Sequence[int], parts: Sequence[float]) -> str:
    """Describe the client with the largest deviation from its planned operations."""
    if not clients:
        return ""
    farthest = max(clients, key=lambda client: abs(parts[client] - 1))
    others = f", one of {len(clients)} like it," if len(clients) > 1 else ""
    return f"client {farthest}{others} has {100 * parts[farthest]:.4g}%"


def _sent(plan: Plan, method: Method, layout: Layout) -> list[tuple[bool, str]]:
    codec = method.codec.codec if isinstance(method.codec, OnWeights) else method.codec
    if not isinstance(codec, OneBit):
        return [(False, "the plan is for messages of the codec OneBit: do not set another one")]
    each = 2 if codec.retain == "signs" else 1
    again = (
        f"retained signs take {each} bits per measurement, and the plan has {plan.each}: plan anew, with --bits {each}"
    )
    message = MessageSize.of(layout, each)
    taken, room = message.bits(plan.measurements) // 8, plan.bits // 8
    longer = f"messages take {taken:,} bytes, and the plan has {room:,}: plan anew, with --overhead {message.overhead}"
    counted = f"the plan has {plan.measurements:,} measurements: do not set another number"
    kept = codec.rows == plan.measurements
    return [(kept, counted), (each <= plan.each, again), (taken <= room or each > plan.each, longer)]
