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
    hiso,
    klms,
    lora_truncated,
)
from gossamer.core.codec import Codec
from gossamer.fleet.capacity import Capacities
from reproduce.finetune.settings import BATCH, EPOCHS, MANY_ROUNDS, ROUNDS

Candidate = Mapping[str, Any]

RANK = 8
LITTLE = LoRA(1, 2.0)
"""A small adapter, for updates of one bit per parameter."""
MIDDLE = LoRA(4, 8.0)
"""The largest one whose updates of one bit take less than 100 kB per client in this setting."""
CAPACITIES: Capacities = (1.0, 0.5, 0.25, 0.125)
"""Fractions of the rank: clients have rank 8, 4, 2 and 1 in turn."""


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


def one_bit(codec: Codec, lr: float, adapter: LoRA = LITTLE) -> Method:
    """Return a small adapter with one bit per parameter on both links; no client receives the whole adapter."""
    down = Delta(OnWeights(Drive()), shared_start=True)
    return compose(Full(), adam(lr), OnWeights(codec), Mean(), down=down, adapter=adapter)


def masks(lr: float, alpha: float) -> Method:
    """Return FedMRN: learned masks over random noise of a fixed magnitude."""
    return one_bit(MaskedNoise(alpha=alpha), lr)


def sampled(scale: float) -> Method:
    """Return KLMS: importance-sampled masks that shift the initial adapter by a fixed magnitude."""
    made = klms(lr=0.1, epochs=EPOCHS, batch=BATCH, scale=scale, around="start")
    return made.with_parts(adapter=LITTLE, down=Delta(shared_start=True))


def ranks(recipe: Callable[..., Method], lr: float) -> Method:
    """Return a recipe whose clients have unequal ranks."""
    made = recipe(rank=RANK, alpha=2.0 * RANK, capacities=CAPACITIES)
    return made.with_parts(solver=adam(lr))


def scalars(recipe: Callable[..., Method], adapter: LoRA | None, **fields: Any) -> Method:
    """Return a method that sends scalars."""
    made = recipe(batch=BATCH, **fields)
    return made.with_parts(solver=replace(made.solver, schedule=Cosine()), adapter=adapter)  # type: ignore[type-var]


def zeroth(recipe: Callable[..., Method], adapter: LoRA | None, lr: float) -> Method:
    """Return DeComFL or HiSo with one step per round, along ten directions."""
    return scalars(recipe, adapter, lr=lr, steps=1, perturbations=10)


def candidates(adapter: LoRA | None, lr: float) -> Method:
    """Return FedKSeed with 1,024 directions and 50 steps per round."""
    return scalars(fedkseed, adapter, lr=lr, steps=50, candidates=1024)


def rates(*values: float) -> tuple[Candidate, ...]:
    """Return one candidate per learning rate."""
    return tuple({"lr": lr} for lr in values)


def magnitudes(*values: float) -> tuple[Candidate, ...]:
    """Return one candidate per magnitude of the noise."""
    return tuple({"lr": 3e-3, "alpha": alpha} for alpha in values)


def scales(*values: float) -> tuple[Candidate, ...]:
    """Return one candidate per magnitude of a mask."""
    return tuple({"scale": scale} for scale in values)


LARGE = LoRA(RANK, 2.0 * RANK)
FROZEN = LoRA(RANK, 2.0 * RANK, train="B")
TINY = LoRA(1, 2.0, train="B")
ALL, ADAPTERS, SMALL = "all weights", f"LoRA, rank {RANK}", "LoRA, rank 1"
RANKS, TINIEST = "LoRA, ranks 8 to 1", "LoRA, rank 1, B alone"

ROWS: dict[str, Row] = {
    "alone-full": Row("each client alone", ALL, alone, rates(1e-4, 3e-4, 1e-3)),
    "alone-lora": Row("each client alone", ADAPTERS, lambda lr: alone(lr, LARGE), rates(3e-4, 1e-3, 3e-3)),
    "full": Row("FedAvg", ALL, dense, rates(3e-4, 1e-3, 3e-3)),
    "lora": Row("FedAvg", ADAPTERS, lambda lr: dense(lr, LARGE), rates(1e-3, 3e-3, 1e-2, 3e-2)),
    "ffa": Row("FFA-LoRA", f"{ADAPTERS}, B alone", lambda lr: dense(lr, FROZEN), rates(3e-3, 1e-2, 3e-2)),
    "small": Row("FedAvg", SMALL, lambda lr: dense(lr, LITTLE), rates(3e-3, 1e-2, 3e-2, 1e-1)),
    "truncated": Row("truncated ranks", RANKS, lambda lr: ranks(lora_truncated, lr), rates(3e-4, 1e-3, 3e-3)),
    "flora": Row("FLoRA, stacked ranks", RANKS, lambda lr: ranks(flora, lr), rates(1e-3, 3e-3, 1e-2, 3e-2)),
    "masks": Row("FedMRN, one bit", SMALL, masks, magnitudes(3e-3, 1e-2, 3e-2, 1e-1)),
    "eden": Row("EDEN, one bit", SMALL, lambda lr: one_bit(Eden(1), lr), rates(3e-3, 1e-2, 3e-2)),
    "eden-4": Row("EDEN, one bit", "LoRA, rank 4", lambda lr: one_bit(Eden(1), lr, MIDDLE), rates(3e-3, 1e-2)),
    "klms": Row("KLMS, sampled masks", SMALL, sampled, scales(0.01, 0.03, 0.1, 0.3)),
    "signs": Row("signs, one bit", SMALL, lambda lr: one_bit(StochasticSign(), lr), rates(1e-3, 3e-3, 1e-2)),
    "decomfl": Row("DeComFL", ALL, lambda lr: zeroth(decomfl, None, lr), rates(0.003, 0.006, 0.01), MANY_ROUNDS),
    "decomfl-lora": Row("DeComFL", TINIEST, lambda lr: zeroth(decomfl, TINY, lr), rates(0.3, 1.0, 3.0), MANY_ROUNDS),
    "hiso": Row("HiSo", ALL, lambda lr: zeroth(hiso, None, lr), rates(3e-4, 1e-3, 3e-3), MANY_ROUNDS),
    "hiso-lora": Row("HiSo", TINIEST, lambda lr: zeroth(hiso, TINY, lr), rates(0.03, 0.1, 0.3), MANY_ROUNDS),
    "kseed": Row("FedKSeed", ALL, lambda lr: candidates(None, lr), rates(3e-4, 1e-3)),
    "kseed-lora": Row("FedKSeed", TINIEST, lambda lr: candidates(TINY, lr), rates(0.03, 0.1, 0.3)),
}
