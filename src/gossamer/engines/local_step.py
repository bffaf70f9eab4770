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

from gossamer.core import tree
from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.solver import AnyMove, Gradients, Hyperparams, StepKeys
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
        alone: whether it is for the steps of one client, one after the other: it may keep memory between them
    """

    def __init__(
        self, method: BoundMethod, exchange: BoundExchange, objective: Objective, layout: Layout, alone: bool = False
    ) -> None:
        self.parametrization, self.exchange, self.objective = method.parametrization, exchange, objective
        self.solver, self.alone = exchange.solver_on(layout), alone
        self.layout = self.solver.layout
        others = [(name, shape) for name, shape in self.layout.shapes if name not in objective.trained]
        dtype, device = self.layout.dtype, objective.device
        self.untrained = {name: torch.zeros(shape.numel(), dtype=dtype, device=device) for name, shape in others}
        self._last: tuple[Tensor, Params] | None = None
        self._room: tuple[Tensor, Params] | None = None  # a vector for the next gradient, and its tensors
        self._used: list[tuple[Tensor, Params]] = []  # those of the gradients of the current step

    def eager(
        self, start: Tensor, carry: State, context: State, x: Nest, y: Tensor, hyperparams: Hyperparams
    ) -> tuple[State, Tensor]:
        """Run one step operation by operation; return the next carry and the loss."""
        objective, labels = self.objective, context.get("labels")

        def loss(at: Params, move: AnyMove) -> Tensor:
            return objective.loss(at, x, y, labels, move, random_numbers(context, carry))

        if self.solver.uses == "losses":
            return self._by_losses(loss, start, carry, context, hyperparams)
        numbers, samples = random_numbers(context, carry), self.solver.uses == "samples"

        def evaluate(at: Params) -> LossAndGradients:
            if not samples:
                out = self._space() if self.alone else None
                return objective.gradient(at, x, y, labels, numbers=numbers, out=out)
            objective.train_mode(alone=True)
            with objective.precision.products():
                return objective.sample_gradients(at, x, y, labels, numbers)

        tensors_of = self._leaves if self.alone and not samples else self.layout.unflatten
        return self._by_gradients(evaluate, tensors_of, start, carry, context, hyperparams)

    def pure(
        self, start: Tensor, carry: State, context: State, x: Nest, y: Tensor, hyperparams: Hyperparams
    ) -> tuple[State, Tensor]:
        """Do the same as a pure function, for ``torch.vmap``, ``torch.compile`` and CUDA graphs.

        The caller sets the mode of the network, and the precision of products.
        """
        objective, labels = self.objective, context.get("labels")

        def loss(at: Params, move: AnyMove) -> Tensor:
            return objective.pure_loss(at, x, y, labels, move, random_numbers(context, carry))

        if self.solver.uses == "losses":
            return self._by_losses(loss, start, carry, context, hyperparams)
        numbers = random_numbers(context, carry)

        def evaluate(at: Params) -> LossAndGradients:
            compute = objective.pure_gradient if self.solver.uses == "gradient" else objective.sample_gradients
            return compute(at, x, y, labels, numbers)

        return self._by_gradients(evaluate, self.layout.unflatten, start, carry, context, hyperparams)

    def _by_gradients(
        self,
        evaluate: Evaluate,
        tensors_of: Callable[[Tensor], Params],
        start: Tensor,
        carry: State,
        context: State,
        hyperparams: Hyperparams,
    ) -> tuple[State, Tensor]:
        losses: list[Tensor] = []
        counted: list[Params] = [carry.get("counters", {})]
        plain, samples = not (context["codec"] or context["form"]), self.solver.uses == "samples"

        def gradient(params: Tensor) -> Gradients:
            held = tensors_of(params) if plain else self._sent(start, params, carry, context)
            at = held = {**context["constant"], **held} if context["constant"] else held
            if context["form"]:
                at = self.parametrization.network(held, context["form"], carry["step_index"])
            loss, grads, changed = evaluate({**at, **counted[-1]} if counted[-1] else at)

            def flat(grads: Params) -> Tensor:
                """Return the gradients as a vector, zero where nothing is trained and for entries that are not held."""
                if context["form"]:
                    grads = self.parametrization.pull(grads, held, context["form"])
                vector = self._joined(grads)
                vector = vector * context["scale"] if "scale" in context else vector
                return vector * context["keep"] if "keep" in context else vector

            if samples:
                given, real = context["per_sample"], context["real"]
                loss = torch.where(real > 0, loss, 0).sum() / real.sum().clamp(min=1)
                rows = torch.vmap(flat)(grads)  # [batch, n]
                total = torch.tensordot(self.solver.weight(rows) * real, rows, 1)
                vector = self.solver.release(total, given["expected"], given["key"], carry["step_index"])
                vector = vector * context["keep"] if "keep" in context else vector
            else:
                vector = flat(grads)
            losses.append(loss)
            counted.append({name: changed[name] for name in counted[-1]})
            buffers = {name: tensor for name, tensor in changed.items() if name not in counted[-1]}
            return vector, self.layout.replaced(params, buffers) if buffers else params

        new = self.solver.step(gradient, start, carry, hyperparams)
        if self._used:
            carried = {each.untyped_storage().data_ptr() for each in tree.flatten(new).values()}
            last, self._used = self._used[-1], []
            self._room = None if last[0].untyped_storage().data_ptr() in carried else last
        return self._carried(new, carry, counted[-1]), losses[-1]

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
                held = {**context["constant"], **self._sent(start, self.layout.flatten(held), carry, context)}
                if context["form"]:
                    held = self.parametrization.network(held, context["form"], carry["step_index"])
            losses.append(evaluate({**context["constant"], **held, **counters}, move))
            return losses[-1] * context["scale"] if "scale" in context else losses[-1]

        keys = StepKeys(context["forward"]["common"], context["forward"]["own"], carry["step_index"])
        new = self.solver.step(BatchLoss(value, keys), start, carry, hyperparams)
        return self._carried(new, carry, counters), torch.stack(losses).mean()

    def _space(self) -> Params:
        """Return the memory of the next gradient as tensors of the trained names; the rest of its vector is zero.

        To allocate a vector takes longer than to fill it. So one client's gradient takes the memory of the one before,
        unless the solver carries that on.
        """
        if self._room is None:
            vector = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=self.objective.device)
            tensors = self.layout.unflatten(vector)
            self._room = vector, {name: tensors[name] for name in self.objective.trained}
        self._used.append(self._room)
        self._room = None
        return self._used[-1][1]

    def _joined(self, grads: Params) -> Tensor:
        """Return the gradients as a vector."""
        if self._used and grads is self._used[-1][1]:
            return self._used[-1][0]
        every = {**grads, **self.untrained}
        return torch.cat([every[name].reshape(-1) for name, _ in self.layout.shapes])

    def _carried(self, new: State, carry: State, counters: Params) -> State:
        """Return the next carry with the entries that are no solver's."""
        own: dict[str, Any] = {"counters": counters} if counters else {}
        if "step_index" in carry:
            own["step_index"] = carry["step_index"] + 1
        return {**new, **own}

    def _sent(self, start: Tensor, params: Tensor, carry: State, context: State) -> Params:
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

    def _leaves(self, params: Tensor) -> Params:
        """Return the tensors of a vector, trained ones as leaves of autograd. A step in place keeps the vector's."""
        if self._last is None or self._last[0] is not params:
            trained, tensors = set(self.objective.trained), self.layout.unflatten(params)
            leaves = {n: t.detach().requires_grad_() if n in trained else t for n, t in tensors.items()}
            self._last = params, leaves
        return self._last[1]


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
