"""The model and its loss as functions of the model's tensors.

The exchanged tensors are all trainable parameters and all persistent floating-point buffers (BatchNorm's running
statistics). Server and clients exchange and average them. Frozen parameters, integer buffers and buffers that are not
persistent are not exchanged: all machines build the model from the same seed, so they are equal.

A layer may declare buffers that training does not change, such as a base weight that only a server changes, as
``constant_buffers = ("weight",)`` of its class. A step copies all other buffers, because a forward pass may overwrite
them.

BatchNorm uses batch statistics in training, also for a single image, which has many values per channel. If a batch of
one sample has a single value per channel, its variance is undefined. Layers with running statistics then use these and
leave them unchanged.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.core.errors import ConfigError, Mistake, Setting, require
from gossamer.core.random import Key, fold, seeded, uniform
from gossamer.core.solver import Move, Solver
from gossamer.core.types import Flops, Layout, Params, State
from gossamer.tasks import moves, operations, per_sample
from gossamer.tasks.checkpointing import Checkpointing, repeated_blocks
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest, arguments, forward, scores
from gossamer.tasks.data.samples import Batch, Samples
from gossamer.tasks.factory import build
from gossamer.tasks.losses import LOSSES, loss_name, token_scores, weight
from gossamer.tasks.memory import solver_memory
from gossamer.tasks.metrics import Judgement, Rows
from gossamer.tasks.operations import Counted
from gossamer.tasks.per_sample import INVALID
from gossamer.tasks.precision import FLOAT32, Precision, check_type, on_cpu
from gossamer.tasks.random_layers import Numbers, Randomness, drawing, trial
from gossamer.tasks.static_norms import OfTraining, static_norms, tracking, without_counters
from gossamer.tasks.task import Task
from gossamer.tasks.widths import Widths, derive
from gossamer.tasks.widths.elastic import stretch
from gossamer.tasks.widths.trace import watched

LossAndBuffers = tuple[Tensor, Params]  # an alias, because torch.compile does not accept the annotation written out

CONVERTED = {torch.float64: "x.float()", torch.float16: "x.float()", torch.uint8: "x.float() / 255"}
"""What to write for inputs of a type that a network of float32 refuses."""

TYPES = (torch.float32, torch.float64)
"""Data types that exchanged tensors may have."""


class Objective:
    """One network on one device, evaluated with the tensors that a client holds.

    Gradients are computed in ``precision``, if asked for with gradient ``checkpointing``, and outputs for evaluation in
    the type of the model.
    """

    def __init__(
        self, task: Task, device: str, key: Key, precision: str = FLOAT32, checkpointing: bool = False
    ) -> None:
        self.task, self.key, self.checkpointing = task, key, checkpointing
        self.device = torch.device(device)
        self.precision = Precision(precision, self.device)
        self._module = without_counters(stretch(self.build()))
        self.precision.prepare(self._module)
        self._checkpoints = Checkpointing(self._module) if checkpointing else None
        parameters, buffers = dict(self._module.named_parameters()), dict(self._module.named_buffers())
        self.trained = [name for name, p in parameters.items() if p.requires_grad]
        stored = self._module.state_dict().keys()  # without buffers that are not persistent: these are not exchanged
        self.averaged = [name for name, b in buffers.items() if b.is_floating_point() and name in stored]
        self.counters = [name for name, b in buffers.items() if not b.is_floating_point()]
        declared = _declared_constant(self._module)
        self.constant = [name for name in self.averaged if name in declared]
        self._changing = [name for name in (*self.averaged, *self.counters) if name not in declared]
        if not self.trained:
            raise ConfigError("the model has no trainable parameters: nothing to learn")
        _check_types({**parameters, **buffers}, (*self.trained, *self.averaged))
        self._counts = {name: buffers[name].clone() for name in self.counters}
        self._outline = {name: _hollow({**parameters, **buffers}[name]) for name in (*self.trained, *self.averaged)}
        everywhere = self._module.named_parameters(remove_duplicate=False)  # a shared tensor has several names
        self._fixed = {name: p for name, p in everywhere if not p.requires_grad}
        self._fixed |= {name: self._outline.get(name, b) for name, b in buffers.items() if name in declared}
        self._registries, self._owners = _registries(self._module), moves.owners(self._module, self.trained)
        self._put(self._outline)  # trained tensors are passed in, so the module need not hold a copy
        self._alone, self._together = False, True
        self._counted: dict[tuple[Any, ...], Counted] = {}
        self._widths: dict[bool, Widths] = {}
        self._settled: tuple[Params, nn.Module] | None = None
        self._randomness: Randomness | None = None
        self.layout = Layout.of(self._outline)
        self.frozen = sum(p.numel() for p in parameters.values() if not p.requires_grad)
        check_type(precision, self.layout.dtype)
        self.samples = task.data.train.to(device)
        self._form: Nest = self.samples.example(0)[0] if len(self.samples) else torch.empty(0)

    def layers(self) -> dict[str, nn.Module]:
        """Return the layers of the network by name. Their exchanged tensors have no values."""
        return dict(self._module.named_modules())

    def on_cpu(self) -> "Objective":
        """Return the same objective on the CPU, in a precision that it has, without checkpointing."""
        return Objective(self.task, "cpu", self.key, on_cpu(self.precision.name))

    def blocks(self) -> list[nn.Module]:
        """Return the blocks that checkpointing repeats."""
        return repeated_blocks(self._module)

    def kept(self) -> list[Tensor]:
        """Return the network's tensors that are not passed in: frozen parameters, and buffers without exchange."""
        named = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        given = {*self.trained, *self.averaged, *self.counters}
        return [tensor for name, tensor in named.items() if name not in given]

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
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, tensor in params.items():
            if name in named and tensor.shape != named[name].shape:
                named[name].data = torch.empty_like(tensor, device=named[name].device)
        module.load_state_dict(params, strict=False)
        return module.to(self.device)

    def initial(self, number: int = 0) -> Params:
        """Return the initial exchanged tensors; each number gives other initial weights."""
        module = self._filled({}, number)
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
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
            named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
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
        self._put(tensors)
        return forward(self._module, x)

    def _put(self, tensors: Params) -> None:
        for name, tensor in tensors.items():
            for registry, attribute in self._registries[name]:
                registry[attribute] = tensor

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

        Scores of labels with a 0 in ``labels`` count as 0. Random layers draw from ``numbers``, if given.
        """
        leaves = {name: params[name].detach().requires_grad_() for name in self.trained}
        fixed = {name: params[name] for name in self.constant}
        buffers = {name: params[name].clone() for name in self._changing}
        if training:
            self.train_mode(alone=len(y) == 1)
        else:
            self._module.eval()
        with self.precision.products():
            with drawing(numbers), self._checkpoints.active() if self._checkpoints else nullcontext():
                output = self.precision.forward(lambda: self._output({**leaves, **fixed, **buffers}, x))
                loss = self.task.loss(_only(output, labels), y)
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
                return self.task.loss(_only(output, labels), y), changed

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
            return self.task.loss(_only(output, labels), y)

    def _moved_output(self, params: Params, x: Nest, move: Move | None, late: moves.Owned) -> Tensor:
        """Return the output at moved tensors; those of the modules ``late`` are moved when these are called."""
        names = {place.name for _, places in late for place in places}
        self._put(moves.moved(params, move, [name for name in self.trained if name not in names]))
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
            return self.task.loss(_only(output, labels), y)

    def check_forward(self) -> None:
        """Refuse networks that losses alone do not train: with buffers of their own, or other random numbers."""
        if other := self.random.other:
            raise ConfigError(
                f"the network draws random numbers by {other}: two losses of a batch would differ by them; use layers "
                "of torch, such as nn.Dropout"
            )
        held, batch = {**self.initial(), **self.local()}, self._here(self._some())
        if not len(batch[1]):
            return
        _ = self._late  # the trial is not part of a step
        with seeded(Key(0, 0)), torch.enable_grad():
            changed = self.gradient(held, *batch)[2]
        for name, after in changed.items():
            if not torch.equal(after, held[name]):
                raise ConfigError(
                    f"the forward pass changes the buffer {name}, which a method that sends scalars does not send: use "
                    "layers without running statistics, such as nn.GroupNorm, or --model resnet18-gn"
                )

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
        norms = [m for m in self._module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        found: list[nn.Module] = []

        def look(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel() == inputs[0].shape[1]:
                found.append(norm)

        with ExitStack() as stack, torch.no_grad():
            for norm in norms:
                stack.callback(norm.register_forward_pre_hook(look).remove)
            self._module.eval()
            self._output({**self._outline, **self._counts}, self.samples.example(1)[0])
        return found

    def evaluate(self, params: Params, x: Nest, y: Tensor, labels: Tensor | None = None) -> Judgement:
        """Return the loss and metrics of a model on samples; ``labels`` as in ``gradient``."""
        return self.judged(self.outputs(params, Samples(x, y)), y, labels)

    @torch.no_grad()
    def outputs(self, params: Params, samples: Samples, index: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the network's outputs in evaluation mode, batch by batch, for some samples or for all."""
        network = self._deployed(params)
        for x in samples.inputs_in_order(self.task.statistics.size, index):
            yield network(x)

    def judged(
        self, outputs: Iterable[Tensor], y: Tensor, labels: Tensor | None = None, keep: bool = False
    ) -> Judgement:
        """Return the loss and metrics of outputs; ``labels`` as in ``gradient``. ``keep`` keeps the outputs."""
        metrics, loss, total, weights, start = self.task.metrics, self.task.loss, 0.0, 0, 0
        rows: list[list[Tensor | None]] = [[] for _ in metrics]
        kept: list[Tensor] = []
        for output in outputs:
            counted, ys = _only(output, labels), y[start : start + len(output)]
            start += len(ys)
            total += float(loss(counted, ys)) * (share := weight(loss, ys))
            weights += share
            for metric, found in zip(metrics, rows, strict=True):
                found.append(None if found and found[0] is None else metric.rows(counted, ys))
            if keep or any(found[0] is None for found in rows):
                kept.append(counted)
        mean = total / weights if weights else math.nan
        return Judgement(mean, metrics, tuple(map(_joined, rows)), y, torch.cat(kept) if kept else None)

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
        fixed = {name: params.get(name, tensor) for name, tensor in self._fixed.items()}
        return operations.with_masks(counted, trained, fixed, keep)

    def forward_flops(self, params: Params, rows: Tensor) -> int:
        """Return the operations of evaluating samples, as a multiple of the first sample's."""
        shapes = ("forward", *(params[name].shape for name in self.trained))
        if shapes not in self._counted:
            self._counted[shapes] = operations.count(lambda: self.evaluate(params, *self.samples.read(rows[:1])))
        return len(rows) * self._counted[shapes].total

    def check(self, params: Params) -> None:
        """Try one forward and backward pass on two samples, to find an invalid model before training."""
        x, y = self._here(self._some())
        with watched(self._module) as layers:
            try:
                output = self._two_outputs(params, x)
                self._check_labels(output)
                self._check_loss(output, y)
                loss = self._try(params)
            except ConfigError:
                raise
            except INVALID as error:
                where = (f" at {layers[-1]}" if layers else "") + self._in_precision
                raise ConfigError(
                    f"the model fails on a batch of samples of shape {nests.shapes(x)}{where}: {error}"
                    f"{_type_hint(x, params) if 'type' in str(error) else ''}"
                ) from error
        if loss.dim() != 0 or not torch.isfinite(loss):
            raise ConfigError(f"the loss of a batch must be one finite number, got {loss}: check model, loss and data")
        self._check_metrics(output, y)
        self._check_repeats()

    def _check_repeats(self) -> None:
        """Refuse checkpointing if a repeated block would draw other numbers."""
        if self.checkpointing and (other := self.random.other):
            text = f"repeats blocks of the network, which would draw other numbers by {other}: leave it out"
            raise ConfigError(Mistake(text, Setting("", "checkpointing")))

    @property
    def _in_precision(self) -> str:
        """The precision for an error message, if it is not the default: the network may not support it."""
        return "" if self.precision.name == FLOAT32 else f" with precision {self.precision.name}"

    def _two_outputs(self, params: Params, x: Nest) -> Tensor:
        """Return the outputs for two samples in evaluation mode."""
        self._module.eval()
        with torch.no_grad(), seeded(Key(0, 0)):
            return self._output({**params, **self.local()}, x)

    def _check_loss(self, output: Tensor, y: Tensor) -> None:
        """Try the loss on the outputs for two samples, so that its mistakes are not taken for the network's."""
        try:
            with warnings.catch_warnings(action="ignore"):  # training shows them
                loss = self.task.loss(output.detach().requires_grad_(), y)
        except Exception as error:  # a user's function may fail in any way
            shapes = f"outputs {list(output.shape)} and targets {list(y.shape)}"
            raise ConfigError(f"the loss fails on {shapes}: {error}") from error
        tensor = isinstance(loss, Tensor)
        got = list(loss.shape) if tensor else f"a {type(loss).__name__}"
        require(
            (
                tensor and not loss.dim(),
                f"the loss must return one number for a batch, a tensor of shape [], got {got}",
            ),
            (
                not tensor or loss.requires_grad,
                "the loss has no gradient: compute it from the outputs by operations of torch",
            ),
        )

    @torch.no_grad()
    def _check_metrics(self, output: Tensor, y: Tensor) -> None:
        """Try each metric on the outputs for two samples."""
        for metric in self.task.metrics:
            try:
                with warnings.catch_warnings(action="ignore"):  # of two samples: some metrics need more
                    rows = metric.rows(output, y)
                    metric.of_all(output, y) if rows is None else metric.mean(rows.cpu().numpy())
            except INVALID as error:
                shapes = f"outputs of shape {list(output.shape)} and targets of shape {list(y.shape)}"
                raise ConfigError(f"the metric {metric.name} fails on {shapes}: {error}") from error

    def _check_labels(self, output: Tensor) -> None:
        """Refuse labels beyond the outputs of a classifier, of samples or of their tokens."""
        name, targets = loss_name(self.task.loss), [held.y for held in (self.task.data.train, self.task.data.test)]
        if output.dim() < 2 or name not in ("cross_entropy", "nll") or any(y.dtype != torch.int64 for y in targets):
            return
        y = next((y for y in targets if len(y)), targets[0])[: len(output)]
        outputs = (output if y.dim() == 1 else token_scores(name, output, y.to(output.device))[0]).shape[1]
        classes = max((int(y.max()) for y in targets if y.numel()), default=-1) + 1
        if 0 < outputs < classes:
            raise ConfigError(
                f"the largest label is {classes - 1}, but the model has {outputs} outputs, for the labels 0 to "
                f"{outputs - 1}: number the labels from 0, or give the model {classes} outputs"
            )


def _declared_constant(module: nn.Module) -> set[str]:
    """Return the names of the buffers that layers declare as constant."""
    layers = module.named_modules()
    return {f"{name}.{buffer}" if name else buffer for name, layer in layers for buffer in _constants(layer)}


def _constants(layer: nn.Module) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(type(layer), "constant_buffers", ())
    return found


def _type_hint(x: Nest, params: Params) -> str:
    """Return what to write if inputs and network have different types."""
    network = next(iter(params.values())).dtype
    other = next((leaf.dtype for leaf in nests.leaves(x).values() if leaf.dtype in CONVERTED), network)
    if other == network:
        return ""
    return f": x is {_short(other)} and the network {_short(network)}: write {CONVERTED[other]}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_types(tensors: Params, names: Iterable[str]) -> None:
    """Refuse exchanged tensors of a type that is too inexact for sums and codecs."""
    wrong = {name: tensors[name].dtype for name in names if tensors[name].dtype not in TYPES}
    for name, dtype in wrong.items():
        raise ConfigError(
            f"the model's tensor {name} has type {dtype}: models are trained in float32 or float64; build the network "
            "in one of these, with model.float() (for half-precision messages use Dense('float16'))"
        )


def _hollow(tensor: Tensor) -> Tensor:
    """Return zeros of a tensor's shape that take no memory."""
    return tensor.detach().new_zeros(()).expand(tensor.shape)


def _only(output: Tensor, labels: Tensor | None) -> Tensor:
    """Set the scores of excluded labels to 0."""
    return output if labels is None else output * labels


def _joined(rows: list[Tensor | None]) -> Rows | None:
    """Return the rows of all batches; none if a metric has none."""
    found = [each for each in rows if each is not None]
    return torch.cat(found).to("cpu").numpy() if found else None


def _registries(module: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Return where the module registers each tensor; tied tensors have several entries."""
    names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    found: dict[str, list[tuple[dict[str, Any], str]]] = {name: [] for name in names.values()}
    registries = [registry for part in module.modules() for registry in (part._parameters, part._buffers)]
    for registry in registries:
        for attribute, tensor in registry.items():
            if tensor is not None:
                found[names[id(tensor)]].append((registry, attribute))
    return found
