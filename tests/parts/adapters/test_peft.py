"""PEFT: its LoRA and ours compute the same, runs train its adapters, and it reads what we export."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import ConfigError, LoRA, fedavg, simulate
from gossamer.core.adapter import Adapter
from gossamer.core.extras import MissingExtraError
from gossamer.engines.export import ADAPTER, ADAPTER_CONFIG, export
from gossamer.engines.simulation import Simulation
from gossamer.parts.adapters import Peft
from gossamer.testing import check_adapter, tiny_task


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def small_gpt() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    made: nn.Module = transformers.GPT2LMHeadModel(config).eval()
    return made


def equal_matrices(ours: nn.Module, theirs: nn.Module) -> None:
    """Give both networks the same random matrices."""
    given = {name.replace(".default.weight", ""): p for name, p in theirs.named_parameters()}
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if "lora_" in name:
                parameter.normal_()
                given[f"base_model.model.{name}"].copy_(parameter)


def gradients(module: nn.Module, output: Tensor) -> list[Tensor]:
    trained = [p for p in module.parameters() if p.requires_grad]
    return list(torch.autograd.grad(output.square().sum(), trained))


@pytest.mark.parametrize("targets", [("*",), ("0",)])
def test_our_lora_and_pefts_have_the_same_outputs_and_gradients(targets: tuple[str, ...]) -> None:
    pytest.importorskip("peft")
    fields: dict[str, Any] = {"rank": 2, "alpha": 3.0, "targets": targets}
    ours, theirs, x = LoRA(**fields).adapt(network()), Peft(**fields).adapt(network()), torch.randn(5, 6)
    equal_matrices(ours, theirs)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(gradients(ours, ours(x)), gradients(theirs, theirs(x)))
    torch.testing.assert_close(LoRA(**fields).merge(ours)(x), Peft(**fields).merge(theirs)(x))


def test_both_agree_on_a_network_of_transformers() -> None:
    pytest.importorskip("peft")
    fields: dict[str, Any] = {"rank": 2, "targets": ("c_attn", "c_fc")}
    with pytest.warns(UserWarning, match="fan_in_fan_out"):  # PEFT finds this out itself
        theirs = Peft(**fields).adapt(small_gpt())
    ours, x = LoRA(**fields).adapt(small_gpt()), torch.tensor([[1, 2, 3, 4]])
    equal_matrices(ours, theirs)
    torch.testing.assert_close(ours(x).logits, theirs(x).logits)
    torch.testing.assert_close(gradients(ours, ours(x).logits), gradients(theirs, theirs(x).logits))


def test_pefts_adapters_keep_the_contract() -> None:
    peft = pytest.importorskip("peft")
    check_adapter(Peft(2))
    check_adapter(Peft.of(peft.LoraConfig(r=2, target_modules=["0", "2"], use_dora=True)))
    check_adapter(Peft.of(peft.IA3Config(target_modules=["0", "2"], feedforward_modules=["2"])))


def test_a_configuration_is_the_same_text_in_every_process() -> None:
    peft = pytest.importorskip("peft")
    made = Peft.of(peft.LoraConfig(r=2, target_modules=["b", "a"]))
    assert json.loads(made.config) == {"peft_type": "LORA", "r": 2, "target_modules": ["a", "b"]}


def test_a_run_trains_and_sends_pefts_matrices_and_returns_a_plain_network() -> None:
    pytest.importorskip("peft")
    task = tiny_task()
    ours, theirs = (
        simulate(fedavg(epochs=1).with_parts(adapter=adapter), task, rounds=3) for adapter in (LoRA(2), Peft(2))
    )
    assert list(theirs.model.state_dict()) == list(task.model().state_dict())
    assert ours.about["parameters"] == theirs.about["parameters"] == 2 * (6 + 8) + 2 * (8 + 3)
    assert theirs.metrics[-1]["bytes_up"]["codec.values"] == ours.metrics[-1]["bytes_up"]["codec.values"]
    assert theirs.metrics[-1]["loss"] < theirs.metrics[0]["loss"]


@pytest.mark.parametrize("adapter", [LoRA(2, targets=("0",)), Peft(2)])
def test_peft_reads_an_exported_adapter(adapter: Adapter, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    task = tiny_task()
    result = simulate(fedavg(epochs=1).with_parts(adapter=adapter), task, rounds=1)
    assert isinstance(result.run, Simulation)
    export(result.run, tmp_path, formats=["peft"])
    base = result.run.objective.build()
    plain = adapter.merge(base)  # nothing is trained yet, so these are the weights as they were
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path)
    x = task.data.test.x[:4]
    torch.testing.assert_close(loaded(x), result.model(x))
    assert {each.name for each in tmp_path.iterdir()} == {ADAPTER, ADAPTER_CONFIG, "export.json"}


def test_a_wrong_configuration_is_refused() -> None:
    pytest.importorskip("peft")
    with pytest.raises(ConfigError, match=r"Peft.config must be a mapping in JSON with a peft_type"):
        Peft(config="[1]").adapt(network())
    with pytest.raises(ConfigError, match=r"Peft.targets: no linear layer is called attention"):
        Peft(targets=("attention",)).adapt(network())
    with pytest.raises(ConfigError, match="Peft: Target modules"):
        Peft(config='{"peft_type": "LORA", "target_modules": ["bogus"]}').adapt(network())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"this needs peft: pip install 'gossamer\[peft\]'"):
        Peft().adapt(network())
