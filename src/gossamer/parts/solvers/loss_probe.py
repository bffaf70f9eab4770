"""The loss of a client's samples at the model that arrived; nothing is trained."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.core.exchange import LocalTrainingInfo, Section, Sections
from gossamer.core.random import Key
from gossamer.core.solver import Gradient, Hyperparams, Solver
from gossamer.core.types import Params, State


@dataclass(frozen=True)
class LossProbe(Solver):
    """Tells the server the mean loss of the client's training samples."""

    sections: ClassVar[tuple[Section, ...]] = (Section("loss"),)

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """No step at all."""
        return []

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """The model as it came."""
        return {"params": start}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """There is none."""
        return carry

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """The loss."""
        return {}, {"loss": info.loss()}
