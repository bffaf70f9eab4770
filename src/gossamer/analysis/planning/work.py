"""Whether a run works as a plan says: the same model, no more operations and no longer messages than planned.

How long a message is that holds the signs of so many measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.analysis.planning.plan import Plan
from gossamer.core.errors import require, wrong
from gossamer.core.method import Method
from gossamer.core.random import Key
from gossamer.core.types import Layout
from gossamer.core.wire import Body, summed
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.one_bit import OneBit
from gossamer.parts.views.magnitude_pruned import MagnitudePruned
from gossamer.tasks.data.partition import Split
from gossamer.tasks.objective import Objective

TRIED = 10
"""A tenth of the model's entries is measured to see what else a message holds."""


@dataclass(frozen=True)
class MessageSize:
    """Bits for the measurements, and what goes with them.

    Args:
        each: bits a measurement; 2 leave room for retained signs beside the new ones
        overhead: bytes besides: header, table, norms, and what goes dense
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
        """Of a model that goes through the codec ``OneBit``, but for its norms and biases, which go dense."""
        codec = OnWeights(OneBit(rows=max(1, layout.size // TRIED)))
        payload = codec.encode(torch.ones(layout.size, dtype=layout.dtype), layout, Key(0, 0))
        again = {"lost": payload["scale"]} if each > 1 else {}
        sizes = summed(Body.of({**payload, **again}))
        return cls(each, sum(sizes.values()) - sizes["signs"])

    def bits(self, measurements: float) -> int:
        """Of a message, which has whole bytes."""
        return 8 * (self.overhead + math.ceil(self.each * measurements / 8))

    def filled(self, measurements: int) -> int:
        """How many measurements fit into as many bytes."""
        return 8 * math.ceil(self.each * measurements / 8) // self.each


TRIED_SAMPLES = 4
"""So many samples are sent through the network to count its operations."""

ALIKE = 1e-9
"""Operations that differ by no more than this share are the same."""


def tried(objective: Objective) -> Tensor:
    """The samples whose operations are counted."""
    return torch.arange(min(TRIED_SAMPLES, len(objective.x)))


def operations(objective: Objective) -> float:
    """Of one sample, forth and back."""
    rows = tried(objective)
    return objective.flops(objective.initial(), rows).done / len(rows)


def check_work(plan: Plan, method: Method, objective: Objective, split: Split) -> list[str]:
    """Refuse a run that takes more than was planned; what comes back is to be said of one that takes less."""
    size, planned = objective.layout.size, f"the plan is for {plan.parameters:,} parameters"
    require((plan.parameters == size, f"{planned}, and the model has {size:,}: plan anew, for this model"))
    each = operations(objective)
    taken = [sum(map(len, method.solver.plan(len(split.train(c)), Key(0, 0)))) for c in range(len(plan.clients))]
    parts = [each * many / share.flops for many, share in zip(taken, plan.clients, strict=True) if share.flops]
    more = [client for client, part in enumerate(parts) if part > 1 + ALIKE]
    require(
        *_pruned(plan, method),
        *_sent(plan, method, objective.layout),
        (not more, f"{_many(more, parts)} of the operations that were planned: plan anew, for these samples"),
    )
    fewer = [client for client, part in enumerate(parts) if part < 1 - ALIKE]
    return (
        [f"{_many(fewer, parts)} of the operations that were planned: a plan for these would be better"]
        if fewer
        else []
    )


def _many(clients: Sequence[int], parts: Sequence[float]) -> str:
    """Who has the most or the fewest operations, over those that were planned."""
    if not clients:
        return ""
    farthest = max(clients, key=lambda client: abs(parts[client] - 1))
    others = f", one of {len(clients)} like it," if len(clients) > 1 else ""
    return f"client {farthest}{others} has {100 * parts[farthest]:.4g}%"


def _pruned(plan: Plan, method: Method) -> list[tuple[bool, str]]:
    view = method.view
    if not isinstance(view, MagnitudePruned):
        return []
    kept = (view.ratio, view.by, view.rise) == (plan.ratios, "tensor", 0)
    return [(kept, "the plan says what is pruned, in every round: leave out what sets ratio, by or rise of the view")]


def _sent(plan: Plan, method: Method, layout: Layout) -> list[tuple[bool, str]]:
    codec = method.codec.codec if isinstance(method.codec, OnWeights) else method.codec
    if not isinstance(codec, OneBit):
        return [(False, "the plan is for messages of the codec OneBit: leave out what sets another one")]
    each = 2 if codec.retain == "signs" else 1
    again = (
        f"retained signs take {each} bits a measurement, and the plan has {plan.each}: plan anew, with --bits {each}"
    )
    message = MessageSize.of(layout, each)
    taken, room = message.bits(plan.measurements) // 8, plan.bits // 8
    longer = f"messages take {taken:,} bytes, and the plan has {room:,}: plan anew, with --overhead {message.overhead}"
    counted = f"the plan says that there are {plan.measurements:,} measurements: leave out what sets another number"
    kept = codec.rows == plan.measurements
    return [(kept, counted), (each <= plan.each, again), (taken <= room or each > plan.each, longer)]
