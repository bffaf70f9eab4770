"""How many bytes a training step holds, from the shapes of its tensors alone.

While a batch is trained on there are, besides the batch itself, the network's tensors, their gradients, whatever the
solver keeps for each of them, and what the forward pass leaves for the backward pass. The last is found by making a
forward pass and looking at what autograd saves; tensors that share their memory count once.

A step's true peak is near the sum of these, on either side. It lies below by whatever activations are gone again before
the last gradients are there, so by no more than the smaller of the two. It lies above by what an operation needs for a
moment: its results before others are freed. Code, the workspace of kernels and the samples at rest are not counted.

Passes are made on the CPU with PyTorch's own kernels, so that machines that share nothing but the version of PyTorch
agree, wherever the training itself takes place.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require
from gossamer.core.random import Key, seeded
from gossamer.core.solver import Solver
from gossamer.core.types import Params

Storages = dict[int, torch.UntypedStorage]
"""Pieces of memory by their identity; held on to, or another piece might come to lie at the same place."""


@dataclass(frozen=True)
class TrainingMemory:
    """What one training step holds, in bytes.

    Args:
        parameters: the network's tensors, buffers and frozen parameters included
        gradients: one for each trained tensor
        solver: what the solver keeps from step to step
        activations: the batch, and what the forward pass saves for the backward pass
    """

    parameters: int
    gradients: int
    solver: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.solver + self.activations


class Trainable(Protocol):
    """What is asked of an objective: see ``gossamer.tasks.objective.Objective``."""

    trained: list[str]
    averaged: list[str]
    x: Tensor
    y: Tensor

    def on_cpu(self) -> "Trainable":
        """The same objective on the CPU."""
        ...

    def local(self) -> Params:
        """The tensors that a client counts up within a round."""
        ...

    def build(self) -> nn.Module:
        """The network as it was first built."""
        ...

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params, Params]:
        """Loss, gradients and changed buffers on one batch."""
        ...


def training_memory(
    module: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], *, copies: int = 0
) -> TrainingMemory:
    """What a training step of a network holds on a batch; the module stays as it is.

    ``copies`` is how many values the solver keeps for each trained one: none for plain SGD, one for momentum, two for
    Adam. Where a client began its round, which it needs to tell its change, is one more.
    """
    _check(copies)
    module = copy.deepcopy(module).cpu().train()
    x, y = (tensor.detach().cpu().clone() for tensor in (x, y))
    with _watched() as saved:
        loss(module(x), y)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return _memory((*module.parameters(), *module.buffers()), trained, {**saved, **_storages((x, y))}, copies)


def client_memory(objective: Trainable, params: Params, batch: int, *, copies: int = 0) -> TrainingMemory:
    """What a training step holds on a client that has these tensors, which may be narrower than the model's.

    The batch's contents do not matter, and are zeros. ``copies`` is as in ``training_memory``.
    """
    missing = sorted({*objective.trained, *objective.averaged} - set(params))
    _check(
        copies,
        (batch >= 1, f"batch must be at least 1, got {batch}"),
        (not missing, f"params must hold every tensor of the model, without: {', '.join(missing)}"),
    )
    objective = objective.on_cpu()  # wherever clients train
    held = {**objective.local(), **tree.move(params, "cpu")}
    x, y = (torch.zeros((batch, *some.shape[1:]), dtype=some.dtype) for some in (objective.x, objective.y))
    with _watched() as saved:
        _, gradients, copied = objective.gradient(held, x, y)
    for identity in _storages(copied.values()):  # the pass works on copies of the buffers, which count as buffers
        saved.pop(identity, None)
    frozen = [parameter for parameter in objective.build().parameters() if not parameter.requires_grad]
    return _memory((*held.values(), *frozen), gradients.values(), {**saved, **_storages((x, y))}, copies)


def solver_copies(solver: Solver, params: Params) -> int:
    """How many values a solver keeps from step to step for each trained one, besides the parameters themselves."""
    carry = solver.begin(params, {}, {}, 1)
    kept = sum(tensor.nbytes for name, tensor in tree.flatten(carry).items() if not name.startswith("params/"))
    return kept // sum(tensor.nbytes for tensor in params.values())


def batch_size(solver: Any) -> int:
    """How many samples a solver's batches have, for whoever must know before there are any."""
    batch = getattr(solver, "batch", None)
    if not isinstance(batch, int):
        raise ConfigError("how much memory training takes depends on the size of a batch: give one (--batch N)")
    return batch


def _check(copies: int, *others: tuple[bool, str]) -> None:
    require((copies >= 0, f"copies must not be negative, got {copies}"), *others)


def _memory(held: Iterable[Tensor], trained: Iterable[Tensor], saved: Storages, copies: int) -> TrainingMemory:
    parameters = _storages(held)
    gradients = sum(tensor.nbytes for tensor in trained)
    activations = {identity: storage for identity, storage in saved.items() if identity not in parameters}
    return TrainingMemory(_size(parameters), gradients, copies * gradients, _size(activations))


def _storages(tensors: Iterable[Tensor]) -> Storages:
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


def _size(storages: Storages) -> int:
    return sum(storage.nbytes() for storage in storages.values())


@contextmanager
def _watched() -> Iterator[Storages]:
    """What autograd saves meanwhile; random generators are left as they were."""
    saved: Storages = {}

    def pack(tensor: Tensor) -> Tensor:
        saved.update(_storages((tensor,)))
        return tensor

    with seeded(Key(0, 0)), torch.enable_grad(), _plain_kernels(), saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Without oneDNN, which not every machine has, and whose recurrent layers save more than PyTorch's own."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
