"""Adapters with every kind of method: compressed, masked, private and secure; and adapters of one's own."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import nn

from gossamer import METHODS, ConfigError, LoRA, Method, Supermask, fedavg, private, secured, simulate
from gossamer.core.adapter import Adapter
from gossamer.core.random import key
from gossamer.parts.downlinks import Delta
from gossamer.parts.secure import SecAgg
from gossamer.tasks.objective import Objective
from gossamer.testing import check_adapter, tiny_task

TASK = tiny_task()
START = simulate(fedavg(epochs=3), TASK, rounds=1).model.state_dict()
"""Weights that a run starts from, in place of a pretrained network."""

UNTRAINED = Objective(TASK, "cpu", key(0)).initial()
"""The weights of a run that starts without others."""


@dataclass(frozen=True)
class Biases(Adapter):
    """Trains the biases alone, as in https://arxiv.org/abs/2106.10199."""

    def adapt(self, network: nn.Module) -> nn.Module:
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        return network


@dataclass(frozen=True)
class Broken(Adapter):
    """Breaks one rule of adapters."""

    how: Literal["all", "none", "random", "changed", "lost"]

    def adapt(self, network: nn.Module) -> nn.Module:
        for number, parameter in enumerate(network.parameters()):
            parameter.requires_grad_(self.how == "all" or (self.how != "none" and number == 0))
        first = next(network.parameters())
        if self.how == "random":
            first.data = torch.rand(first.shape, generator=torch.Generator().manual_seed(torch.seed() % 1000))
        if self.how == "changed":
            first.data += 1
        return network

    def merge(self, network: nn.Module) -> nn.Module:
        return nn.Sequential(network) if self.how == "lost" else network


@pytest.mark.parametrize("adapter", [Biases(), LoRA(2), LoRA(2, train="B"), LoRA(2, also=("2.bias",))], ids=repr)
def test_adapters_keep_the_contract(adapter: Adapter) -> None:
    check_adapter(adapter)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("all", "freezes nothing"),
        ("none", "trains nothing"),
        ("random", "must draw from torch's generator alone"),
        ("changed", "changes what the network computes at the start"),
        ("lost", "must return a network with the tensors"),
    ],
)
def test_an_adapter_that_breaks_the_contract_is_refused_with_the_reason(how: Any, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_adapter(Broken(how))


def test_an_adapter_of_ones_own_trains_and_sends_what_it_leaves_free() -> None:
    result = simulate(fedavg(epochs=1).with_parts(adapter=Biases()), TASK, rounds=2, init=START)
    assert result.about["parameters"] == 8 + 3
    assert torch.equal(result.model.state_dict()["0.weight"], START["0.weight"])
    assert not torch.equal(result.model.state_dict()["0.bias"], START["0.bias"])


NOISY: dict[str, dict[str, Any]] = {
    "signsgd": {"lr": 0.03},
    "fedpm": {"around": "start", "scale": 0.3},
    "klms": {"around": "start", "scale": 0.3},
}
COMPRESSED = ["fedmrn", "fedmrns", "signsgd", "eden", "drive", "qsgd", "topk", "terngrad", "fedpm", "klms"]


def losses(method: Method, rounds: int, **options: Any) -> list[float]:
    """Return the losses of a run that starts from trained weights."""
    result = simulate(method, TASK, rounds=rounds, init=START, **options)
    return [record["loss"] for record in result.metrics]


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_adapters_learn(name: str) -> None:
    method = METHODS[name](epochs=2, batch=8, **NOISY.get(name, {})).with_parts(adapter=LoRA(2))
    before = Objective(TASK, "cpu", key(0)).evaluate(START, TASK.data.test.x, TASK.data.test.y).loss
    assert losses(method, 4)[-1] < before - 0.02


@pytest.mark.parametrize("name", ["fedmrn", "eden"])
def test_deltas_of_adapters_are_those_of_dense_downloads(name: str) -> None:
    method = METHODS[name](epochs=1, batch=8).with_parts(adapter=LoRA(2))
    dense, delta = (losses(method.with_parts(**parts), 3) for parts in ({}, {"down": Delta(shared_start=True)}))
    assert dense == delta


def test_masks_around_the_start_begin_with_the_network_as_it_is() -> None:
    mask, built = Supermask(0.3, around="start"), {"w": torch.randn(3, 4), "b": torch.randn(3)}
    held = mask.hold(built, key(0))
    torch.testing.assert_close(mask.deploy(held, built), built)
    context = mask.context(built, key(1))
    drawn = mask.network(held, context, torch.tensor(0))
    torch.testing.assert_close((drawn["w"] - built["w"]).abs(), torch.full((3, 4), 0.3 / 2))
    assert torch.equal(drawn["b"], built["b"])


def test_gradients_of_scores_are_those_of_the_mean_network() -> None:
    mask, built = Supermask(0.3, around="start"), {"w": torch.randn(3, 4, dtype=torch.float64)}
    scores, grads = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(3, 4, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((mask.deploy({"w": scores}, built)["w"] * grads).sum(), scores)
    found = mask.pull({"w": grads}, {"w": scores.detach()}, mask.context(built, key(1)))["w"]
    torch.testing.assert_close(found, wanted)


def test_masks_around_zero_are_refused_for_adapters() -> None:
    with pytest.raises(ConfigError, match=r"0.lora_B, 2.lora_B start at zero.*use Supermask.around=start"):
        simulate(METHODS["fedpm"]().with_parts(adapter=LoRA(2)), TASK, rounds=1)


@pytest.mark.parametrize("mode", ["central", "distributed", "local", "example"])
def test_private_adapters_clip_what_is_sent(mode: Any) -> None:
    method = fedavg(steps=2).with_parts(adapter=LoRA(2))
    noisy = private(method, mode, noise_multiplier=1.0, task=TASK)
    assert noisy.adapter == LoRA(2)
    result = simulate(noisy, TASK, rounds=1, delta=1e-3)
    (record,) = result.metrics
    assert record["failures"] == []
    assert math.isfinite(record["figures"]["privacy"]["epsilon"])
    assert torch.equal(result.model.state_dict()["0.bias"], UNTRAINED["0.bias"])


def test_secure_adapters_are_those_in_the_clear() -> None:
    method = fedavg(steps=2, weights="uniform").with_parts(adapter=LoRA(2))
    plain, secure = (simulate(each, TASK, rounds=2) for each in (method, secured(method, SecAgg())))
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(secure.model.state_dict()[name], tensor, rtol=0, atol=1e-3)
