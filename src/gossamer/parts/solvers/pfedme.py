"""pFedMe (Dinh et al., 2020): a personal model near the global one, and a global one that follows the personal ones.

Each step of a round takes one batch. The personal model ``v``, with the loss gradient ``g`` of that batch, makes
``inner_steps`` steps, and then the model ``w``, which is sent, goes some of the way to it:

    v <- v - personal_lr factor(round) (g(v) + lam (v - w))      inner_steps times, always on the same batch
    w <- w - lr factor(round) lam (w - v)

Both start as the model that the client receives, and ``v`` goes on from step to step, also when ``w`` has moved. Steps
of ``v`` are steps of SGD, with all that SGD has. Only trained tensors are moved towards each other: ``w`` is never in
the network itself, so it is sent with the running statistics of ``v``.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gossamer.core import tree
from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.random import Key
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.two_models import OwnModel, either, when

Gradients = tuple[Params, Params]  # named, because the compiler reads annotations too, and trips over brackets


@dataclass(frozen=True)
class PFedMe(OwnModel, SGD):
    """SGD on a personal model that is held near the global one, which follows it.

    Args:
        lr: learning rate of the global model
        epochs: passes over the client's samples in each round, unless steps are given
        steps: steps of the global model in each round, however many samples there are; none means epochs count
        batch: samples in a batch, the last of an epoch may be smaller; none means all samples at once
        momentum: heavy-ball momentum of the personal model, fresh in every round
        weight_decay: strength of L2 decay of the personal model
        clip: largest norm of the personal model's gradient, pull included, over all tensors; none means no clipping
        proximal: strength of a pull of the personal model back to where the round began
        schedule: how both learning rates change by round: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        personal_lr: learning rate of the personal model
        inner_steps: steps of the personal model on each batch
        lam: strength of the pull between the two models
    """

    lr: float = 0.01
    steps: int | None = 20
    batch: int | None = 20
    personal_lr: float = 0.05
    inner_steps: int = 5
    lam: float = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        leap, both = self.personal_lr * self.lam, (Setting("PFedMe", "personal_lr"), Setting("", "lam"))
        require(
            (0 < self.personal_lr < math.inf, wrong(self, "personal_lr", "must be a positive number")),
            (self.inner_steps >= 1, wrong(self, "inner_steps", "must be at least 1")),
            (0 < self.lam < math.inf, wrong(self, "lam", "must be a positive number")),
            (leap < 2, Mistake(f"times {{}} must be below 2, or the pull throws the model away, got {leap:g}", *both)),
        )

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """The batches of SGD, each as often as the personal model steps on it."""
        return [batch for batch in super().plan(samples, key) for _ in range(self.inner_steps)]

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with the personal model, which starts from the same, and a count of its steps."""
        turn = torch.zeros((), dtype=torch.int64, device=tree.device(start))
        return {**super().begin(start, sections, memory, steps), "personal": tree.clone(start), "turn": turn}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """This round's learning rates."""
        factor = self.schedule.factor(clock.round, clock.rounds)
        return {"rate": self.lr * factor, "personal": self.personal_lr * factor}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """A step of the personal model; after the last on a batch, the global one follows."""
        shared: Params = carry["params"]
        trained: list[str] = []

        def pulled(params: Params) -> Gradients:
            grads, forward = gradient(params)
            trained.extend(grads)
            return {name: g + self.lam * (params[name] - shared[name]) for name, g in grads.items()}, forward

        moved = super().step(pulled, start, {**carry, "params": carry["personal"]}, {"rate": hyperparams["personal"]})
        own: Params = moved["params"]
        turn, far = carry["turn"] + 1, hyperparams["rate"] * self.lam
        follows = when(turn % self.inner_steps == 0, hyperparams)
        followed = {} if follows is False else {name: torch.lerp(shared[name], own[name], far) for name in trained}
        return {
            **moved,
            "params": either(follows, {**own, **followed}, shared),
            "personal": own,
            "turn": turn,
        }
