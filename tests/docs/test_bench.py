"""The scripts in bench/ can be imported, and the cheap ones run at the smallest size. Times are not checked."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gossamer import Task
from gossamer.engines.executors import threads
from gossamer.tasks.nets import build
from helpers.markdown import only, parsed
from helpers.paths import ROOT

BENCH = ROOT / "bench"
ELSEWHERE = {"fedjax", "flower_app", "pfl"}
"""Other simulators, which need separate environments."""
Script = Callable[..., ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Import a script of a folder as a module, with ``sys.argv`` for its ``main``; remove its modules afterwards."""
    before = set(sys.modules)

    def find(name: str, *words: str, folder: Path = BENCH) -> ModuleType:
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "argv", [name, *words])
        return importlib.import_module(name)

    with threads(1):  # scripts set the number of threads
        yield find
    for name in set(sys.modules) - before:
        if str(BENCH) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py"))


@pytest.mark.parametrize("name", names(BENCH))
def test_a_script_can_be_imported(name: str, script: Script) -> None:
    found = script(name)
    assert found.__doc__
    assert callable(getattr(found, "main", None)) or name in ("held", "stopwatch")


@pytest.mark.parametrize(
    "name", [*names(BENCH / "speed"), *(f"systems.{n}" for n in names(BENCH / "speed/systems") if n not in ELSEWHERE)]
)
def test_the_comparison_can_be_imported(name: str, script: Script) -> None:
    assert script(name, folder=BENCH / "speed").__doc__


def test_unknown_systems_of_the_comparison_are_refused_by_name(script: Script) -> None:
    with pytest.raises(SystemExit, match="here has statcked or flower in its name: plain loop"):
        script("run", "--only", "stacked,statcked,flower", folder=BENCH / "speed").main()


@pytest.mark.parametrize(
    ("name", "words", "shown"),
    [
        ("anomalies", ("--sizes", "500", "--codecs", "dense", "--cohort", "5", "--repeats", "1"), "| `dense` |"),
        ("false_alarms", ("--splits", "iid", "--methods", "fedavg", "--rounds", "1", "--seeds", "1"), "| 20 | 0 | 0 |"),
        ("codec_speed", ("--size", "500", "--repeats", "1"), "Ternary(coded=True)"),
        ("row_helpers", ("--rows", "2", "--size", "9", "--repeats", "1"), "rotation"),
        ("codec_speed", ("--size", "500", "--repeats", "1", "--only", "eden:4,coded=true"), "Eden(bits=4, coded=True)"),
        ("downlink", ("--rounds", "2", "--clients", "10", "--steps", "1", "--links", "delta"), "| 10 of 10 | delta |"),
        pytest.param(
            "export",
            ("--networks", "mlp", "--densities", "0.5", "--side", "8", "--repeats", "1"),
            "| `mlp` | 0.5 |",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "memory",
            ("--layers", "2", "--width", "8", "--heads", "2", "--length", "4", "--only", "LoRA, sgd"),
            "| LoRA, sgd, ",
            marks=pytest.mark.slow,
        ),
        ("masked_noise", ("--millions", "0.001"), "MaskedNoise(signed=True"),
        ("perm_memory", ("--alone", "--clients", "60", "--form", "clusters"), '"schedule_s"'),
        ("robust", ("--one", "median", "sign", "4", "640"), '"peak"'),
        ("quic_fl_tables", ("--bits", "3"), "3 bits, squared error 0.0426"),
        ("secure", ("--clients", "4", "--weights", "50", "--lost", "0.25"), "| flower, dense | 1 |"),
        ("perm_scale", ("--alone", "--clients", "6", "--keep", "3", "--rounds", "2"), '"mixing"'),
    ],
)
def test_cheap_scripts_run(
    name: str, words: tuple[str, ...], shown: str, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script(name, *words).main()
    assert shown in capsys.readouterr().out


def test_submodels(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found, shape = script("submodels", "--repeats", "1"), torch.Size([3, 8, 8])
    monkeypatch.setattr(found, "SHAPE", shape)
    monkeypatch.setattr(found, "BATCH", 2)
    monkeypatch.setattr(found, "build", lambda *_: build("mlp", shape, 10))
    found.main()
    said = capsys.readouterr().out
    rows = {row["width"]: row for row in parsed(said)}
    assert {"1", "1/2", "1/16"} <= rows.keys()
    assert rows["1"]["of full"] == "100.0 %"
    assert "speed-up of a round: " in said


def test_rows_of_a_gpu(script: Script, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = ("--alone", "--tiny", "--device", "cpu", "--rounds", "1")
    case = ("--networks", "transformer", "--methods", "fedavg", "--precisions", "bf16")
    found = script("gpu_rows", *sizes, *case, "--profile", str(tmp_path))
    found.main()
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["precision"], row["executor"], row["failures"]) == ("bf16", "one-by-one", [])
    assert min(row[name] for name in ("seconds", "flops", "roofline", "memory", "ready")) > 0
    profile = (tmp_path / "transformer-fedavg-bf16.md").read_text()
    assert len(parsed(profile)) == 1 + found.gpu_profile.TOP  # the first row is the line below the heads
    assert "device busy: " in profile
    rows = [{**row, "method": name, "seconds": seconds} for name, seconds in (("fedavg", 2.0), ("fedmrn", 3.0))]
    text = found.page({"about": "somewhere", "rows": rows})
    assert "FedMRN relative to FedAvg: transformer in bf16 1.50." in text
    assert "**Not run yet:** cnn4 fedavg float32, " in text
    assert "transformer fedavg bf16" not in text


def test_fedspa_masks(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = script("fedspa_masks", "--models", "lenet5", "--repeats", "1", "--no-folding")
    monkeypatch.setitem(found.SETTINGS, "lenet5", found.Setting(20, (1, 28, 28), 5, 1))
    found.main()
    found.folding("cpu", 1, "lenet5", 2, tmp_path / "profile.md")
    assert "## folding 2 messages of lenet5" in (tmp_path / "profile.md").read_text()
    said = capsys.readouterr().out
    row = only(said, network="lenet5")
    assert (row["samples"], row["timed steps"]) == ("20", "1")
    assert "folding 2 messages" in said
    assert "model as on the CPU: SAME" in said
    assert all(f"{stage} " in said.partition("stages: ")[2] for stage in ("check", "copy", "decode", "fold", "finish"))


def test_perm_rounds(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = script("perm_rounds", "--settings", "synthetic", "--repeats", "1")
    monkeypatch.setitem(found.SETTINGS, "synthetic", lambda device: Task.named("two-populations", clients=4))
    monkeypatch.setattr(found, "STEPS", 1)
    found.main()
    assert only(capsys.readouterr().out, method="perm, all samples, own half")["round"].endswith(" ms")


def test_sensing(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    found = script("sensing")
    found.server("hadamard", 100, 64, 2)
    found.device(100, 0.5)
    said = capsys.readouterr().out
    assert "hadamard, 100 entries kept, 64 measurements" in said
    assert "100 entries, S/n = 0.5: gaussian" in said


def test_many_clients(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    found = script("scale", folder=BENCH / "speed")
    monkeypatch.setattr(found, "REGISTERED", 20)
    assert found.start("dirichlet:0.3") == {"clients": 20}
