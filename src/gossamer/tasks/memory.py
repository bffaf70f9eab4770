"""Memory of a training step in bytes, from the shapes of its tensors.

A training step holds the batch, the network's tensors, their gradients, the solver's state, and the activations that
the forward pass saves for the backward pass. A solver that weights the gradient of each sample holds one gradient
per row of its batches, and their sum. The activations are measured with a forward pass and autograd's hooks. Tensors
with shared storage count once.

A solver that evaluates losses only has no gradients, and a forward pass saves nothing. Its activations are the largest
sum of the tensors that exist at the same time in a forward pass, with the moved tensors of a layer and the random
numbers for them.

The true peak is close to this sum. It is lower by activations that are freed before the last gradients exist, so at
most by the smaller of the two. It is higher by temporary results of single operations. Code, kernel workspaces and the
stored samples are not counted.

The passes run on the CPU with PyTorch's own kernels, so all machines with the same PyTorch version agree, whatever the
training device.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require
from gossamer.core.random import Key, seeded
from gossamer.core.random import tensor as key_tensor
from gossamer.core.random.directions import direction
from gossamer.core.solver import Move, PerSampleSolver, Solver
from gossamer.core.types import Params
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.samples import Samples
from gossamer.tasks.modes import LightMode

MANY = 2**30
"""More samples than any client has: then batches have the most rows."""

Storages = dict[int, torch.UntypedStorage]
"""Storages by identity; references are kept so that an identity is not reused."""


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of one training step, in bytes.

    Args:
        parameters: the network's tensors, including buffers and frozen parameters
        gradients: one gradient per trained tensor, or several with a solver that needs those of samples
        solver: state that the solver keeps between steps
        activations: the batch, and tensors that the forward pass saves for the backward pass; without a backward pass,
            the most that exist at the same time
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
    samples: Samples

    def on_cpu(self) -> "Trainable":
        """Return the same objective on the CPU."""
        ...

    def local(self) -> Params:
        """Return the integer buffers, which a client counts within a round."""
        ...

    def build(self) -> nn.Module:
        """Build the network with its initial weights."""
        ...

    def gradient(self, params: Params, x: Nest, y: Tensor) -> tuple[Tensor, Params, Params]:
        """Return loss, gradients and changed buffers of one batch."""
        ...

    def loss(
        self, params: Params, x: Nest, y: Tensor, labels: Tensor | None = None, move: Move | None = None
    ) -> Tensor:
        """Return the loss of one batch, at moved tensors."""
        ...


def training_memory(
    module: nn.Module, x: Nest, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], *, copies: int = 0
) -> TrainingMemory:
    """Return the memory of a network's training step on a batch; the module is not changed.

    ``copies`` is the number of values that the solver keeps per trained value: 0 for plain SGD, 1 for momentum, 2 for
    Adam. A client keeps one more: the start of its round, which it needs to compute the update.
    """
    _check(copies)
    module = copy.deepcopy(module).cpu().train()
    x, y = nests.apply(_copy, x), _copy(y)
    with _watched() as saved:
        loss(nests.forward(module, x), y)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return _memory((*module.parameters(), *module.buffers()), trained, saved | _of(x, y), copies)


def client_memory(
    objective: Trainable, params: Params, batch: int, *, copies: int = 0, gradients: int = 1
) -> TrainingMemory:
    """Return the memory of a training step on a client with these tensors, which may be narrower than the model's.

    The batch is all zeros, because its content does not matter. ``copies`` is as in ``training_memory``. ``gradients``
    is the number of gradients that exist at the same time.
    """
    missing = sorted({*objective.trained, *objective.averaged} - set(params))
    _check(
        copies,
        (batch >= 1, f"batch must be at least 1, got {batch}"),
        (not missing, f"params must hold every tensor of the model, missing: {', '.join(missing)}"),
    )
    objective = objective.on_cpu()  # whatever the training device
    held = {**objective.local(), **tree.move(params, "cpu")}
    some_x, some_y = objective.samples.example(1)
    x, y = nests.apply(partial(_zeros, batch), some_x), _zeros(batch, some_y)
    with _watched() as saved:
        _, found, copied = objective.gradient(held, x, y)
    for identity in _storages(copied.values()):  # copies of buffers are not activations
        saved.pop(identity, None)
    frozen = [parameter for parameter in objective.build().parameters() if not parameter.requires_grad]
    memory = _memory((*held.values(), *frozen), found.values(), saved | _of(x, y), copies)
    return replace(memory, gradients=gradients * memory.gradients)


def forward_memory(objective: Trainable, params: Params, batch: int, *, copies: int = 0) -> TrainingMemory:
    """Return the memory of a client that evaluates losses at moved tensors; see ``client_memory``.

    ``copies`` is the number of values that the client keeps per trained value, in addition to its start.
    """
    _check(copies, (batch >= 1, f"batch must be at least 1, got {batch}"))
    objective = objective.on_cpu()
    held = {**objective.local(), **tree.move(params, "cpu")}
    some_x, some_y = objective.samples.example(1)
    x, y = nests.apply(partial(_zeros, batch), some_x), _zeros(batch, some_y)
    key, number = key_tensor(Key(0, 0)), torch.zeros((), dtype=torch.int64)

    def moved(name: str, tensor: Tensor) -> Tensor:
        return tensor + direction("rademacher", key, number, tensor.numel(), 0).view(tensor.shape).to(tensor.dtype)

    objective.loss(held, x, y, move=moved)  # a trial pass, if it is the first one
    with seeded(Key(0, 0)), _plain_kernels(), LiveTensors() as live:
        objective.loss(held, x, y, move=moved)
    frozen = [parameter for parameter in objective.build().parameters() if not parameter.requires_grad]
    trained = sum(held[name].nbytes for name in objective.trained)
    return TrainingMemory(
        _size(_storages((*held.values(), *frozen))), 0, copies * trained, live.most + _size(_of(x, y))
    )


class LiveTensors(LightMode):
    """Measures the most bytes of tensors that operations have made and that exist at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._alive = 0, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and note its results."""
        result = func(*args, **(kwargs or {}))
        given = _storages(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and (storage := leaf.untyped_storage())._cdata not in given:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {at: (ref, size) for at, (ref, size) in self._alive.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return result


def solver_copies(solver: Solver, params: Params) -> int:
    """Return the number of values that a solver keeps per trained value, in addition to the parameters."""
    carry = solver.begin(params, {}, {}, 1)
    kept = sum(tensor.nbytes for name, tensor in tree.flatten(carry).items() if not name.startswith("params/"))
    return kept // sum(tensor.nbytes for tensor in params.values())


def model_copies(solver: Solver, params: Params) -> int:
    """Return the number of copies of the received model that a solver makes: 0 or 1."""
    held: Params = solver.begin(params, {}, {}, 1)["params"]
    return int(any(held[name] is not tensor for name, tensor in params.items()))


def batch_size(solver: Any) -> int:
    """Return the number of samples that a step of a solver computes."""
    batch = getattr(solver, "batch", None)
    if not isinstance(batch, int):
        raise ConfigError("the memory of training depends on the batch size: set one (--batch N)")
    return solver.rows(MANY) if isinstance(solver, PerSampleSolver) else batch


def gradient_count(solver: Solver, batch: int) -> int:
    """Return the number of gradients that exist at once: of the batch, or of each sample and of all."""
    return 1 + batch if isinstance(solver, PerSampleSolver) else 1


def _check(copies: int, *others: tuple[bool, str]) -> None:
    require((copies >= 0, f"copies must not be negative, got {copies}"), *others)


def _memory(held: Iterable[Tensor], trained: Iterable[Tensor], saved: Storages, copies: int) -> TrainingMemory:
    parameters = _storages(held)
    gradients = sum(tensor.nbytes for tensor in trained)
    activations = {identity: storage for identity, storage in saved.items() if identity not in parameters}
    return TrainingMemory(_size(parameters), gradients, copies * gradients, _size(activations))


def _storages(tensors: Iterable[Tensor]) -> Storages:
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _zeros(count: int, like: Tensor) -> Tensor:
    return like.new_zeros(count, *like.shape[1:], device="cpu")


def _of(x: Nest, y: Tensor) -> Storages:
    """Return the storages of a batch."""
    return _storages((*nests.leaves(x).values(), y))


def _size(storages: Storages) -> int:
    return sum(storage.nbytes() for storage in storages.values())


@contextmanager
def _watched() -> Iterator[Storages]:
    """Collect the storages that autograd saves inside the block; random generators are restored."""
    saved: Storages = {}

    def pack(tensor: Tensor) -> Tensor:
        saved.update(_storages((tensor,)))
        return tensor

    with seeded(Key(0, 0)), torch.enable_grad(), _plain_kernels(), saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Disable oneDNN: not all machines have it, and its recurrent layers save more than PyTorch's."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
