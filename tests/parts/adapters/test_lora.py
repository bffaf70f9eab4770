"""LoRA: the adapted network is the network plus products of small matrices, and only these are trained and sent."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer import ConfigError, LoRA, Task, fedavg, simulate
from gossamer.core.random import key
from gossamer.engines.simulation import Simulation
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def moved(module: nn.Module) -> nn.Module:
    """Return an adapted network whose products are not zero."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_()
    return module


@pytest.mark.parametrize("merges", [False, True])
def test_an_adapted_layer_adds_the_scaled_product(merges: bool) -> None:
    plain, adapted = network(), moved(LoRA(rank=2, alpha=3.0, merges=merges).adapt(network()))
    first, last = adapted.get_submodule("0"), adapted.get_submodule("2")
    x = torch.randn(5, 6)

    def slow(layer: nn.Module, own: nn.Module, x: torch.Tensor) -> torch.Tensor:
        product = 1.5 * layer.get_parameter("lora_B") @ layer.get_parameter("lora_A")
        return x @ (own.get_parameter("weight") + product).T + own.get_parameter("bias")

    hidden = slow(first, plain.get_submodule("0"), x).relu()
    torch.testing.assert_close(adapted(x), slow(last, plain.get_submodule("2"), hidden))


def test_training_starts_from_the_network_as_it_is() -> None:
    x = torch.randn(5, 6)
    assert torch.equal(LoRA().adapt(network())(x), network()(x))


@pytest.mark.parametrize("merges", [False, True])
def test_a_merged_network_is_a_plain_one_with_the_same_outputs(merges: bool) -> None:
    adapter = LoRA(rank=2, merges=merges)
    adapted, x = moved(adapter.adapt(network())), torch.randn(5, 6)
    merged = adapter.merge(copy.deepcopy(adapted))
    assert {name: type(layer) for name, layer in merged.named_modules()} == {
        name: type(layer) for name, layer in network().named_modules()
    }
    assert list(merged.state_dict()) == list(network().state_dict())
    torch.testing.assert_close(merged(x), adapted(x))


def test_only_adapters_travel() -> None:
    task = tiny_task()
    run = Objective(task.adapted(LoRA(rank=2)), "cpu", key(0))
    assert run.trained == [name for name, _ in run.layout.shapes if name.endswith(("lora_A", "lora_B"))]
    frozen = Objective(task.adapted(LoRA(rank=2, train="B")), "cpu", key(0))
    assert all(name.endswith("lora_B") for name in frozen.trained)


def test_weights_of_layers_that_merge_are_exchanged_and_not_trained() -> None:
    made = Objective(tiny_task().adapted(LoRA(rank=2, merges=True)), "cpu", key(0))
    assert made.averaged
    assert all(name.endswith("weight") for name in made.averaged)
    assert all("lora" in name for name in made.trained)


def test_targets_and_other_parameters_are_chosen_by_name() -> None:
    adapted = LoRA(rank=2, targets=("0",), also=("2.*",)).adapt(network())
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert trained == {"0.lora_A", "0.lora_B", "2.weight", "2.bias"}


def test_targets_that_match_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer is called attention: the network has 0, 2"):
        LoRA(targets=("attention",)).adapt(network())


def test_the_layers_of_attention_that_are_not_called_are_not_adapted() -> None:
    adapted = LoRA(rank=2).adapt(nn.TransformerEncoderLayer(8, 2, 16))
    assert {name for name, p in adapted.named_parameters() if p.requires_grad} == {
        f"linear{i}.lora_{letter}" for i in (1, 2) for letter in "AB"
    }


def test_the_result_of_a_run_is_a_plain_network() -> None:
    task = tiny_task()
    result = simulate(fedavg(epochs=1).with_parts(adapter=LoRA(rank=2)), task, rounds=1)
    assert list(result.model.state_dict()) == list(task.model().state_dict())
    x, run = task.data.test.x[:4], result.run
    assert isinstance(x, torch.Tensor)
    assert isinstance(run, Simulation)
    torch.testing.assert_close(result.model(x), run.objective.build(run.deployed()).eval()(x))


@pytest.mark.parametrize(("field", "value"), [("rank", 0), ("alpha", 0.0), ("targets", ()), ("train", "A")])
def test_wrong_fields_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        LoRA(**{field: value})  # type: ignore[arg-type]


def test_training_does_not_copy_weights_that_only_a_server_changes() -> None:
    made = Objective(tiny_task().adapted(LoRA(rank=2, merges=True)), "cpu", key(0))
    assert made.constant == ["0.weight", "2.weight"]
    held, (x, y) = made.initial(), made.samples.read(torch.arange(4))
    with Clones() as clones:  # type: ignore[no-untyped-call]
        _, _, changed = made.gradient(held, x, y)
    assert not changed.keys() & set(made.constant)
    assert clones.entries == 0


def test_running_statistics_are_copied_in_every_step() -> None:
    def norm() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    tiny = tiny_task()
    train, test = ((samples.x, samples.y) for samples in (tiny.data.train, tiny.data.test))
    task = Task.of(norm, train, test, clients=2)
    made = Objective(task.adapted(LoRA(rank=2, merges=True)), "cpu", key(0))
    held, (x, y) = made.initial(), made.samples.read(torch.arange(4))
    before = held["1.running_mean"].clone()
    _, _, changed = made.gradient(held, x, y)
    assert set(changed) == {"1.running_mean", "1.running_var"}
    assert torch.equal(held["1.running_mean"], before)
    assert not torch.equal(changed["1.running_mean"], before)


class Clones(TorchDispatchMode):
    """Counts the entries of tensors that are cloned."""

    entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.clone.default:
            self.entries += args[0].numel()
        return function(*args, **(kwargs or {}))
