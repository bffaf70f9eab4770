"""The rows of the study: what is trained and sent, and which hyper-parameters are tried."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gossamer import (
    Adam,
    Cosine,
    Delta,
    Drive,
    Eden,
    Full,
    LoRA,
    MaskedNoise,
    Mean,
    Method,
    OnWeights,
    StochasticSign,
    compose,
    decomfl,
    fedkseed,
    flora,
    lora_truncated,
)
from gossamer.core.codec import Codec
from gossamer.fleet.capacity import Capacities
from reproduce.finetune.settings import BATCH, EPOCHS, MANY_ROUNDS, ROUNDS

Candidate = Mapping[str, Any]

RANK = 8
CAPACITIES: Capacities = (1.0, 0.5, 0.25, 0.125)
"""Fractions of the rank: clients have rank 8, 4, 2 and 1 in turn."""
RATES = (3e-4, 1e-3, 3e-3)


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        title: what the row shows
        trained: what is trained
        make: returns the method, given a candidate
        candidates: hyper-parameters to try
        rounds: number of rounds
    """

    title: str
    trained: str
    make: Callable[..., Method]
    candidates: tuple[Candidate, ...]
    rounds: int = ROUNDS


def adam(lr: float) -> Adam:
    """Return the solver of all rows with gradients."""
    return Adam(lr, epochs=EPOCHS, batch=BATCH, schedule=Cosine())


def dense(lr: float, adapter: LoRA | None = None) -> Method:
    """Return federated averaging of dense updates."""
    return compose(Full(), adam(lr), adapter=adapter)


def alone(lr: float, adapter: LoRA | None = None) -> Method:
    """Return training of each client alone, with the same steps as in federated training."""
    return compose(Full(), adam(lr), send="nothing", adapter=adapter)


def small(rank: int) -> LoRA:
    """Return a small adapter, for updates of one bit per parameter."""
    return LoRA(rank, 2.0 * rank)


def one_bit(codec: Codec, lr: float, rank: int) -> Method:
    """Return a small adapter with one bit per parameter on both links; no client receives the whole adapter."""
    down = Delta(OnWeights(Drive()), shared_start=True)
    return compose(Full(), adam(lr), OnWeights(codec), Mean(), down=down, adapter=small(rank))


def masks(lr: float, rank: int, alpha: float) -> Method:
    """Return FedMRN: learned masks over random noise of a fixed magnitude."""
    return one_bit(MaskedNoise(alpha=alpha), lr, rank)


def ranks(recipe: Callable[..., Method], lr: float) -> Method:
    """Return a recipe whose clients have unequal ranks."""
    made = recipe(rank=RANK, alpha=2.0 * RANK, capacities=CAPACITIES)
    return made.with_parts(solver=adam(lr))


def scalars(recipe: Callable[..., Method], adapter: LoRA | None, **fields: Any) -> Method:
    """Return a method that sends scalars."""
    made = recipe(batch=BATCH, **fields)
    return made.with_parts(solver=replace(made.solver, schedule=Cosine()), adapter=adapter)  # type: ignore[type-var]


def rates(*values: float, **others: Any) -> tuple[Candidate, ...]:
    """Return one candidate per learning rate."""
    return tuple({"lr": lr, **others} for lr in values or RATES)


LARGE = LoRA(RANK, 2.0 * RANK)
FROZEN = LoRA(RANK, 2.0 * RANK, train="B")
TINY = LoRA(1, 2.0, train="B")
ALL, ADAPTERS = "all weights", f"LoRA, rank {RANK}"

ROWS: dict[str, Row] = {
    "alone-full": Row("each client alone", ALL, alone, rates()),
    "alone-lora": Row("each client alone", ADAPTERS, lambda lr: alone(lr, LARGE), rates()),
    "full": Row("FedAvg", ALL, dense, rates()),
    "lora": Row("FedAvg", ADAPTERS, lambda lr: dense(lr, LARGE), rates()),
    "ffa": Row("FFA-LoRA", f"{ADAPTERS}, B alone", lambda lr: dense(lr, FROZEN), rates(1e-3, 3e-3, 1e-2)),
    "small": Row("FedAvg", "LoRA, rank 1", lambda lr: dense(lr, small(1)), rates(1e-3, 3e-3, 1e-2)),
    "truncated": Row("truncated ranks", "LoRA, ranks 8 to 1", lambda lr: ranks(lora_truncated, lr), rates()),
    "flora": Row("FLoRA, stacked ranks", "LoRA, ranks 8 to 1", lambda lr: ranks(flora, lr), rates()),
    "masks": Row(
        "FedMRN, one bit",
        "LoRA, rank 1",
        lambda lr, alpha: masks(lr, 1, alpha),
        tuple({"lr": lr, "alpha": alpha} for lr in (1e-3, 3e-3) for alpha in (3e-3, 1e-2)),
    ),
    "eden": Row("EDEN, one bit", "LoRA, rank 1", lambda lr: one_bit(Eden(1), lr, 1), rates(1e-3, 3e-3, 1e-2)),
    "signs": Row(
        "signs, one bit", "LoRA, rank 1", lambda lr: one_bit(StochasticSign(), lr, 1), rates(3e-4, 1e-3, 3e-3)
    ),
    "decomfl": Row(
        "DeComFL", ALL, lambda lr: scalars(decomfl, None, lr=lr, steps=1), rates(1e-5, 3e-5, 1e-4), MANY_ROUNDS
    ),
    "decomfl-lora": Row(
        "DeComFL",
        "LoRA, rank 1, B alone",
        lambda lr: scalars(decomfl, TINY, lr=lr, steps=1),
        rates(1e-3, 3e-3, 1e-2),
        MANY_ROUNDS,
    ),
    "kseed": Row("FedKSeed", ALL, lambda lr: scalars(fedkseed, None, lr=lr), rates(1e-6, 1e-5, 1e-4)),
    "kseed-lora": Row(
        "FedKSeed",
        "LoRA, rank 1, B alone",
        lambda lr: scalars(fedkseed, TINY, lr=lr),
        rates(1e-4, 1e-3, 1e-2),
    ),
}
