"""``--adapter``: what is typed, recorded, resumed, shown and exported, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gossamer.cli import main
from gossamer.runs.records import read_about, read_metrics
from gossamer.tasks.nets import build

RUN = ["--rounds", "1", "--clients", "4", "--steps", "1", "--executor", "one-by-one", "--model", "logistic"]
OWN = """
from dataclasses import dataclass
from gossamer.parts.adapters import Adapter

@dataclass(frozen=True)
class Biases(Adapter):
    def adapt(self, network):
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        return network
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)


@pytest.mark.parametrize(
    ("words", "adapter", "sent"),
    [
        ("fedavg --adapter lora:2 --set adapter.alpha=32", "LoRA(rank=2, alpha=32.0, targets=('*',)", 2 * (64 + 10)),
        ("fedmrn --adapter lora:2,targets=1,train=B", "LoRA(rank=2, alpha=None, targets=('1',)", 2 * 10),
        ("ffa-lora --rank 3 --targets 1", "LoRA(rank=3, alpha=None, targets=('1',), also=(), train='B'", 3 * 10),
        ("fedavg --adapter own.py:Biases", "Biases()", 10),
    ],
)
def test_what_is_recorded(words: str, adapter: str, sent: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words.split(), *RUN, "--out", "run"]) == 0
    about = read_about(Path("run"))
    assert about["method"]["adapter"].startswith(adapter)
    frozen = 640 if "Biases" in adapter else 650 + (2 * 64 if "train=B" in words else 3 * 64 if "ffa" in words else 0)
    assert (about["parameters"], about["frozen"]) == (sent, frozen)
    assert f"logistic ({sent} parameters and {frozen} frozen)" in capsys.readouterr().out
    assert main(["resume", "run", "--rounds", "2"]) == 0
    assert len(read_metrics(Path("run"))) == 2


def test_an_export_is_a_plain_network_and_a_start_for_other_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", "--adapter", "lora:2", *RUN, "--out", "run"]) == 0
    assert main(["export", "run", "--format", "safetensors,peft"]) == 0
    shown, plain = capsys.readouterr().out, build("logistic", (1, 8, 8), 10)
    assert "adapter_model.safetensors" in shown
    assert "the adapter alone, for PEFT" in shown
    plain.load_state_dict(load_file("run/export/model.safetensors"))
    small = load_file("run/export/adapter_model.safetensors")
    assert {name: list(t.shape) for name, t in small.items()} == {
        "base_model.model.1.lora_A.weight": [2, 64],
        "base_model.model.1.lora_B.weight": [10, 2],
    }
    assert bool(torch.stack([tensor.abs().max() for tensor in small.values()]).all())
    assert main(["run", "fedavg", *RUN, "--init", "run/export", "--out", "more"]) == 0
    assert main(["run", "fedavg", *RUN, "--init", "run", "--out", "no"]) == 2
    assert "the run has no global model that is stored as weights: use gossamer export run" in _last(capsys)
    assert main(["export", "more", "--format", "peft"]) == 2
    assert "format peft: the run trained the whole network, without an adapter" in _last(capsys)


def _last(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fedavg --adapter lor", "unknown adapter 'lor': did you mean lora? known: lora, peft"),
        ("fedavg --adapter lora:0", "adapter 'lora:0': rank must be at least 1, got 0"),
        ("fedavg --adapter lora:2,targets=qkv", "LoRA.targets: no linear layer is called qkv: the network has 1"),
        ("lora --targets qkv", "--targets: no linear layer is called qkv: the network has 1"),
        ("lora --rank 0", "--rank must be at least 1, got 0"),
        ("fedavg --set adapter.alpha=3", "the method has no adapter: add --adapter lora, for example"),
        ("fedpm --adapter lora:2", "--around: 1.lora_B start at zero"),
        (
            "lora --rank 4 --adapter lora:2",
            "--rank changes nothing with --adapter lora:2, which does not read this flag",
        ),
        ("lora --rank 8 --adapter lora:2", "--rank changes nothing with --adapter lora:2"),
        ("ffa-lora --alpha 3 --adapter lora:2,train=B", "--alpha changes nothing with --adapter lora:2,train=B"),
        ("lora-truncated --targets 1 --adapter lora:2 --sampler by-size", "--targets changes nothing with --adapter"),
        ("flora --rank 4 --adapter lora:2,merges=true", "--rank changes nothing with --adapter lora:2,merges=true"),
        ("lora --alpha 3 --adapter own.py:Biases", "--alpha changes nothing with --adapter own.py:Biases"),
        ("fedavg --adapter own.py:OWN", "--adapter own.py:OWN: unknown name 'OWN': known: Biases"),
    ],
)
def test_mistakes_are_told_before_anything_runs(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words.split(), *RUN, "--out", "run"]) == 2
    assert message in _last(capsys)
    assert not Path("run").exists()


def test_flags_of_other_parts_stay_beside_an_adapter() -> None:
    words = "lora --lr 0.003 --batch 8 --weights uniform --adapter lora:2,targets=1"
    assert main(["run", *words.split(), *RUN, "--out", "run"]) == 0
    method = read_about(Path("run"))["method"]
    assert method["adapter"].startswith("LoRA(rank=2, alpha=None, targets=('1',)")
    assert method["solver"].startswith("Adam(lr=0.003, epochs=5, steps=1, batch=8")
    assert "weights='uniform'" in method["server"]


def test_the_file_of_a_run_has_the_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", "--adapter", "lora:2", *RUN, "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["show", "run", "--config"]) == 0
    assert 'adapter = "lora:2"' in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_has_adapters() -> None:
    assert main(["sweep", "fedavg", "--grid", "adapter=lora:1,lora:2", "--seeds", "1", *RUN, "--out", "sweep"]) == 0


def test_a_deployed_app_has_the_adapter() -> None:
    pytest.importorskip("flwr")
    assert main(["deploy", "new", "app", "fedavg", "--adapter", "lora:2,train=B", "--server", "mean"]) == 0
    assert 'adapter=LoRA(rank=2, train="B")' in Path("app/app.py").read_text()


def test_the_ranks_of_an_adapted_network_are_its_widths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "--model", "logistic", "--adapter", "lora:4", "--capacities", "1,0.5"]) == 0
    shown = capsys.readouterr().out
    assert "1.lora_A[0], 1.lora_B[1]" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-2:]] == [["1", "296"], ["0.5", "148"]]
    assert main(["widths", "--adapter", "lor"]) == 2
    assert "unknown adapter 'lor'" in _last(capsys)
