"""Ditto (Li et al., 2021): a client trains the global model, and beside it a personal one that is pulled towards it.

A round has two phases. In the first the received model w_start is trained as SGD does, and what comes of it is sent. In
the second the client's own model v, which it remembers from round to round, goes on. One personal step is

    v <- v - lr factor(round) g              a step of SGD on the loss at v
    v <- v - lr factor(round) lam (v - w_start)

The pull is a move by itself, after every batch; in the paper's pseudo-code it is part of the gradient, which differs by
lr**2 lam g. It moves trained tensors alone: running statistics are each model's own. v starts where the global model
did before the first round, whenever the client's own first round is; until then the client deploys the global model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.random import Key, fold
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Params, State
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.two_models import OwnModel, either, when

Gradients = tuple[Params, Params]  # named, because the compiler reads annotations too, and trips over brackets


@dataclass(frozen=True)
class Ditto(OwnModel, SGD):
    """SGD on the global model, then on a personal one that is pulled towards it.

    Args:
        lr: learning rate, of both models
        epochs: passes over the client's samples with the global model in each round, unless steps are given
        steps: steps with the global model in each round, however many samples there are; none means epochs count
        batch: samples in a batch, the last of an epoch may be smaller; none means all samples at once
        momentum: heavy-ball momentum, fresh for each model in every round
        weight_decay: strength of L2 decay, for both models
        clip: largest norm of either model's gradient over all tensors; none means no clipping
        proximal: strength of a pull of both models, as part of the loss, back to where the round began
        schedule: how the learning rate changes by round: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        personal_epochs: passes with the personal model in each round (ignored when personal_steps are given)
        personal_steps: steps with the personal model in each round; none means personal_epochs count
        lam: strength of the personal model's pull towards the global one; 0 is training alone
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
        """The model that the run begins with, whenever the client's own first round is."""
        return {"personal": context.network.initial()}

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """The batches of the global model, which are those of SGD with the same key; then those of the personal one."""
        own = SGD(epochs=self.personal_epochs, steps=self.personal_steps, batch=self.batch)
        return super().plan(samples, key) + own.plan(samples, fold(key, "personal"))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with the personal model, and how many steps the global one has left."""
        some = next(iter(start.values()))
        left = torch.tensor(self._shared(steps), device=some.device)
        own = tree.clone({**start, **memory.get("personal", {})})
        return {**super().begin(start, sections, memory, steps), "personal": own, "left": left}

    def _shared(self, steps: int) -> int:
        """How many of a round's steps train the global model."""
        if self.steps is not None:
            return self.steps
        if self.personal_steps is not None:
            return steps - self.personal_steps
        return math.ceil(steps * self.epochs / (self.epochs + self.personal_epochs))

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """A step of the model whose turn it is."""
        trained: list[str] = []

        def noted(params: Params) -> Gradients:
            grads, forward = gradient(params)
            trained.extend(grads)
            return grads, forward

        own = when(carry["left"] <= 0, hyperparams)
        before = {"params": either(own, carry["personal"], carry["params"])}
        if self.momentum:  # each model starts from rest
            before["velocity"] = {name: torch.where(carry["left"] == 0, 0, u) for name, u in carry["velocity"].items()}
        moved = super().step(noted, start, before, hyperparams)
        after: Params = moved["params"]
        pull = hyperparams["rate"] * self.lam
        pulled = {} if own is False else {name: torch.lerp(after[name], start[name], pull) for name in trained}
        return {
            **moved,
            "params": either(own, carry["params"], after),
            "personal": either(own, {**after, **pulled}, carry["personal"]),
            "left": carry["left"] - 1,
        }
