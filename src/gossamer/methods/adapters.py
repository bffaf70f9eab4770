"""Federated fine-tuning by LoRA: clients train and send small matrices, and the network stays as it was.

The network's own weights are the starting point: give a pretrained network with ``init``, or in the task. Any other
method trains adapters too: ``fedmrn().with_parts(adapter=LoRA(4))``, or ``gossamer run fedmrn --adapter lora:4``.

The server of ``lora`` averages A and B separately, as FedIT does. The product of two means is not the mean of the
products, so an aggregate differs from the mean of what clients computed. ``ffa_lora`` freezes A, so it does not.
"""

from typing import Annotated, TypedDict, Unpack

from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Default, Training, pick, recipe
from gossamer.parts.adapters.lora import LoRA
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.low_rank import AdapterMean
from gossamer.parts.solvers.adam import Adam
from gossamer.parts.views.entries import Full

__all__ = ["ffa_lora", "lora"]


class Matrices(TypedDict, total=False):
    """The matrices of an adapter: fields of ``LoRA``."""

    rank: Annotated[int, Default(8)]
    alpha: Annotated[float | None, Default(None)]
    targets: Annotated[tuple[str, ...], Default(("*",))]


class Adapted(Averaging, Matrices, total=False):
    """Local training, aggregation weights, and the adapter."""


@recipe(lr=0.003)
def lora(**fields: Unpack[Adapted]) -> Method:
    """FedAvg of LoRA's small matrices, trained by Adam beside a frozen network.

    Zhang et al., Towards Building the Federated GPT: Federated Instruction Tuning, ICASSP 2024,
    https://arxiv.org/abs/2305.05644, with LoRA of https://arxiv.org/abs/2106.09685
    """
    return _adapted(LoRA(**pick(Matrices, fields)), fields)


@recipe(lr=0.006)
def ffa_lora(**fields: Unpack[Adapted]) -> Method:
    """LoRA with one of the two matrices frozen: about half the parameters, and a mean of products that is exact.

    Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024, https://arxiv.org/abs/2403.12313
    """
    return _adapted(LoRA(**pick(Matrices, fields), train="B"), fields)


def _adapted(adapter: LoRA, fields: Averaging) -> Method:
    solver = Adam(**pick(Training, fields))
    return compose(Full(), solver, Dense(), AdapterMean(fields["weights"]), adapter=adapter)
