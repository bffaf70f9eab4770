"""Memory of a training step in bytes, from the shapes of its tensors.

A training step holds the batch, the network's tensors, their gradients, the solver's state, and the activations that
the forward pass saves for the backward pass. A solver that weights the gradient of each sample holds one gradient
per row of its batches, and their sum. The activations are measured with a forward pass and autograd's hooks, in the
precision of training. Tensors with shared storage count once. Tensors that are not trained have neither gradients nor
solver state.

With gradient checkpointing the activations are those outside of the repeated blocks, the inputs of all blocks, and
those inside the block that has the most: it is computed again while the others wait.

A solver that evaluates losses only has no gradients, and nothing waits for a backward pass. Its activations are the
most that is alive at the same time in a forward pass, with the tensors of the layer that is moved, counted storage by
storage.

The true peak is close to this sum. It is lower by activations that are freed before the last gradients exist, so at
most by the smaller of the two. It is higher by temporary results of single operations. Code, kernel workspaces and the
stored samples are not counted.

The passes run on the CPU with PyTorch's own kernels, so all machines with the same PyTorch version agree, whatever the
training device.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require
from gossamer.core.random import Key, seeded
from gossamer.core.solver import Move, Solver
from gossamer.core.types import Layout, Params
from gossamer.tasks.checkpointing import repeated_blocks
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.samples import AnySamples, Batch
from gossamer.tasks.operations import Allocations, plain_kernels
from gossamer.tasks.precision import FLOAT32, Precision, on_cpu

MANY = 2**30
"""More samples than any client has: then batches have the most rows."""

Storages = dict[int, torch.UntypedStorage]
"""Storages by identity; references are kept so that an identity is not reused."""


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of one training step, in bytes.

    Args:
        parameters: the network's tensors, including buffers and frozen parameters
        gradients: one gradient per trained tensor; several with a solver that needs those of samples; none with one
            that evaluates losses only
        solver: state that the solver keeps between steps
        activations: the batch, and tensors that the forward pass saves for the backward pass; without a backward pass,
            those that are alive at the same time
    """

    parameters: int
    gradients: int
    solver: int
    activations: int

    @property
    def total(self) -> int:
        """Total memory."""
        return self.parameters + self.gradients + self.solver + self.activations


class Trainable(Protocol):
    """The interface of ``gossamer.tasks.objective.Objective`` that this module needs."""

    trained: list[str]
    averaged: list[str]
    constant: list[str]
    samples: AnySamples
    checkpointing: bool

    def on_cpu(self) -> "Trainable":
        """Return the same objective on the CPU, without checkpointing."""
        ...

    def blocks(self) -> list[nn.Module]:
        """Return the blocks that checkpointing repeats."""
        ...

    def local(self) -> Params:
        """Return the integer buffers, which a client counts within a round."""
        ...

    def kept(self) -> list[Tensor]:
        """Return the network's tensors that are not passed in, such as frozen parameters."""
        ...

    def gradient(self, params: Params, x: Nest, y: Tensor) -> tuple[Tensor, Params, Params]:
        """Return loss, gradients and changed buffers of one batch."""
        ...

    def loss(self, params: Params, x: Nest, y: Tensor, *, move: Move | None = None) -> Tensor:
        """Return the loss of one batch without a backward pass, at moved tensors."""
        ...


def training_memory(
    module: nn.Module,
    x: Nest,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    copies: int = 0,
    precision: str = FLOAT32,
    checkpointing: bool = False,
) -> TrainingMemory:
    """Return the memory of a network's training step on a batch; the module is not changed.

    ``copies`` is the number of values that the solver keeps per trained value: 0 for plain SGD, 1 for momentum, 2 for
    Adam. A client keeps one more: the start of its round, which it needs to compute the update. ``precision`` and
    ``checkpointing`` are those of the run.
    """
    _check(copies)
    module = copy.deepcopy(module).cpu().train()
    x, y = nests.apply(_copy, x), _copy(y)
    arithmetic = Precision(on_cpu(precision), torch.device("cpu"))
    arithmetic.prepare(module)
    with _watched(repeated_blocks(module) if checkpointing else []) as saved:
        loss(arithmetic.forward(lambda: nests.forward(module, x)), y)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    saved.outside.update(_storages(_leaves(x, y)))
    return _memory((*module.parameters(), *module.buffers()), trained, saved, copies)


def client_memory(
    objective: Trainable, params: Params, batch: int, *, copies: int = 0, gradients: int = 1
) -> TrainingMemory:
    """Return the memory of a training step on a client with these tensors, which may be narrower than the model's.

    The batch is all zeros, because its content does not matter. ``copies`` is as in ``training_memory``. ``gradients``
    is the number of gradients that exist at the same time. Precision and checkpointing are the objective's.
    """
    _check(copies, *_complete(objective, params, batch))
    objective, checkpointing = objective.on_cpu(), objective.checkpointing  # whatever the training device
    held, (x, y) = {**objective.local(), **tree.move(params, "cpu")}, _batch(objective, batch)
    with _watched(objective.blocks() if checkpointing else []) as saved:
        _, found, copied = objective.gradient(held, x, y)
    saved.ignore(_storages(copied.values()))  # copies of buffers are not activations
    saved.outside.update(_storages(_leaves(x, y)))
    memory = _memory((*held.values(), *objective.kept()), found.values(), saved, copies)
    return replace(memory, gradients=gradients * memory.gradients)


def forward_memory(objective: Trainable, params: Params, solver: Solver, batch: int) -> TrainingMemory:
    """Return the memory of a step of a solver that evaluates losses only, on a client with these tensors."""
    require(*_complete(objective, params, batch))
    objective, params = objective.on_cpu(), tree.move(params, "cpu")
    solver = solver.on(Layout.of(params), objective.trained, objective.constant, "cpu")
    start = solver.layout.flatten(params)  # [n]
    held = {**objective.local(), **params, **solver.layout.unflatten(start)}
    objective.loss(held, *_batch(objective, 1), move=_moved)  # a first pass may find out how the network can be moved
    known, (x, y) = [*held.values(), *objective.kept()], _batch(objective, batch)
    with seeded(Key(0, 0)), plain_kernels(), Allocations([*known, *_leaves(x, y)]) as counted:
        objective.loss(held, x, y, move=_moved)
    parameters, carry = _storages(known), _storages(tree.flatten(solver.begin(start, {}, {}, 1)).values())
    kept = {identity: storage for identity, storage in carry.items() if identity not in parameters}
    size = _size(parameters)
    return TrainingMemory(size, 0, _size(kept), counted.peak - size)


def solver_memory(objective: Trainable, params: Params, solver: Solver) -> TrainingMemory:
    """Return the memory of a step of a solver on a client with these tensors, including its start tensors."""
    batch = batch_size(solver)
    if solver.uses == "losses":
        return forward_memory(objective, params, solver, batch)
    copies = 1 + solver_copies(solver, params, objective.trained, objective.constant)
    gradients = gradient_count(solver, batch)
    return client_memory(objective, params, batch, copies=copies, gradients=gradients)


def solver_copies(solver: Solver, params: Params, trained: Collection[str], constant: Collection[str] = ()) -> int:
    """Return the number of values that a solver keeps per trained value, in addition to the parameters."""
    solver = solver.on(Layout.of(params), trained, constant, tree.device(params))
    start = solver.layout.flatten(params)
    carry = tree.flatten(solver.begin(start, {}, {}, 1))
    kept = sum(tensor.nbytes for name, tensor in carry.items() if name != "params")
    return kept // sum(params[name].nbytes for name in trained)


def batch_size(solver: Any) -> int:
    """Return the number of samples that a step of a solver computes."""
    batch = getattr(solver, "batch", None)
    if not isinstance(batch, int):
        raise ConfigError("the memory of training depends on the batch size: set one (--batch N)")
    return solver.rows(MANY) if solver.uses == "samples" else batch


def gradient_count(solver: Solver, batch: int) -> int:
    """Return the number of gradients that exist at once: of the batch, or of each sample and of all."""
    return 1 + batch if solver.uses == "samples" else 1


def _complete(objective: Trainable, params: Params, batch: int) -> tuple[tuple[bool, str], ...]:
    """Return the checks of a client's tensors and batch size."""
    missing = sorted({*objective.trained, *objective.averaged} - set(params))
    return (
        (batch >= 1, f"batch must be at least 1, got {batch}"),
        (not missing, f"params must hold every tensor of the model, missing: {', '.join(missing)}"),
    )


def _batch(objective: Trainable, size: int) -> Batch:
    """Return a batch of zeros."""
    x, y = objective.samples.example(1)
    return nests.apply(partial(_zeros, size), x), _zeros(size, y)


def _moved(name: str, tensor: Tensor) -> Tensor:
    return tensor + 1


def _check(copies: int, *others: tuple[bool, str]) -> None:
    require((copies >= 0, f"copies must not be negative, got {copies}"), *others)


class Saved:
    """The storages that a forward pass saves for the backward pass, outside of repeated blocks and inside of each."""

    def __init__(self) -> None:
        self.outside: Storages = {}
        self.inside: list[Storages] = []
        self._here = self.outside

    def note(self, tensor: Tensor) -> Tensor:
        """Add the storage of a tensor that autograd saves."""
        self._here.update(_storages((tensor,)))
        return tensor

    def enter(self, block: nn.Module, args: Any, named: Any) -> None:
        """Add the inputs of a block, which wait outside of it for the backward pass."""
        self.outside.update(_storages(each for each in tree_leaves((args, named)) if isinstance(each, Tensor)))
        self._here = {}
        self.inside.append(self._here)

    def leave(self, block: nn.Module, args: Any, output: Any) -> None:
        """Continue outside of a block."""
        self._here = self.outside

    def ignore(self, storages: Storages) -> None:
        """Remove storages that are no activations."""
        for found in (self.outside, *self.inside):
            for identity in storages:
                found.pop(identity, None)

    @property
    def size(self) -> int:
        """The bytes that exist at the same time: of one block at most."""
        own = [_size({i: each for i, each in block.items() if i not in self.outside}) for block in self.inside]
        return _size(self.outside) + max(own, default=0)


def _memory(held: Iterable[Tensor], trained: Iterable[Tensor], saved: Saved, copies: int) -> TrainingMemory:
    parameters = _storages(held)
    gradients = sum(tensor.nbytes for tensor in trained)
    saved.ignore(parameters)
    return TrainingMemory(_size(parameters), gradients, copies * gradients, saved.size)


def _storages(tensors: Iterable[Tensor]) -> Storages:
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _zeros(count: int, like: Tensor) -> Tensor:
    return like.new_zeros(count, *like.shape[1:], device="cpu")


def _leaves(x: Nest, y: Tensor) -> tuple[Tensor, ...]:
    return *nests.leaves(x).values(), y


def _size(storages: Storages) -> int:
    return sum(storage.nbytes() for storage in storages.values())


@contextmanager
def _watched(blocks: Sequence[nn.Module] = ()) -> Iterator[Saved]:
    """Collect the storages that autograd saves, outside and inside of blocks; random generators are restored."""
    saved = Saved()
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(saved.enter, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(saved.leave).remove)
        for each in (seeded(Key(0, 0)), torch.enable_grad(), plain_kernels()):
            stack.enter_context(each)
        with saved_tensors_hooks(saved.note, lambda tensor: tensor):
            yield saved
