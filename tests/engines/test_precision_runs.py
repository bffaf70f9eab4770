"""Runs in another precision: every executor, master weights, resume, and what is recorded."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import ConfigError, Method, Options, Result, RunError, Task, fedavg, fedmrn, fedspa, perm, simulate
from gossamer.cli import main
from gossamer.cli.request import config_of
from gossamer.core.codec import Codec
from gossamer.engines.executors.compiled import compile_on_gpu
from gossamer.engines.simulation import Simulation
from gossamer.parts.codecs.masked_noise import MaskedNoise
from gossamer.runs.records import read_about
from gossamer.runs.report import labels, tables
from gossamer.testing import tiny_task
from helpers.tasks import batch_norm_task

TASK = batch_norm_task(dtype=torch.float32)
METHODS: dict[str, Method] = {
    "fedavg": fedavg(epochs=2, batch=8, lr=0.05),
    "fedmrn": fedmrn(steps=4, batch=8, lr=0.05, alpha=0.01),
    "fedspa": fedspa(epochs=1, batch=8, lr=0.05),
    "perm": perm(batch=8, lr=0.05),
}
"""Training alone, a straight-through estimator, a gradient after training, and one of the received model."""


def models(result: Result) -> list[Tensor]:
    """What each client deploys, as vectors."""
    clients = range(result.about["task"]["clients"])
    return [torch.cat([p.detach().flatten() for p in result.client_model(c).parameters()]) for c in clients]


def run(name: str, **options: Any) -> Result:
    return simulate(METHODS[name], TASK, rounds=2, **options)


def apart(one: Result, other: Result) -> float:
    """The largest difference of two entries of a model."""
    return max(float((a - b).abs().max()) for a, b in zip(models(one), models(other), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_executors_agree(name: str) -> None:
    exact, wanted = run(name), run(name, precision="bf16")
    assert 0 < apart(wanted, exact) < 0.05
    for executor in ("side-by-side", "stacked"):
        found = run(name, precision="bf16", executor=executor)
        assert apart(found, wanted) <= (0 if executor == "side-by-side" else 0.05)
        assert not any(record["failures"] for record in found.metrics)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("name", ["fedavg", "fedmrn"])
def test_compiled_steps_agree(name: str) -> None:
    assert apart(run(name, precision="bf16", executor="compiled"), run(name, precision="bf16")) < 0.05


def test_weights_have_all_bits_of_float32() -> None:
    for model in models(run("fedavg", precision="bf16")):
        assert model.dtype == torch.float32
        low = model.view(torch.int32) & 0xFFFF  # zero in a bfloat16
        assert float((low != 0).float().mean()) > 0.9


def test_a_surrogate_sees_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    surrogate = MaskedNoise.surrogate

    def watched(codec: Codec, change: dict[str, Tensor], *rest: Any) -> dict[str, Tensor]:
        made = surrogate(codec, change, *rest)  # type: ignore[arg-type]
        seen.append({tensor.dtype for tensor in (*change.values(), *made.values())})
        assert not torch.is_autocast_enabled("cpu")
        return made

    monkeypatch.setattr(MaskedNoise, "surrogate", watched)
    run("fedmrn", precision="bf16")
    assert seen
    assert all(kinds == {torch.float32} for kinds in seen)


def test_a_convolution_with_group_norm() -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 1, 6, 6, generator=draw), torch.arange(24) % 2

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))

    task = Task.of(network, (x, y), (x, y), clients=2)
    one, other, exact = (
        simulate(METHODS["fedavg"], task, rounds=2, precision=precision, executor=executor)
        for precision, executor in (("bf16", "one-by-one"), ("bf16", "stacked"), ("float32", "one-by-one"))
    )
    assert 0 < apart(one, exact) < 0.05
    assert apart(one, other) < 0.05


@pytest.mark.slow
def test_auto_measures_in_the_precision_and_says_so() -> None:
    result = run("fedavg", precision="bf16", executor="auto")
    assert result.about["options"]["precision"] == "bf16"
    assert set(result.about["rates"]) == {"one-by-one", "side-by-side"}
    assert f"{result.about['executor']} in bf16 (client steps per second: " in tables.closing(result.summary())


def test_what_is_recorded(tmp_path: Path) -> None:
    plain, other = run("fedavg"), run("fedavg", precision="bf16")
    assert "precision" not in plain.about["options"]  # as in folders of earlier releases
    assert [each.summary()["train_precision"] for each in (plain, other)] == ["float32", "bf16"]
    assert labels.labels([plain.about, other.about]) == ["fedavg", "fedavg precision=bf16"]
    assert "train precision" in tables.differences([plain.summary(), other.summary()])
    assert Options.read(Options(precision="bf16").describe()).precision == "bf16"
    assert Options.read(Options().describe()) == Options()


def test_a_run_keeps_its_precision(tmp_path: Path) -> None:
    whole = simulate(METHODS["fedmrn"], TASK, rounds=4, precision="bf16")
    simulation = Simulation(METHODS["fedmrn"], TASK, Options(rounds=4, precision="bf16"))
    folder = simulation.create(tmp_path / "run")
    for number in range(2):
        simulation.round(number, folder)
    folder.close()
    again: dict[str, Any] = {"out": tmp_path / "run", "resume": True, "rounds": 4}
    with pytest.raises(RunError, match="was started with other options: precision is the default, was bf16"):
        simulate(METHODS["fedmrn"], TASK, **again)
    resumed = simulate(METHODS["fedmrn"], TASK, precision="bf16", **again)
    assert all(torch.equal(a, b) for a, b in zip(models(whole), models(resumed), strict=True))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "fedavg", "--rounds", "1", "--clients", "2", "--steps", "1", "--precision"]
    out = tmp_path / "run"
    assert main([*words, "bf16", "--executor", "one-by-one", "--out", str(out)]) == 0
    assert "one-by-one in bf16" in capsys.readouterr().out
    assert 'precision = "bf16"' in config_of(out, read_about(out))
    capsys.readouterr()
    assert main([*words, "tf32", "--out", str(tmp_path / "none")]) == 2
    assert "--precision tf32 needs a GPU" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_wrong_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown precision 'half': known: "):
        Options(precision="half")
    with pytest.raises(ConfigError, match="needs a model of float32"):
        simulate(fedavg(), tiny_task(dtype=torch.float64), precision="bf16", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_compilers_advice_alone_is_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = (
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. "
        "Consider setting `torch.set_float32_matmul_precision('high')` for better performance."
    )

    def inductor(module: Any, inputs: Any, config_patches: dict[str, Any]) -> Any:
        warnings.warn(advice, stacklevel=2)
        warnings.warn("another one", stacklevel=2)
        return module

    with warnings.catch_warnings(action="ignore"):  # of torch itself, as it is imported
        compiler = importlib.import_module("torch._inductor.compile_fx")
    monkeypatch.setattr(compiler, "compile_fx", inductor)
    with pytest.warns(UserWarning, match="another one") as caught:
        assert compile_on_gpu(abs, ()) is abs
    assert [str(each.message) for each in caught] == ["another one"]
