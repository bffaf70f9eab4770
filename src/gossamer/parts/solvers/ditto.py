"""Ditto: a client trains the global model, and a personal model that is regularized towards it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
https://arxiv.org/abs/2012.04221.

A round has two phases. In the first, SGD trains the received model w_start, and the client sends the update. In the
second, the client trains its personal model v, which is client state. One personal step is

    v <- v - lr factor(round) g              a step of SGD on the loss at v
    v <- v - lr factor(round) lam (v - w_start)

The regularization is a separate step after every batch. In the paper's pseudo-code it is part of the gradient; the
difference is lr**2 lam g. It applies to trained tensors only: each model has its own running statistics. v starts as
the initial global model of the run. Before its first round, a client deploys the global model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.random import Key, fold
from gossamer.core.solver import Gradient, Gradients, Hyperparams
from gossamer.core.types import Params, State
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.two_models import OwnModel, either, when


@dataclass(frozen=True)
class Ditto(OwnModel, SGD):
    """SGD on the global model, then on a personal model that is regularized towards it.

    Args:
        lr: learning rate of both models
        epochs: local epochs of the global model per round, unless steps is given
        steps: local steps of the global model per round; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        momentum: heavy-ball momentum, reset for each model in every round
        weight_decay: L2 weight decay of both models
        clip: maximum norm of each model's gradient over all tensors; none disables clipping
        proximal: proximal term of both models towards the received model
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        personal_epochs: local epochs of the personal model per round, unless personal_steps is given
        personal_steps: local steps of the personal model per round; none uses personal_epochs
        lam: regularization of the personal model towards the global model; 0 trains it independently
    """

    epochs: int = 2
    personal_epochs: int = 3
    personal_steps: int | None = None
    lam: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.personal_steps
        require(
            (self.personal_epochs >= 1, wrong(self, "personal_epochs", "must be at least 1")),
            (steps is None or steps >= 1, wrong(self, "personal_steps", "must be at least 1")),
            (0 <= self.lam < math.inf, wrong(self, "lam", "must not be negative")),
        )

    def init(self, context: Context) -> State:
        """Return the initial model of the run as the personal model."""
        return {"personal": context.network.initial()}

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of the global model, as in SGD, followed by those of the personal model."""
        own = SGD(epochs=self.personal_epochs, steps=self.personal_steps, batch=self.batch)
        return super().plan(samples, key) + own.plan(samples, fold(key, "personal"))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the personal model and the number of steps left for the global model."""
        some = next(iter(start.values()))
        left = torch.tensor(self._shared(steps), device=some.device)
        own = tree.clone({**start, **memory.get("personal", {})})
        return {**super().begin(start, sections, memory, steps), "personal": own, "left": left}

    def _shared(self, steps: int) -> int:
        """Return how many of a round's steps train the global model."""
        if self.steps is not None:
            return self.steps
        if self.personal_steps is not None:
            return steps - self.personal_steps
        return math.ceil(steps * self.epochs / (self.epochs + self.personal_epochs))

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of the global model, or of the personal model in the second phase."""
        trained: list[str] = []

        def recorded(params: Params) -> Gradients:
            grads, forward = gradient(params)
            trained.extend(grads)
            return grads, forward

        own = when(carry["left"] <= 0, hyperparams)
        before = {"params": either(own, carry["personal"], carry["params"])}
        if self.momentum:  # each model starts with velocity 0
            before["velocity"] = {name: torch.where(carry["left"] == 0, 0, u) for name, u in carry["velocity"].items()}
        moved = super().step(recorded, start, before, hyperparams)
        after: Params = moved["params"]
        pull = hyperparams["rate"] * self.lam
        pulled = {} if own is False else {name: torch.lerp(after[name], start[name], pull) for name in trained}
        return {
            **moved,
            "params": either(own, carry["params"], after),
            "personal": either(own, {**after, **pulled}, carry["personal"]),
            "left": carry["left"] - 1,
        }
