"""One local step of clients that hold tensors of the same names and shapes. All executors use it.

A solver sees vectors, and a network tensors. So a step gives the network views of the vector, and makes one vector of
the gradients. In between are the parts that work on tensors: a codec's straight-through estimator and the
parametrization. What is constant during a round is the step's ``context``:

    constant: the tensors that are sent and that training does not change; no part of the solver's vectors
    keep: 1 for each entry that the client holds, if the view masks any, else 0  # [n]
    codec: context of the straight-through estimator; empty if there is none
    form: context of the parametrization; empty if the network's own tensors are trained
    labels: vector of the labels that count, if not all do
    random: the key of random layers; absent if there are none
    scale: factor of the loss, if it is not 1
    forward: the keys of a solver that uses losses
    per_sample: key and expected size of a batch, for a solver that uses the gradients of samples
    real: for such a solver, 1 for each sample of the batch and 0 for those that fill it up; it changes by step

The carry is the solver's, and two entries of the step's own, which solvers leave alone: ``step_index``, where something
draws by it, and ``counters``, the network's integer buffers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.solver import AnyMove, Gradient, Gradients, Hyperparams, StepKeys
from gossamer.core.types import Layout, Params, State
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.moves import moved
from gossamer.tasks.objective import Objective
from gossamer.tasks.random_layers import Numbers

LossAndGradients = tuple[Tensor, Params, Params]  # an alias, because torch.compile fails on brackets in annotations
Evaluate = Callable[[Params], LossAndGradients]
"""Map the network's tensors to the loss, the gradients and the changed buffers of the current batch."""


class LocalStep:
    """The local step for one layout of the tensors that a client holds.

    Args:
        method: the method
        exchange: the exchange in which clients train
        objective: the network and its loss
        layout: names and shapes of the tensors that the clients hold
    """

    def __init__(self, method: BoundMethod, exchange: BoundExchange, objective: Objective, layout: Layout) -> None:
        self.parametrization, self.exchange, self.objective = method.parametrization, exchange, objective
        self.solver = exchange.solver_on(layout)
        self.layout = self.solver.layout
        others = [(name, shape) for name, shape in self.layout.shapes if name not in objective.trained]
        dtype, device = self.layout.dtype, objective.device
        self.untrained = {name: torch.zeros(shape.numel(), dtype=dtype, device=device) for name, shape in others}
        self._last: tuple[Tensor, Params] | None = None

    def eager(
        self, start: Tensor, carry: State, context: State, x: Nest, y: Tensor, hyperparams: Hyperparams
    ) -> tuple[State, Tensor]:
        """Run one step operation by operation; return the next carry and the loss."""
        objective, labels, numbers = self.objective, context.get("labels"), random_numbers(context, carry)

        def loss(at: Params, move: AnyMove) -> Tensor:
            return objective.loss(at, x, y, labels, move, random_numbers(context, carry))

        def evaluate(at: Params) -> LossAndGradients:
            if self.solver.uses == "gradient":
                return objective.gradient(at, x, y, labels, numbers=numbers)
            objective.train_mode(alone=True)
            with objective.precision.products():
                return objective.sample_gradients(at, x, y, labels, numbers)

        if self.solver.uses == "losses":
            return self._by_losses(loss, start, carry, context, hyperparams)
        gradient = BatchGradient(self, evaluate, start, carry, context, in_place=True)
        return self._by_gradients(gradient, start, carry, hyperparams)

    def pure(
        self, start: Tensor, carry: State, context: State, x: Nest, y: Tensor, hyperparams: Hyperparams
    ) -> tuple[State, Tensor]:
        """Do the same as a pure function, for ``torch.vmap``, ``torch.compile`` and CUDA graphs.

        The caller sets the mode of the network, and the precision of products.
        """
        objective, labels, numbers = self.objective, context.get("labels"), random_numbers(context, carry)

        def loss(at: Params, move: AnyMove) -> Tensor:
            return objective.pure_loss(at, x, y, labels, move, random_numbers(context, carry))

        def evaluate(at: Params) -> LossAndGradients:
            compute = objective.pure_gradient if self.solver.uses == "gradient" else objective.sample_gradients
            return compute(at, x, y, labels, numbers)

        if self.solver.uses == "losses":
            return self._by_losses(loss, start, carry, context, hyperparams)
        return self._by_gradients(BatchGradient(self, evaluate, start, carry, context), start, carry, hyperparams)

    def _by_gradients(
        self, gradient: "BatchGradient", start: Tensor, carry: State, hyperparams: Hyperparams
    ) -> tuple[State, Tensor]:
        new = self.solver.step(gradient, start, carry, hyperparams)
        return self._carried(new, carry, gradient.counters), gradient.losses[-1]

    def _by_losses(
        self,
        evaluate: Callable[[Params, AnyMove], Tensor],
        start: Tensor,
        carry: State,
        context: State,
        hyperparams: Hyperparams,
    ) -> tuple[State, Tensor]:
        """Take a step on losses; the mean of them is the loss. All have the same numbers in random layers."""
        losses: list[Tensor] = []
        counters = carry.get("counters", {})

        def value(params: Tensor, move: AnyMove) -> Tensor:
            held = self.layout.unflatten(params)
            if context["codec"] or context["form"]:  # these compute other tensors from all of the moved ones
                held, move = moved(held, move, self.objective.trained), None
                held = {**context["constant"], **self.sent(start, self.layout.flatten(held), carry, context)}
                if context["form"]:
                    held = self.parametrization.network(held, context["form"], carry["step_index"])
            losses.append(evaluate({**context["constant"], **held, **counters}, move))
            return losses[-1] * context["scale"] if "scale" in context else losses[-1]

        keys = StepKeys(context["forward"]["common"], context["forward"]["own"], carry["step_index"])
        new = self.solver.step(BatchLoss(value, keys), start, carry, hyperparams)
        return self._carried(new, carry, counters), torch.stack(losses).mean()

    def _carried(self, new: State, carry: State, counters: Params) -> State:
        """Return the next carry with the entries that are no solver's."""
        own: dict[str, Any] = {"counters": counters} if counters else {}
        if "step_index" in carry:
            own["step_index"] = carry["step_index"] + 1
        return {**new, **own}

    def sent(self, start: Tensor, params: Tensor, carry: State, context: State) -> Params:
        """Return the tensors of the forward pass: the client's, or what a straight-through estimator makes of them."""
        held = self.layout.unflatten(params)
        if not context["codec"]:
            return held
        begun, trained = self.layout.unflatten(start), self.objective.trained
        change = {name: held[name] - begun[name] for name in trained}
        sent = self.exchange.codec.surrogate(change, context["codec"], carry["step_index"])
        if "keep" in context:
            keep = self.layout.unflatten(context["keep"])
            sent = {name: value * keep[name] for name, value in sent.items()}
        return {**held, **{name: begun[name] + value for name, value in sent.items()}}

    def leaves(self, params: Tensor) -> Params:
        """Return the tensors of a vector, trained ones as leaves of autograd. A step in place keeps the vector's."""
        if self._last is None or self._last[0] is not params:
            trained, tensors = set(self.objective.trained), self.layout.unflatten(params)
            leaves = {n: t.detach().requires_grad_() if n in trained else t for n, t in tensors.items()}
            self._last = params, leaves
        return self._last[1]


class BatchGradient(Gradient):
    """The gradient of the current batch.

    Args:
        local: the local step
        evaluate: gives the loss, the gradients and the changed buffers at tensors of the network
        start: the parameters at the start of the round
        carry: the carry before the step
        context: what is constant during the round
        in_place: whether parameters may be overwritten
    """

    def __init__(
        self,
        local: LocalStep,
        evaluate: Evaluate,
        start: Tensor,
        carry: State,
        context: State,
        in_place: bool = False,
    ) -> None:
        self.local, self.evaluate, self.start, self.carry, self.context = local, evaluate, start, carry, context
        self.in_place = in_place
        self.losses: list[Tensor] = []
        self.counters: Params = carry.get("counters", {})

    def __call__(self, params: Tensor) -> Gradients:
        """Return the gradient, and the parameters with changed buffers."""
        local, context = self.local, self.context
        held = {**context["constant"], **local.sent(self.start, params, self.carry, context)}
        form, parametrization = context["form"], local.parametrization
        at = parametrization.network(held, form, self.carry["step_index"]) if form else held
        loss, grads, buffers = self.evaluated(at)

        def flat(grads: Params) -> Tensor:
            """Return the gradients as a vector, zero where nothing is trained and for entries that are not held."""
            every = {**(parametrization.pull(grads, held, form) if form else grads), **local.untrained}
            vector = torch.cat([every[name].reshape(-1) for name, _ in local.layout.shapes])
            vector = vector * context["scale"] if "scale" in context else vector
            return vector * context["keep"] if "keep" in context else vector

        if local.solver.uses == "samples":
            given, real = context["per_sample"], context["real"]
            loss = torch.where(real > 0, loss, 0).sum() / real.sum().clamp(min=1)
            rows = torch.vmap(flat)(grads)  # [batch, n]
            total = torch.tensordot(local.solver.weight(rows) * real, rows, 1)
            vector = local.solver.release(total, given["expected"], given["key"], self.carry["step_index"])
            vector = vector * context["keep"] if "keep" in context else vector
        else:
            vector = flat(grads)
        self.losses.append(loss)
        return vector, local.layout.replaced(params, buffers) if buffers else params

    def descend(self, params: Tensor, rate: float | Tensor) -> Tensor:
        """Return the parameters after a step: where they may be overwritten, without a vector of the gradient."""
        local, context = self.local, self.context
        plain = local.solver.uses == "gradient" and not (context["codec"] or context["form"])
        if isinstance(rate, Tensor) or not (plain and self.in_place):
            return super().descend(params, rate)
        leaves = local.leaves(params)
        loss, grads, buffers = self.evaluated({**context["constant"], **leaves} if context["constant"] else leaves)
        self.losses.append(loss)
        found = list(grads.values())
        with torch.no_grad():
            if "scale" in context:
                torch._foreach_mul_(found, context["scale"])
            if "keep" in context:
                keep = local.layout.unflatten(context["keep"])
                torch._foreach_mul_(found, [keep[name] for name in grads])
            torch._foreach_add_([leaves[name] for name in grads], found, alpha=-rate)
            for name, tensor in buffers.items():
                leaves[name].copy_(tensor)
        return params

    def evaluated(self, at: Params) -> LossAndGradients:
        """Return the loss, the gradients and the changed buffers; integer ones are no solver's, and kept here."""
        if not self.counters:
            return self.evaluate(at)
        loss, grads, changed = self.evaluate({**at, **self.counters})
        self.counters = {name: changed[name] for name in self.counters}
        return loss, grads, {name: tensor for name, tensor in changed.items() if name not in self.counters}


class BatchLoss:
    """The loss of the current batch: a ``gossamer.core.solver.Loss``."""

    def __init__(self, value: Callable[[Tensor, AnyMove], Tensor], keys: StepKeys) -> None:
        self._value, self.keys = value, keys

    def __call__(self, params: Tensor, move: AnyMove = None) -> Tensor:
        """Return the loss."""
        return self._value(params, move)


def random_numbers(context: State, carry: State) -> Numbers | None:
    """Return the numbers of random layers for the current step; none if there are no such layers."""
    if "random" not in context:
        return None
    return Numbers(context["random"]["key"], carry["step_index"])
