"""pFedMe: a personal model per client, regularized towards the global model by a Moreau envelope.

Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, https://arxiv.org/abs/2006.08848.

Each local step takes one batch with the loss gradient ``g``. The personal model ``v`` takes ``inner_steps`` steps. Then
the local copy ``w`` of the global model, which the client sends, moves towards ``v``:

    v <- v - personal_lr factor(round) (g(v) + lam (v - w))      inner_steps times, all on the same batch
    w <- w - lr factor(round) lam (w - v)

Both models start as the received model. ``v`` is not reset when ``w`` moves. Steps of ``v`` are steps of ``SGD`` with
all its fields. Only trained tensors move towards each other. ``w`` itself never runs through the network, so it is sent
with the running statistics of ``v``.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gossamer.core import tree
from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.random import Key
from gossamer.core.solver import Gradient, Gradients, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.two_models import OwnModel, either, when


@dataclass(frozen=True)
class PFedMe(OwnModel, SGD):
    """SGD on a personal model that is regularized towards the global model, which follows it.

    Args:
        lr: learning rate of the global model
        epochs: local epochs per round, unless steps is given
        steps: local steps of the global model per round; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        momentum: heavy-ball momentum of the personal model, reset in every round
        weight_decay: L2 weight decay of the personal model
        clip: maximum norm of the personal model's gradient, with regularization; none disables clipping
        proximal: proximal term of the personal model towards the received model
        schedule: schedule of both learning rates: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        personal_lr: learning rate of the personal model
        inner_steps: steps of the personal model per batch
        lam: regularization between the personal and the global model
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
            (leap < 2, Mistake(f"times {{}} must be below 2, or training diverges, got {leap:g}", *both)),
        )

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of SGD, each repeated ``inner_steps`` times."""
        return [batch for batch in super().plan(samples, key) for _ in range(self.inner_steps)]

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the personal model and the number of its steps."""
        turn = torch.zeros((), dtype=torch.int64, device=tree.device(start))
        return {**super().begin(start, sections, memory, steps), "personal": tree.clone(start), "turn": turn}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rates of this round."""
        factor = self.schedule.factor(clock.round, clock.rounds)
        return {"rate": self.lr * factor, "personal": self.personal_lr * factor}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of the personal model. After the last step on a batch, the global model follows."""
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
