"""Gradient checkpointing: which blocks are repeated, equal gradients and buffers, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import ConfigError, Task
from gossamer.core.random import Key, key, tensor
from gossamer.core.types import Params
from gossamer.parts.adapters import LoRA
from gossamer.tasks.checkpointing import Checkpointing, repeated_blocks
from gossamer.tasks.memory import client_memory
from gossamer.tasks.objective import Objective
from gossamer.tasks.operations import Allocations
from gossamer.tasks.random_layers import Numbers

X, Y = torch.randn(12, 8, generator=torch.Generator().manual_seed(3)), torch.arange(12) % 3
Model = Callable[[], nn.Module]


def block(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), *more, nn.Tanh())


def chain(depth: int, *more: Callable[[], nn.Module]) -> nn.Sequential:
    blocks = (block(*(make() for make in more)) for _ in range(depth))
    return nn.Sequential(nn.Linear(8, 8), *blocks, nn.Linear(8, 3))


def run(layers: nn.Sequential, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


class Transformer(nn.Module):
    """A small transformer of torch's own layers, with a mask."""

    mask: Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4), persistent=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        stream = x.unsqueeze(1).expand(-1, 4, -1) + torch.arange(4.0).view(1, 4, 1)
        scores: Tensor = self.head(self.encoder(stream, mask=self.mask).mean(1))
        return scores


def objective(model: Model, checkpointing: bool = True, precision: str = "float32") -> Objective:
    task = Task.of(model, (X, Y), (X, Y), clients=2)
    return Objective(task, "cpu", key(0), precision, checkpointing)


def gradient(here: Objective, params: Params | None = None, **given: Any) -> tuple[Tensor, Params, Params]:
    held = {**(params or here.initial()), **here.local()}
    numbers = Numbers(tensor(Key(5, 6), here.device), torch.tensor(2))
    return here.gradient(held, X, Y, numbers=numbers, **given)


# Which blocks are repeated.


def test_blocks_are_repeated_classes_with_layers_inside() -> None:
    net = chain(3)
    assert repeated_blocks(net) == [*net][1:4]
    blocks = repeated_blocks(Transformer())
    assert [type(each) for each in blocks] == [nn.TransformerEncoderLayer] * 3
    stages = nn.Sequential(nn.Sequential(block(), block()), nn.Sequential(block()), nn.ReLU())
    assert repeated_blocks(stages) == [*stages][:2]  # outermost first
    stage = nn.Sequential(block(), block())
    assert repeated_blocks(nn.Sequential(stage, nn.Linear(8, 3))) == list(stage)
    shared = block()
    assert repeated_blocks(nn.Sequential(shared, block(), shared))[0] is shared


@pytest.mark.parametrize(
    "net",
    [
        nn.Linear(8, 3),
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.ReLU(), nn.Tanh())),
    ],
    ids=["no container", "layers alone", "no parameters"],
)
def test_a_network_without_blocks_is_refused(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"checkpointing repeats blocks .* looked for in each nn.ModuleList"):
        objective(lambda: net)


# The same numbers.

NETS: dict[str, Model] = {
    "linear": lambda: chain(4),
    "batch norm": lambda: chain(4, lambda: nn.BatchNorm1d(8)),
    "dropout": lambda: chain(4, lambda: nn.Dropout(0.5)),
    "both": lambda: chain(4, lambda: nn.Dropout(0.3), lambda: nn.BatchNorm1d(8)),
    "transformer": Transformer,
    "transformer with dropout": lambda: Transformer(0.2),
    "LoRA": lambda: LoRA(rank=2).adapt(chain(4)),
    "LoRA that merges": lambda: LoRA(rank=2, merges=True).adapt(chain(4)),
}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", NETS)
def test_gradients_and_buffers_have_the_same_bits(name: str, precision: str) -> None:
    plain, here = (objective(NETS[name], checkpointing, precision) for checkpointing in (False, True))
    params = here.initial()
    for tried in (False, True):  # before and after it is known which buffers are constant
        if tried:
            here.check(params)
        wanted, found = gradient(plain, params), gradient(here, params)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert all(grad.count_nonzero() for layer, grad in found[1].items() if "lora_A" not in layer)  # B is 0


def test_a_block_with_a_buffer_of_its_own_gets_its_value_of_the_first_pass() -> None:
    class Counting(nn.Module):
        """Scales by the number of passes, which it counts in a buffer."""

        passes: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("passes", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            scaled: Tensor = self.layer(x).tanh() * self.passes.clone()
            self.passes.add_(1)
            return scaled

    def net() -> nn.Module:
        return nn.Sequential(Counting(), Counting(), nn.Linear(8, 3))

    plain, here = objective(net, False), objective(net)
    here.check(here.initial())
    found = gradient(here)
    torch.testing.assert_close(found, gradient(plain), rtol=0, atol=0)
    assert found[2]["0.passes"] == 2


def test_other_random_numbers_give_other_gradients() -> None:
    here = objective(NETS["dropout"])
    held = {**here.initial(), **here.local()}
    one, other = (
        here.gradient(held, X, Y, numbers=Numbers(tensor(Key(5, 6), here.device), torch.tensor(step)))[1]
        for step in (0, 1)
    )
    assert not torch.equal(one["1.0.weight"], other["1.0.weight"])


def test_blocks_run_twice_in_training_and_once_elsewhere() -> None:
    passes = []

    class Counted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            passes.append(torch.is_grad_enabled())
            return run(self, x)

    here = objective(lambda: nn.Sequential(*(Counted(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)), nn.Linear(8, 3)))
    gradient(here)
    assert len(passes) == 6
    passes.clear()
    here.evaluate(here.initial(), X, Y)
    assert passes == [False] * 3
    passes.clear()
    with torch.no_grad():
        here.pure_gradient(here.initial(), X, Y)
    assert len(passes) == 3  # functorch supports no checkpoint


def test_operations_of_the_second_pass_are_counted() -> None:
    plain, here = (objective(NETS["linear"], checkpointing) for checkpointing in (False, True))
    found, wanted = (each.flops(each.initial(), torch.arange(5)).done for each in (here, plain))
    assert found - wanted == 4 * 2 * 5 * 8 * 8


def test_constant_buffers_are_not_copied() -> None:
    here = objective(NETS["LoRA that merges"])
    here.check(here.initial())
    checkpoints = here._checkpoints
    assert isinstance(checkpoints, Checkpointing)
    assert {"1.0.weight", "4.0.weight"} <= checkpoints.constant
    other = objective(NETS["batch norm"])
    other.check(other.initial())
    assert other._checkpoints is not None
    assert not other._checkpoints.constant


# What is refused.


def test_a_network_that_draws_by_torchs_generator_is_refused() -> None:
    class Draws(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return run(self, x) * torch.empty(8).cauchy_()

    here = objective(lambda: nn.Sequential(*(Draws(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)), nn.Linear(8, 3)))
    with pytest.raises(ConfigError, match=r"checkpointing repeats blocks .* draw other numbers by .*cauchy_"):
        here.check(here.initial())


def test_gradients_of_single_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="checkpointing does not support solvers that need the gradients of single"):
        objective(NETS["linear"]).check_per_sample()


# Memory.


def deep(blocks: int, width: int) -> nn.Module:
    """A chain of blocks of two linear layers, each with a tanh, which saves its output."""

    def pair() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())

    return nn.Sequential(nn.Linear(8, width), *(pair() for _ in range(blocks)), nn.Linear(width, 3))


@pytest.mark.parametrize(("blocks", "width", "batch"), [(2, 16, 4), (4, 16, 32), (8, 40, 12)])
def test_memory_of_a_chain_of_linear_layers(blocks: int, width: int, batch: int) -> None:
    """Without checkpointing the input of each layer waits. With it, those of the blocks, and two inside of one."""
    plain, here = (objective(lambda: deep(blocks, width), checkpointing) for checkpointing in (False, True))
    wanted, found = (client_memory(each, each.initial(), batch, copies=1) for each in (plain, here))
    stream, ends = 4 * batch * width, 4 * batch * 8 + (4 * batch * 3 + 8 * batch + 4)  # the batch, and the loss
    assert wanted.activations == ends + (2 * blocks + 1) * stream
    assert found.activations == ends + (blocks + 1) * stream + stream
    assert replace(found, activations=0) == replace(wanted, activations=0)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_takes_the_memory_that_is_stated(checkpointing: bool, precision: str) -> None:
    """At least the statement without gradients, which come after activations are freed; at most a tenth above it."""
    here = objective(lambda: deep(12, 48), checkpointing, precision)
    here.check(params := here.initial())
    x, y = X.repeat(20, 1), Y.repeat(20)
    with Allocations([*params.values(), x, y]) as counted:
        here.gradient(params, x, y)
    found = client_memory(here, params, len(y))
    assert found.total - found.gradients <= counted.peak <= 1.1 * found.total


def test_memory_follows_the_options_of_a_run() -> None:
    def total(precision: str, checkpointing: bool) -> int:
        here = objective(lambda: deep(12, 48), checkpointing, precision)
        return client_memory(here, here.initial(), 240).activations

    full, half, repeated, both = (total(p, c) for c in (False, True) for p in ("float32", "bf16"))
    assert both < half < full
    assert both < repeated < 0.65 * full
