"""Solvers for personal models: Ditto, pFedMe, and Per-FedAvg in its first-order form.

Ditto and pFedMe train two models: a personal one v, which is client state and which the client deploys, and the model
w, which it sends. Only trained entries move towards each other: each model has its own running statistics.
"""

import math
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import Coding
from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo, Sections
from gossamer.core.random import Key, fold
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Layout, State
from gossamer.parts.solvers.schedules import plan
from gossamer.parts.solvers.sgd import Descent
from gossamer.parts.views.entries import Full


def when(condition: Tensor, hyperparams: Hyperparams) -> bool | Tensor:
    """Return the condition as a bool. Return the tensor itself in a stacked step, where clients' phases may differ."""
    return condition if isinstance(hyperparams["rate"], Tensor) else bool(condition)


def either(condition: bool | Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return ``a`` if the condition holds, else ``b``."""
    if isinstance(condition, bool):
        return a if condition else b
    return torch.where(condition, a, b)


@dataclass(frozen=True)
class OwnModel(Descent, ABC):
    """Base of those that keep a personal model as client state, ``personal``. The client deploys this model."""

    stateful: ClassVar[bool] = True

    def bind(self, context: Context) -> Self:
        """Refuse partial views, and codecs with a straight-through estimator: it would apply to both models."""
        name, (view, codec) = type(self).__name__, (context.exchange.view, context.exchange.codec)
        like = context.network.outline()
        surrogate = codec.surrogate_context(Coding(Layout.of(like), Key(0, 0)), 1, tree.device(like))
        require(
            (view == Full(), f"{name} needs clients that hold the whole model: use Full()"),
            (
                not surrogate,
                f"{name} trains two models and cannot use a codec with a straight-through estimator: {codec}; "
                "add learn_masks=False to the codec (--codec masked-noise:...,learn_masks=false)",
            ),
        )
        return self

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the personal model, copied out of the memory of stacked clients."""
        return {"personal": carry["personal"].clone()}, {}

    def deploy(self, memory: State) -> Tensor | None:
        """Return the personal model, or ``None`` before the client's first round."""
        return memory.get("personal")


@dataclass(frozen=True)
class Ditto(OwnModel):
    """SGD on the global model, then on a personal model that is regularized towards it.

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
    https://arxiv.org/abs/2012.04221.

    A round has two phases. In the first, SGD trains the received model w_start, and the client sends the update. In the
    second, the client trains its personal model v. One personal step is

        v <- v - lr factor(round) g              a step of SGD on the loss at v
        v <- v - lr factor(round) lam (v - w_start)

    The regularization is a separate step after every batch. In the paper's pseudo-code it is part of the gradient; the
    difference is lr**2 lam g. v starts as the initial global model of the run. Before its first round, a client deploys
    the global model.

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
        steps = self.personal_steps
        require(
            *self.rules(),
            (self.personal_epochs >= 1, wrong(self, "personal_epochs", "must be at least 1")),
            (steps is None or steps >= 1, wrong(self, "personal_steps", "must be at least 1")),
            (0 <= self.lam < math.inf, wrong(self, "lam", "must not be negative")),
        )

    def init(self, context: Context) -> State:
        """Return the initial model of the run as the personal model."""
        return {"personal": self.layout.flatten(context.network.initial())}

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of the global model, as in SGD, followed by those of the personal model."""
        shared, own = self.epochs * self.batches(samples), self.personal_epochs * self.batches(samples)
        return [
            *plan(samples, self.batch, self.steps or shared, key),
            *plan(samples, self.batch, self.personal_steps or own, fold(key, "personal")),
        ]

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the personal model and the number of steps left for the global model."""
        if self.steps is not None:
            shared = self.steps
        elif self.personal_steps is not None:
            shared = steps - self.personal_steps
        else:
            shared = math.ceil(steps * self.epochs / (self.epochs + self.personal_epochs))
        left = torch.full_like(start[..., :1], shared, dtype=torch.int64)
        return {**self.begun(start), "personal": memory.get("personal", start).clone(), "left": left}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.rate(clock)}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of the global model, or of the personal model in the second phase."""
        own, rate = when(carry["left"] <= 0, hyperparams), hyperparams["rate"]
        grads, params = gradient(either(own, carry["personal"], carry["params"]))
        if self.momentum:  # each model starts with velocity 0
            carry = {**carry, "velocity": torch.where(carry["left"] == 0, 0.0, carry["velocity"])}
        moved = self.moved(grads, params, start, carry, rate)
        after = moved["params"]
        pulled = after if own is False else self.where_trained(torch.lerp(after, start, rate * self.lam), after)
        return {
            **moved,
            "params": either(own, carry["params"], after),
            "personal": either(own, pulled, carry["personal"]),
            "left": carry["left"] - 1,
        }


@dataclass(frozen=True)
class PFedMe(OwnModel):
    """SGD on a personal model that is regularized towards the global model, which follows it.

    Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, https://arxiv.org/abs/2006.08848.

    Each local step takes one batch with the loss gradient ``g``. The personal model ``v`` takes ``inner_steps`` steps.
    Then the local copy ``w`` of the global model, which the client sends, moves towards ``v``:

        v <- v - personal_lr factor(round) (g(v) + lam (v - w))      inner_steps times, all on the same batch
        w <- w - lr factor(round) lam (w - v)

    Both models start as the received model. ``v`` is not reset when ``w`` moves. Steps of ``v`` are steps of ``SGD``
    with all its fields. ``w`` itself never runs through the network, so it is sent with the running statistics of
    ``v``.

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
        leap, both = self.personal_lr * self.lam, (Setting("PFedMe", "personal_lr"), Setting("", "lam"))
        require(
            *self.rules(),
            (0 < self.personal_lr < math.inf, wrong(self, "personal_lr", "must be a positive number")),
            (self.inner_steps >= 1, wrong(self, "inner_steps", "must be at least 1")),
            (0 < self.lam < math.inf, wrong(self, "lam", "must be a positive number")),
            (leap < 2, Mistake(f"times {{}} must be below 2, or training diverges, got {leap:g}", *both)),
        )

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of SGD, each repeated ``inner_steps`` times."""
        batches = plan(samples, self.batch, self.steps or self.epochs * self.batches(samples), key)
        return [batch for batch in batches for _ in range(self.inner_steps)]

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the personal model and the number of its steps."""
        turn = torch.zeros_like(start[..., :1], dtype=torch.int64)
        return {**self.begun(start), "personal": start.clone(), "turn": turn}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rates of this round."""
        factor = self.schedule.factor(clock.round, clock.rounds)
        return {"rate": self.rate(clock), "personal": self.personal_lr * factor}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of the personal model. After the last step on a batch, the global model follows."""
        shared, turn = carry["params"], carry["turn"] + 1
        grads, params = gradient(carry["personal"])
        pulled = grads + self.lam * self.where_trained(params - shared, 0.0)
        moved = self.moved(pulled, params, start, carry, hyperparams["personal"])
        own, far = moved["params"], hyperparams["rate"] * self.lam
        follows = when(turn % self.inner_steps == 0, hyperparams)
        followed = shared if follows is False else self.where_trained(torch.lerp(shared, own, far), own)
        return {**moved, "params": either(follows, followed, shared), "personal": own, "turn": turn}


@dataclass(frozen=True)
class PerFedAvg(Descent):
    """SGD with gradients taken after an inner step: a global model that adapts to a client in one step.

    Fallah et al., Personalized Federated Learning: A Meta-Learning Approach, NeurIPS 2020,
    https://arxiv.org/abs/2002.07948.

    One training step takes two batches. From weights ``w``, with the loss gradient ``g`` of a batch,

        v <- w - inner g(w)                      on the first batch: the inner step
        w <- w - lr factor(round) g(v)           on the second batch: the outer step, with the gradient at v

    The exact method multiplies ``g(v)`` by (identity - inner Hessian of the loss at w). The first-order method omits
    this factor. The outer step is a step of ``SGD`` with all its fields. The inner step is plain gradient descent at a
    constant rate. Both forward passes update running statistics.

    Args:
        lr: learning rate of the outer step
        epochs: local epochs per round, unless steps is given
        steps: local steps per round, each on two batches; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        momentum: heavy-ball momentum, reset in every round
        weight_decay: L2 weight decay
        clip: maximum norm of the gradient over all tensors; none disables clipping
        proximal: proximal term towards the received model
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        inner: learning rate of the inner step; 0 is SGD on every second batch
    """

    inner: float = 0.05

    def __post_init__(self) -> None:
        require(*self.rules(), (0 <= self.inner < math.inf, wrong(self, "inner", "must be finite and not negative")))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of SGD, two per step. An odd number of batches is extended from a new permutation."""
        steps = self.steps or math.ceil(self.epochs * self.batches(samples) / 2)
        return plan(samples, self.batch, 2 * steps, key)

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the model after the inner step and the number of batches used."""
        turn = torch.zeros_like(start[..., :1], dtype=torch.int64)
        return {**self.begun(start), "ahead": start.clone(), "turn": turn}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.rate(clock)}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take an inner step on an even batch, or an outer step on an odd batch."""
        is_inner = when(carry["turn"] % 2 == 0, hyperparams)
        grads, params = gradient(either(is_inner, carry["params"], carry["ahead"]))
        ahead, moved = carry["ahead"], carry
        if is_inner is not False:
            ahead = params - self.inner * grads
        if is_inner is not True:
            at = self.where_trained(carry["params"], params)
            moved = self.moved(grads, at, start, carry, hyperparams["rate"])
        kept = [name for name in ("params", "velocity") if name in carry]
        return {
            **{name: either(is_inner, carry[name], moved[name]) for name in kept},
            "ahead": either(is_inner, ahead, carry["ahead"]),
            "turn": carry["turn"] + 1,
        }
