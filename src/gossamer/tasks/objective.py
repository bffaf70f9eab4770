"""The model and its loss as functions of the model's tensors.

``gossamer.tasks.network`` says which tensors are trained, exchanged or constant, and ``gossamer.tasks.batch_norms``
what BatchNorm does in a batch of one sample.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from gossamer.core.errors import ConfigError, Mistake, Setting, require
from gossamer.core.random import Key, fold, seeded, uniform
from gossamer.core.solver import Move, Solver
from gossamer.core.types import Flops, Layout, Params, State
from gossamer.tasks import checks, moves, operations, per_sample
from gossamer.tasks.batch_norms import OfTraining, lonely_norms, static_norms, tracking, without_counters
from gossamer.tasks.checkpointing import Checkpointing, repeated_blocks
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest, arguments, forward, scores
from gossamer.tasks.data.samples import AnySamples, Batch, Samples
from gossamer.tasks.losses import LOSSES, loss_name
from gossamer.tasks.memory import solver_memory
from gossamer.tasks.metrics import Judgement, judge, only
from gossamer.tasks.network import build, hollow, named_tensors, places, put, roles, untrained
from gossamer.tasks.operations import Counted
from gossamer.tasks.precision import FLOAT32, Precision, check_type, on_cpu
from gossamer.tasks.random_layers import Numbers, Randomness, drawing, trial
from gossamer.tasks.task import Task
from gossamer.tasks.widths import Widths, derive
from gossamer.tasks.widths.derive import watched
from gossamer.tasks.widths.elastic import stretch

LossAndBuffers = tuple[Tensor, Params]  # an alias, because torch.compile does not accept the annotation written out


class Objective:
    """One network on one device, evaluated with the tensors that a client holds.

    Gradients are computed in ``precision``, if asked for with gradient ``checkpointing``, and outputs for evaluation in
    the type of the model. With ``secure_noise``, parts draw noise for privacy from the operating system.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        key: Key,
        precision: str = FLOAT32,
        checkpointing: bool = False,
        *,
        secure_noise: bool = False,
    ) -> None:
        self.task, self.key, self.checkpointing, self.secure_noise = task, key, checkpointing, secure_noise
        self.device = torch.device(device)
        self.precision = Precision(precision, self.device)
        self._module = without_counters(stretch(self.build()))
        self.precision.prepare(self._module)
        self._checkpoints = Checkpointing(self._module) if checkpointing else None
        self.trained, self.averaged, self.counters, self.constant, self._changing = roles(self._module)
        tensors = named_tensors(self._module)
        self._counts = {name: tensors[name].clone() for name in self.counters}
        self._outline = {name: hollow(tensors[name]) for name in (*self.trained, *self.averaged)}
        self._untrained = untrained(self._module)
        self.frozen = sum(p.numel() for p in self._module.parameters() if not p.requires_grad)
        self._places, self._owners = places(self._module), moves.owners(self._module, self.trained)
        put(self._outline, self._places)  # trained tensors are passed in, so the module need not hold a copy
        self._recurrent = self.device.type == "cuda" and any(isinstance(m, nn.RNNBase) for m in self._module.modules())
        self._alone, self._together = False, True
        self._counted: dict[tuple[Any, ...], Counted] = {}
        self._widths: dict[bool, Widths] = {}
        self._settled: tuple[Params, nn.Module] | None = None
        self._randomness: Randomness | None = None
        self.layout = Layout.of(self._outline)
        check_type(precision, self.layout.dtype)
        self.samples = task.data.train.to(device)
        self._form: Nest = self.samples.example(0)[0] if len(self.samples) else torch.empty(0)

    def layers(self) -> dict[str, nn.Module]:
        """Return the layers of the network by name. Their exchanged tensors have no values."""
        return dict(self._module.named_modules())

    def on_cpu(self) -> "Objective":
        """Return the same objective on the CPU, in a precision that it has, without checkpointing."""
        return Objective(self.task, "cpu", self.key, on_cpu(self.precision.name), secure_noise=self.secure_noise)

    def blocks(self) -> list[nn.Module]:
        """Return the blocks that checkpointing repeats."""
        return repeated_blocks(self._module)

    def kept(self) -> list[Tensor]:
        """Return the network's tensors that are not passed in: frozen parameters, and buffers without exchange."""
        given = {*self.trained, *self.averaged, *self.counters}
        return [tensor for name, tensor in named_tensors(self._module).items() if name not in given]

    def build(self, params: Params | None = None) -> nn.Module:
        """Build the network, optionally with other tensors; narrower tensors give a narrower network."""
        module = self._filled(params or {})
        return stretch(module) if params and self._narrow(params) else module

    def _narrow(self, params: Params) -> bool:
        """Return whether tensors belong to a narrower network."""
        return any(params[name].shape != whole.shape for name, whole in self._outline.items() if name in params)

    def _filled(self, params: Params, number: int = 0) -> nn.Module:
        """Build the network with these tensors; its layers may still have other widths as attributes."""
        with seeded(fold(self.key, "model", *([number] if number else []))):
            module = build(self.task.model)
        module = copy.deepcopy(module)  # some tasks return the same module at every call
        named = named_tensors(module)
        for name, tensor in params.items():
            if name in named and tensor.shape != named[name].shape:
                named[name].data = torch.empty_like(tensor, device=named[name].device)
        module.load_state_dict(params, strict=False)
        return module.to(self.device)

    def initial(self, number: int = 0) -> Params:
        """Return the initial exchanged tensors; each number gives other initial weights."""
        named = named_tensors(self._filled({}, number))
        return {name: named[name].detach().clone() for name in self._outline}

    def outline(self) -> Params:
        """Return the exchanged tensors as zeros without memory: names, shapes, type and device."""
        return dict(self._outline)

    def local(self) -> Params:
        """Return the integer buffers, which a client counts within a round."""
        return {name: count.clone() for name, count in self._counts.items()}

    @property
    def random(self) -> Randomness:
        """How the network draws random numbers in training, found by a trial pass."""
        if self._randomness is None:
            self._try(self.initial())
        assert self._randomness is not None
        return self._randomness

    def _try(self, params: Params) -> Tensor:
        """Run one forward and backward pass on two samples; return the loss."""
        x, y = self._here(self._some())
        with seeded(Key(0, 0)), torch.enable_grad():
            held = {**params, **self.local()}
            before = {name: buffer.clone() for name, buffer in self._module.named_buffers()} | held
            (loss, *_), self._randomness = trial(self._module, self.device, lambda: self.gradient(held, x, y))
        if self._checkpoints:
            after = self._module.named_buffers()
            self._checkpoints.constant = {name for name, buffer in after if torch.equal(buffer, before[name])}
        return loss

    def widths(self, streams: bool = True) -> Widths:
        """Return the network's width rule; with ``streams`` a residual stream has the same channels everywhere."""
        if streams not in self._widths:
            x, _ = self._some()
            if not nests.count(x):
                raise ConfigError(
                    "the width rule is derived from a sample, but this machine has none: "
                    "give the server test samples, or state the rule by hand"
                )
            with seeded(fold(self.key, "model")):
                module = build(self.task.model).train()
            named = named_tensors(module)
            travels = {name: named[name] for name in (*self.trained, *self.averaged)}
            with seeded(Key(0, 0)):
                self._widths[streams] = derive(module, travels, x, streams)
        return self._widths[streams]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.task.clients

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the task's metrics."""
        return tuple(metric.name for metric in self.task.metrics)

    @property
    def scores_classes(self) -> bool:
        """Whether targets are class numbers, one per sample, and outputs are scores of the classes."""
        known = LOSSES.get(loss_name(self.task.loss) or "")
        y = self.samples.y
        return y.dtype == torch.int64 and y.dim() == 1 and (known is None or known.targets == "classes")

    def memory(self, params: Params, solver: Solver) -> int:
        """Return the bytes that a client with these tensors needs for training, including its start tensors."""
        return solver_memory(self, params, solver).total

    def _some(self) -> Batch:
        """Return two samples for a trial: training samples or, on a server without them, test samples."""
        data = self.task.data
        return (data.train if len(data.train) else data.test).example(2)

    def _here(self, batch: Batch) -> Batch:
        """Return a batch on the objective's device."""
        return nests.move(batch[0], self.device), batch[1].to(self.device)

    def draws(self, key: Key, samples: int) -> Tensor | None:
        """Return random numbers for the augmentation, one row per sample; none without augmentation."""
        augment = self.task.data.augment
        if augment is None:
            return None
        return uniform(key, samples * augment.draws, device=self.device).view(samples, augment.draws)

    def batch(self, rows: Tensor, draws: Tensor | None) -> Batch:
        """Return training samples by index, augmented with ``draws`` if the data defines an augmentation."""
        x, y = self.samples.read(rows)
        return self._augmented(x, draws), y

    def open(self, feed: State) -> Batch:
        """Return the batch of a feed: sample indices, or inputs that were read before the step."""
        if "rows" in feed:
            return self.batch(feed["rows"], feed.get("draws"))
        return self._augmented(nests.rebuild(self._form, feed["x"]), feed.get("draws")), feed["y"]

    def _augmented(self, x: Nest, draws: Tensor | None) -> Nest:
        augment = self.task.data.augment
        if augment is None or draws is None:
            return x
        assert isinstance(x, Tensor)
        return augment(x, draws)

    def _output(self, tensors: Params, x: Nest) -> Tensor:
        """Return the network's output with these tensors; faster than ``torch.func.functional_call``."""
        put(self._apart(tensors), self._places)
        return forward(self._module, x)

    def _apart(self, tensors: Params) -> Params:
        """Return the tensors; copies if cuDNN would take weights in one vector for its own buffer, in another order."""
        return {name: tensor.clone() for name, tensor in tensors.items()} if self._recurrent else tensors

    def gradient(
        self,
        params: Params,
        x: Nest,
        y: Tensor,
        labels: Tensor | None = None,
        training: bool = True,
        numbers: Numbers | None = None,
    ) -> tuple[Tensor, Params, Params]:
        """Return loss, gradients and changed buffers of one batch, in training or evaluation mode.

        Scores of labels with a 0 in ``labels`` count as 0. Random layers draw from ``numbers``, if given. Tensors that
        require gradients are taken as leaves of autograd, which saves making them anew in every step.
        """
        given = {name: params[name] for name in self.trained}
        leaves = {n: t if t.requires_grad else t.detach().requires_grad_() for n, t in given.items()}
        fixed = {name: params[name] for name in self.constant}
        buffers = {name: params[name].clone() for name in self._changing}
        if training:
            self.train_mode(alone=len(y) == 1)
        else:
            self._module.eval()
        with self.precision.products():
            with drawing(numbers), self._checkpoints.active() if self._checkpoints else nullcontext():
                output = self.precision.forward(lambda: self._output({**leaves, **fixed, **buffers}, x))
                loss = self.task.loss(only(output, labels), y)
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        filled = (torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves.values(), strict=True))
        return loss.detach(), dict(zip(leaves, filled, strict=True)), buffers

    def pure_gradient(
        self, params: Params, x: Nest, y: Tensor, labels: Tensor | None = None, numbers: Numbers | None = None
    ) -> tuple[Tensor, Params, Params]:
        """Return the same as ``gradient``, for ``torch.vmap`` and ``torch.compile``.

        The caller sets the mode of the network, and the precision of products.
        """

        def loss(leaves: Params, others: Params) -> LossAndBuffers:
            changed = {name: tensor.clone() for name, tensor in others.items()}
            with drawing(numbers):
                output = self.precision.forward(
                    lambda: scores(functional_call(self._module, {**leaves, **fixed, **changed}, *arguments(x)))
                )
                return self.task.loss(only(output, labels), y), changed

        leaves = {name: params[name] for name in self.trained}
        fixed = {name: params[name] for name in self.constant}
        others = {name: params[name] for name in self._changing}
        grads, (value, changed) = grad_and_value(loss, has_aux=True)(leaves, others)
        return value, grads, changed

    @torch.no_grad()
    def loss(
        self,
        params: Params,
        x: Nest,
        y: Tensor,
        labels: Tensor | None = None,
        move: Move | None = None,
        numbers: Numbers | None = None,
    ) -> Tensor:
        """Return the loss of one batch in training mode, without a backward pass. Arguments are as in ``gradient``.

        Each trained tensor is changed by ``move`` just before it is used, so that only those of one layer exist twice.
        """
        late = [] if move is None else self._late
        self.train_mode(alone=len(y) == 1)
        with self.precision.products(), drawing(numbers):
            output = self.precision.forward(lambda: self._moved_output(params, x, move, late))
            return self.task.loss(only(output, labels), y)

    def _moved_output(self, params: Params, x: Nest, move: Move | None, late: moves.Owned) -> Tensor:
        """Return the output at moved tensors; those of the modules ``late`` are moved when these are called."""
        names = {place.name for _, places in late for place in places}
        here = [name for name in self.trained if name not in names]
        put(self._apart(moves.moved(params, move, here)), self._places)
        if move is None or not late:
            return forward(self._module, x)
        with moves.layer_by_layer(late, params, move):
            return forward(self._module, x)

    @cached_property
    def _late(self) -> moves.Owned:
        """The modules whose tensors can be moved when they are called, found by a trial on two samples."""
        params, (x, _) = {**self.initial(), **self.local()}, self._here(self._some())
        self.train_mode(alone=False)

        @torch.no_grad()
        def run(late: moves.Owned) -> Tensor:
            with seeded(Key(0, 0)):
                return self._moved_output(params, x, moves.trial, late)

        late = moves.called(self._owners, lambda: run([]))
        return late if moves.agree(run(late), run([])) else []

    def pure_loss(
        self,
        params: Params,
        x: Nest,
        y: Tensor,
        labels: Tensor | None = None,
        move: Move | None = None,
        numbers: Numbers | None = None,
    ) -> Tensor:
        """Return the same as ``loss``, for ``torch.vmap`` and ``torch.compile``; see ``pure_gradient``."""
        held = moves.moved(
            {name: params[name] for name in (*self.trained, *self.averaged, *self.counters)}, move, self.trained
        )
        with drawing(numbers):
            output = self.precision.forward(lambda: scores(functional_call(self._module, held, *arguments(x))))
            return self.task.loss(only(output, labels), y)

    def check_forward(self) -> None:
        """Refuse networks that losses alone do not train: with buffers of their own, or other random numbers."""
        checks.check_draws(self.random)
        held, batch = {**self.initial(), **self.local()}, self._here(self._some())
        if not len(batch[1]):
            return
        _ = self._late  # the trial is not part of a step
        with seeded(Key(0, 0)), torch.enable_grad():
            changed = self.gradient(held, *batch)[2]
        checks.check_unchanged(changed, held)

    def sample_gradients(
        self, params: Params, x: Nest, y: Tensor, labels: Tensor | None = None, numbers: Numbers | None = None
    ) -> tuple[Tensor, Params, Params]:
        """Return the losses of the samples of a batch and their gradients, along a new first dimension.

        For ``torch.vmap`` and ``torch.compile``, as ``pure_gradient``. No buffers change: ``check_per_sample`` refuses
        such networks.
        """
        compute = per_sample.together if self._together else per_sample.in_turn
        return *compute(per_sample.of_one(self, params, labels, numbers), x, y), {}

    def check_per_sample(self) -> None:
        """Refuse networks without gradients of single samples; without any samples, only the layers are checked."""
        single = "does not support solvers that need the gradients of single samples: leave it out"
        require((not self.checkpointing, Mistake(single, Setting("", "checkpointing"))))
        per_sample.check_norms(self._module.named_modules())
        batch = self._here(self._some())
        if len(batch[1]):
            per_sample.check(self, batch)
            self._together = per_sample.supports_vmap(self, batch)

    def train_mode(self, alone: bool) -> None:
        """Set training mode; for a single sample, BatchNorm layers with one value per channel stay in evaluation."""
        if not self._module.training or alone != self._alone:
            lonely = self._lonely if alone else []
            self._module.train()
            self._alone = alone
            for norm in lonely:
                norm.eval()

    @cached_property
    def _lonely(self) -> list[nn.Module]:
        """The BatchNorm layers that see one value per channel in a batch of one sample."""
        self._module.eval()
        x, _ = self.samples.example(1)
        return lonely_norms(self._module, lambda: self._output({**self._outline, **self._counts}, x))

    def evaluate(self, params: Params, x: Nest, y: Tensor, labels: Tensor | None = None) -> Judgement:
        """Return the loss and metrics of a model on samples; ``labels`` as in ``gradient``."""
        return self.judged(self.outputs(params, Samples(x, y)), y, labels)

    @torch.no_grad()
    def outputs(self, params: Params, samples: AnySamples, index: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the network's outputs in evaluation mode, batch by batch, for some samples or for all."""
        network = self._deployed(params)
        for x in samples.inputs_in_order(self.task.statistics.size, index):
            yield network(x)

    def judged(
        self, outputs: Iterable[Tensor], y: Tensor, labels: Tensor | None = None, keep: bool = False
    ) -> Judgement:
        """Return the loss and metrics of outputs; ``labels`` as in ``gradient``. ``keep`` keeps the outputs."""
        counted = (only(output, labels) for output in outputs)
        return judge(counted, y, self.task.loss, self.task.metrics, keep)

    @cached_property
    def static(self) -> bool:
        """Whether the network has static norms, so that ``Task.statistics`` matters."""
        return bool(static_norms(self._module))

    def _deployed(self, params: Params) -> Callable[[Nest], Tensor]:
        """Return the network in evaluation mode; static norms use the statistics that the task defines."""
        if not isinstance(self.task.statistics, OfTraining) or not self.static:
            self._module.eval()
            return partial(self._output, params)
        if self._settled is None or self._settled[0] is not params:
            self._settled = params, self.settle(params)
        return partial(forward, self._settled[1])

    def settle(self, params: Params) -> nn.Module:
        """Return a copy of the network whose static norms have the mean statistics of the training samples."""
        network, draws = tracking(self._filled(params)), self.draws(fold(self.key, "settle"), len(self.samples))
        network = (stretch(network) if self._narrow(params) else network).train()
        with seeded(fold(self.key, "settle")):
            for rows in torch.split(torch.arange(len(self.samples), device=self.device), self.task.statistics.size):
                forward(network, self.batch(rows, None if draws is None else draws[rows])[0])
        return network.eval()

    def flops(self, params: Params, rows: Tensor, keep: Params | None = None) -> Flops:
        """Return the operations of one forward and backward pass; counted once for tensors of the same shapes."""
        shapes = (len(rows), *(params[name].shape for name in self.trained))
        if shapes not in self._counted:
            self.train_mode(alone=len(rows) == 1)  # may take a forward pass, which does not count
            held, batch = {**self.local(), **params}, self.samples.read(rows)
            with seeded(Key(0, 0)), torch.enable_grad():
                self._counted[shapes] = operations.count(lambda: self.gradient(held, *batch))
        counted = self._counted[shapes]
        if not keep:
            return Flops(counted.total, counted.total)
        trained = {name: params[name] for name in self.trained}
        others = {name: params.get(name, tensor) for name, tensor in self._untrained.items()}
        return operations.with_masks(counted, trained, others, keep)

    def forward_flops(self, params: Params, rows: Tensor) -> int:
        """Return the operations of evaluating samples, from those of two: norms of a batch refuse a single sample."""
        some = rows[:2]
        shapes = ("forward", len(some), *(params[name].shape for name in self.trained))
        if shapes not in self._counted:
            self._counted[shapes] = operations.count(lambda: self.evaluate(params, *self.samples.read(some)))
        return len(rows) * self._counted[shapes].total // max(1, len(some))

    def check(self, params: Params) -> None:
        """Try one forward and backward pass on two samples, to find an invalid model before training."""
        x, y = self._here(self._some())
        precision, targets = self.precision.name, [held.y for held in (self.task.data.train, self.task.data.test)]
        with watched(self._module) as layers, checks.explaining(x, self.layout.dtype, precision, layers):
            output = self._two_outputs(params, x)
            checks.check_labels(self.task.loss, output, targets)
            checks.check_loss(self.task.loss, output, y)
            loss = self._try(params)
        checks.check_finite(loss)
        checks.check_metrics(self.task.metrics, output, y)
        if self.checkpointing:
            checks.check_repeats(self.random)

    def _two_outputs(self, params: Params, x: Nest) -> Tensor:
        """Return the outputs for two samples in evaluation mode."""
        self._module.eval()
        with torch.no_grad(), seeded(Key(0, 0)):
            return self._output({**params, **self.local()}, x)
