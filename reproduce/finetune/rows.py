"""The rows of the study: what is trained and sent, and which hyper-parameters are tried."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gossamer import (
    Adam,
    Delta,
    Drive,
    Eden,
    Full,
    LoRA,
    MaskedNoise,
    Method,
    OnWeights,
    StochasticSign,
    compose,
    decomfl,
    fedkseed,
    ffa_lora,
    flora,
    hetlora,
    lora,
)
from reproduce.finetune.settings import MANY_ROUNDS, ROUNDS

Candidate = Mapping[str, Any]
EPOCHS, BATCH = 2, 16
RANK = 8
THIN = LoRA(rank=2, alpha=4.0, targets=("*qkv", "*out"))
"""A small adapter, for methods that count kilobytes."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        title: what the row shows
        trained: what is trained
        make: returns the method, given a candidate
        candidates: hyper-parameters to try
        rounds: number of rounds
        fleet: whether clients have the capacities of a fleet
    """

    title: str
    trained: str
    make: Callable[..., Method]
    candidates: tuple[Candidate, ...]
    rounds: int = ROUNDS


def adam(lr: float, epochs: int = EPOCHS) -> Adam:
    """Return the solver of all rows with gradients."""
    return Adam(lr, epochs=epochs, batch=BATCH)


def alone(lr: float, **parts: Any) -> Method:
    """Return training of each client alone; its epochs are those of a client that takes part in all rounds."""
    return compose(Full(), adam(lr, epochs=1), send="nothing", **parts)
