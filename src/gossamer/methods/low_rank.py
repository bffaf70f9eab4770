"""Low-rank adapters whose ranks follow from the capacities of the clients: truncation and stacking."""

from typing import Annotated, TypedDict, Unpack

from gossamer.core.method import Method
from gossamer.fleet.capacity import SHARES, Capacities
from gossamer.fleet.fleet import Fleet
from gossamer.methods.adapters import Matrices
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Default, Training, pick, recipe
from gossamer.methods.submodels import Over
from gossamer.parts.adapters.lora import LoRA
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.servers.low_rank import AdapterMean, Stacking
from gossamer.parts.solvers.adam import Adam
from gossamer.parts.views.sliced import RankSlice

__all__ = ["flora", "lora_truncated"]


class Ranks(TypedDict, total=False):
    """The fraction of the rank that each client holds: fields of ``RankSlice``."""

    capacities: Annotated[Capacities, Default(SHARES)]
    drawn: Annotated[bool, Default(False)]
    fleet: Annotated[Fleet | None, Default(None)]


class LowRank(Averaging, Ranks, Matrices, total=False):
    """Local training, aggregation weights, the largest adapter, and the ranks of the clients.

    Args:
        rank: the largest rank, of a client with capacity 1
        alpha: the factor of the product, times the largest rank; none: twice the rank
        targets: names of the layers to adapt; * matches any text
        capacities: fraction of the rank, or memory, per client; client c takes value c modulo n
    """


@recipe(lr=0.003)
def lora_truncated(*, over: Over = "holders", **fields: Unpack[LowRank]) -> Method:
    """Every client trains the first ranks of the adapters, by its capacity; A and B are averaged separately.

    Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models, EMNLP 2024,
    https://arxiv.org/abs/2401.06432, truncate the global adapter in this way. They pad the matrices of smaller ranks
    with zeros and average them, so that ranks which few clients hold shrink in every round. Here updates are averaged:
    over the clients that hold the rank, or with over=cohort over all, where a missing rank counts as an update of zero.
    Their ranks are also pruned in training, and their clients are weighted by the norm of their product; this method
    does neither.

    Args:
        over: average each rank over all clients of the cohort, or over its holders (cohort, holders)
    """
    view, server = RankSlice(**pick(Ranks, fields)), AdapterMean(fields["weights"], over)
    return compose(view, Adam(**pick(Training, fields)), server=server, adapter=LoRA(**pick(Matrices, fields)))


@recipe(lr=0.003)
def flora(**fields: Unpack[LowRank]) -> Method:
    """Every client trains adapters of its own rank; their stack is merged into the base weights, and adapters restart.

    Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS
    2024, https://arxiv.org/abs/2409.05976
    """
    return compose(
        RankSlice(**pick(Ranks, fields), down="whole"),
        Adam(**pick(Training, fields)),
        OnWeights(Dense(), min_dim=0),
        Stacking(fields["weights"]),
        down=Delta(shared_start=True),
        adapter=LoRA(**pick(Matrices, fields), merges=True),
    )
