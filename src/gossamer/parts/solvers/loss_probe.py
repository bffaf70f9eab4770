"""The loss of the received model on a client's samples, without training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.core.exchange import LocalTrainingInfo, Section, Sections
from gossamer.core.random import Key
from gossamer.core.solver import Gradient, Hyperparams, Solver
from gossamer.core.types import Params, State


@dataclass(frozen=True)
class LossProbe(Solver):
    """Sends the mean loss on the client's training samples to the server."""

    sections: ClassVar[tuple[Section, ...]] = (Section("loss"),)

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return no batches."""
        return []

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the received model."""
        return {"params": start}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Return the state unchanged. Without batches, it is never called."""
        return carry

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the loss as a section for the server."""
        return {}, {"loss": info.loss()}
