"""Losses at moved tensors: layer by layer as all at once, with one moved layer in memory and no graph of autograd."""

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import ConfigError, Task
from gossamer.core.random import key
from gossamer.core.types import Params
from gossamer.tasks.objective import Objective
from helpers.tasks import batch_norm_task

TOKENS = torch.randint(5, (8, 4), generator=torch.Generator().manual_seed(3))


class Tied(nn.Module):
    """An embedding whose weights are also the output layer, without a call of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(5, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.middle(self.embedding(x))), self.embedding.weight)


class Shared(nn.Module):
    """The same with a layer that owns the same parameter, and a parameter of the network itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(5, 6), nn.Linear(6, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.offset = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(torch.tanh(self.embedding(x) + self.offset))
        return found


class Attention(nn.Module):
    """Attention of torch, which uses the weights of its projection without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(5, 6), nn.Linear(6, 5)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.embedding(x)
        found: Tensor = self.output(self.attention(inside, inside, inside, need_weights=False)[0])
        return found


class Positions(nn.Module):
    """An embedding whose weights are used without a call of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.output = nn.Embedding(5, 6), nn.Embedding(4, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.tokens(x) + self.positions.weight)
        return found


def objective(network: Callable[[], nn.Module]) -> Objective:
    return Objective(Task.of(network, (TOKENS, TOKENS), (TOKENS, TOKENS), clients=2), "cpu", key(0))


def larger(name: str, tensor: Tensor) -> Tensor:
    return tensor * 1.5 + len(name) / 100


@pytest.mark.parametrize(("network", "late"), [(Tied, 0), (Shared, 3), (Attention, 3), (Positions, 2)])
def test_a_loss_at_moved_tensors_is_that_of_a_network_with_them(network: Callable[[], nn.Module], late: int) -> None:
    found = objective(network)
    params = found.initial()
    moved = {name: larger(name, tensor) for name, tensor in params.items()}
    expected = found.task.loss(found.build(moved)(TOKENS), TOKENS)
    for compute in (found.loss, found.pure_loss):
        assert torch.allclose(compute(params, TOKENS, TOKENS, move=larger), expected)
        assert torch.allclose(compute(moved, TOKENS, TOKENS), expected)
    assert len(found._late) == late


def test_one_moved_layer_is_in_memory_at_a_time() -> None:
    found = objective(lambda: nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 5)))
    params, alive, most = found.initial(), weakref.WeakSet[Tensor](), 0

    def watched(name: str, tensor: Tensor) -> Tensor:
        nonlocal most
        moved = larger(name, tensor)
        alive.add(moved)
        most = max(most, sum(each.numel() for each in alive))
        return moved

    found.loss(params, TOKENS, TOKENS, move=watched)
    assert most == 6 * 6 + 6
    assert not alive
    for name, tensor in params.items():
        assert all(place.registry[place.attribute] is tensor for place in found._places[name])


def test_a_loss_builds_no_graph() -> None:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert not torch.is_grad_enabled() or not asked
            return super().forward(x)

    asked: list[bool] = []
    found = objective(lambda: nn.Sequential(nn.Embedding(5, 6), Watching(6, 5)))
    params: Params = {name: tensor.requires_grad_() for name, tensor in found.initial().items()}
    asked.append(True)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = found.loss(params, TOKENS, TOKENS, move=larger)
    assert not loss.requires_grad
    assert not saved


def test_hooks_are_removed_when_the_network_fails() -> None:
    found = objective(lambda: nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5)))
    with pytest.raises(IndexError):
        found.loss(found.initial(), TOKENS + 9, TOKENS, move=larger)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in found._module.modules())


def test_networks_that_losses_do_not_train_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"changes the buffer 1\.running_mean"):
        Objective(batch_norm_task(), "cpu", key(0)).check_forward()

    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            noise = torch.empty(6).normal_(generator=torch.default_generator)
            return super().forward(x + noise if self.training else x)

    with pytest.raises(ConfigError, match="two losses of a batch would differ"):
        objective(lambda: nn.Sequential(nn.Embedding(5, 6), Own(6, 5))).check_forward()
