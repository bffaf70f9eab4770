"""``gossamer deploy``: the apps that are written, what is refused, and one real network."""

import json
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT

pytest.importorskip("flwr")

from gossamer import METHODS, ConfigError, Robust
from gossamer.cli import main
from gossamer.cli.deploy import NEW, Deployment, plan, write_app
from gossamer.cli.launch import read
from gossamer.cli.protection import DEPLOYED_SERVER
from gossamer.runs.records import read_about, read_metrics

FLEET = ROOT / "examples/fleet.toml"
DEPLOYED = sorted(name for name, recipe in METHODS.items() if not recipe().pooled)
OTHER_PARTS = [
    ["fedavg", "--lr", "0.2", "--codec", "eden:2", "--set", "solver.momentum=0.9"],
    ["fedavg", "--set", "solver.schedule=exponential:0.9", "--down", "dense:float16"],
    ["fedmrn", "--down", "delta:eden:2", "--set", "down.whole.dtype=float16"],
    ["fedprox", "--set", "codec.dtype=float16"],
    ["fedmrn", "--alpha", "0.02", "--set", "codec.min_dim=1"],
    ["heterofl", "--capacities", "1,1/2,200kB"],
    ["fedrolex", "--fleet", str(FLEET)],
    ["fedadam", "--server", "bucketing:2/trimmed-mean:0.2", "--server-lr", "0.05"],
]


def planned(words: list[str]) -> Deployment:
    asked = read(words, NEW)
    assert asked is not None
    return plan(asked, resume=False, out=None)


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    (tmp_path / "my_task.py").write_text(
        "import torch\nfrom gossamer import Task\n\n"
        "def task(client, settings):\n"
        "    x = torch.arange(40.0).view(20, 2)\n"
        "    arrays = (x, (x[:, 0] > 20).long())\n"
        "    return Task.of(lambda: torch.nn.Linear(2, 2), arrays, arrays, clients=4)\n"
    )
    (tmp_path / "my_method.py").write_text(
        "from gossamer import fedavg\n\ndef mine(lr: float = 0.5):\n    return fedavg(lr=lr)\n"
    )
    return tmp_path


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The app's names, as Flower would load it."""
    monkeypatch.syspath_prepend(str(folder))
    for name in ("my_task", "my_method", "my_parts"):
        sys.modules.pop(name, None)
    return runpy.run_path(str(folder / "app.py"))


@pytest.mark.parametrize("words", [*([name] for name in DEPLOYED), *OTHER_PARTS], ids=" ".join)
def test_an_app_has_the_method_that_was_asked_for(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = planned(words)
    write_app(tmp_path / "app", asked)
    names = loaded(tmp_path / "app", monkeypatch)
    assert names["method"] == asked.method
    assert names["task"](0, {}).describe() == asked.task.describe()


@pytest.mark.parametrize(
    ("words", "server", "why"),
    [
        ("fedavg --nodes 5", DEPLOYED_SERVER, "the default of deployments; --server mean does not clip updates"),
        ("fedavg --nodes 4", "", "it needs rounds with at least 5 clients, and a round has 4"),
        ("fedavg --nodes 9 --per-round 4", "", "it needs rounds with at least 5 clients, and a round has 4"),
        ("fedavg --nodes 9 --schedule fedbuff:buffer=4", "", "at least 5 clients, and a round has 4"),
        ("fedavg --nodes 9 --schedule fedbuff:buffer=5", DEPLOYED_SERVER, "the default of deployments"),
        ("fedavg --nodes 9 --server mean", "mean", "that of fedavg (--server mean); updates are not clipped"),
        ("fedavg --nodes 9 --server median", "median", "server: median (--server)"),
        ("fedmrn --nodes 9 --down delta", "", "with --down delta, clients repeat the aggregation"),
        ("fedmrn --nodes 9 --down delta:eden:2", DEPLOYED_SERVER, "the default of deployments"),
        ("fedavg --nodes 9 --set server.server_lr=0.5", "", "server_lr=0.5 is a field of the method's own server"),
        ("scaffold --nodes 9", "", "scaffold does not aggregate them by a plain mean"),
        ("local --nodes 9", "", "local sends none"),
    ],
)
def test_a_deployment_clips_updates_where_it_can_and_says_so(
    words: str, server: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = planned(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("server: ")
    assert why in line
    assert (asked.request.server or "") == server
    assert isinstance(asked.method.server, Robust) == (server not in ("", "mean"))


def test_an_app_takes_files_along(own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = planned([f"{own_files}/my_method.py:mine", "--lr", "0.25", "--task", f"{own_files}/my_task.py:task"])
    write_app(own_files / "app", asked)
    names = loaded(own_files / "app", monkeypatch)
    assert names["method"] == asked.method
    assert names["task"](None, {}).clients == asked.settings.nodes == 4
    assert "my_task.py" in (own_files / "app/README.md").read_text()


def test_an_app_takes_the_files_of_parts_along(own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_files / "my_parts.py").write_text(
        "from dataclasses import dataclass\nfrom gossamer import SGD\n"
        "from gossamer.parts.servers import WeightedMean\n\n"
        "@dataclass(frozen=True)\nclass Mine(WeightedMean):\n    far: float = 1.0\n\n"
        "    def finish(self, state, acc, clock):\n        return self.moved(state, acc)\n\n"
        "@dataclass(frozen=True)\nclass Steps(SGD):\n    lr: float = 0.5\n"
    )
    parts = ["--server", f"{own_files}/my_parts.py:Mine", "--solver", f"{own_files}/my_parts.py:Steps"]
    asked = planned(["fedavg", *parts, "--lr", "0.25", "--task", f"{own_files}/my_task.py:task"])
    write_app(own_files / "app", asked)
    assert (own_files / "app/my_parts.py").read_text() == (own_files / "my_parts.py").read_text()
    method = loaded(own_files / "app", monkeypatch)["method"]
    assert method.describe() == asked.method.describe()
    assert (type(method.server).__module__, method.solver.lr) == ("my_parts", 0.25)


def test_two_files_of_one_name_are_refused(own_files: Path) -> None:
    (own_files / "other").mkdir()
    mine = "class Mine(WeightedMean):\n    def finish(self, state, acc, clock):\n        return state\n"
    (own_files / "other/my_task.py").write_text(f"from gossamer.parts.servers import WeightedMean\n\n{mine}")
    words = ["--server", f"{own_files}/other/my_task.py:Mine", "--task", f"{own_files}/my_task.py:task"]
    with pytest.raises(ConfigError, match="two files have the same name"):
        write_app(own_files / "app", planned(["fedavg", *words]))


def test_an_apps_configuration_is_that_of_the_run(tmp_path: Path) -> None:
    words = "--rounds 7 --deadline 5 --nodes 4 --until accuracy=0.9,loss<0.3 --patience 2 --track mlflow,wandb"
    assert main(["deploy", "new", str(tmp_path / "x"), "fedavg", *words.split()]) == 0
    config = tomllib.loads((tmp_path / "x/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["rounds"], config["deadline"], config["nodes"], config["resume"]) == (7, 5.0, 4, False)
    assert (config["until"], config["patience"], config["track"]) == ("accuracy=0.9,loss<0.3", 2, "mlflow,wandb")
    assert config["max-weight"] == 5.0


def test_an_app_has_the_schedule_of_the_run(tmp_path: Path) -> None:
    words = "--nodes 4 --schedule deadline:60s,over=2 --per-round 2"
    assert main(["deploy", "new", str(tmp_path / "x"), "fedavg", *words.split()]) == 0
    config = tomllib.loads((tmp_path / "x/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["schedule"] == "deadline:after=1min,over=2.0"
    assert planned(["fedavg"]).settings.schedule == ""


@pytest.mark.parametrize(("given", "limit"), [("none", 0.0), ("2", 2.0)])
def test_the_limit_of_claimed_samples_can_be_set(given: str, limit: float) -> None:
    assert planned(["fedavg", "--max-weight", given]).settings.max_weight == limit


def test_a_missing_package_of_a_tracker_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["deploy", "try", "fedavg", "--track", "wandb"]) == 1
    assert "pip install 'gossamer[wandb]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["try", "centralised"], ["cannot be deployed"]),
        (
            ["try", "nope", "--nodes", "0", "--deadline", "x"],
            ["unknown method", "--nodes must be", "--deadline must be"],
        ),
        (
            ["try", "fedavg", "--min-replies", "2", "--wait", "-1"],
            ["--min-replies must be in (0, 1]", "--wait must be"],
        ),
        (["try", "fedavg", "--clients", "3"], ["unknown flag --clients"]),
        (["try", "fedavg", "--per-round", "9"], ["--per-round is 9"]),
        (["try", "fedavg", "--track", "tensorbord"], ["unknown tracker 'tensorbord': did you mean tensorboard?"]),
        (["try", "fedavg", "--until", "acuracy=1"], ["unknown metric 'acuracy': did you mean accuracy?"]),
        (["try", "fedavg", "--exclude-after", "2"], ["--exclude-after needs rounds with at least 5 clients"]),
        (["try", "fedavg", "--schedule", "fedbuff:concurrency=4"], ["--schedule lets 4 clients train at once"]),
        (
            ["new", "x", "perm", "--schedule", "fedbuff:buffer=2"],
            ["--schedule aggregates updates from several versions"],
        ),
        (["new", "x", "fedavg", "--schedule", "fedbuf"], ["unknown schedule 'fedbuf': did you mean fedbuff?"]),
        (["new", "fedavg"], ["name a method first"]),
        (["nonsense"], ["unknown command"]),
        (["keys", "keys", "--host", "http://here"], ["a host must be"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_mistakes_are_named_and_nothing_is_written(
    words: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", *words]) == 2
    told = capsys.readouterr().err
    assert all(piece in told for piece in said)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_an_app_cannot_import_is_refused(own_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_files / "app.py").write_text((own_files / "my_task.py").read_text())
    task = ["fedavg", "--task", f"{own_files}/app.py:task"]
    for words in (["new", str(own_files / "x"), *task], ["try", *task, "--out", str(own_files / "x")]):
        assert main(["deploy", *words]) == 2
        assert "rename the file" in capsys.readouterr().err
        assert not (own_files / "x").exists()


def test_files_that_are_copied_into_an_app_are_named(own_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "new", str(own_files / "x"), "fedavg", "--task", f"{own_files}/my_task.py:task"]) == 0
    assert f"README.md to {own_files / 'x'}, and copied my_task.py there;" in capsys.readouterr().out


def test_an_app_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "new", str(tmp_path / "x"), "fedavg"]
    assert main(words) == 0
    assert main(words) == 2
    assert "is not empty" in capsys.readouterr().err


def test_keys_are_written_for_every_node(tmp_path: Path) -> None:
    assert main(["deploy", "keys", str(tmp_path), "--host", "link.example.org", "--nodes", "2"]) == 0
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"ca.crt", "server.pem", "server.key", "node-0", "node-0.pub", "node-1", "node-1.pub", "roster.pub"}
    lines = (tmp_path / "roster.pub").read_text().splitlines()
    assert lines == [f"{node} {(tmp_path / f'node-{node}.pub').read_text().strip()}" for node in range(2)]


@pytest.mark.parametrize("command", [["try"], ["new", "x"], []])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", *command, *(["fedmrn"] if command else []), "--help"]) == 0
    told = capsys.readouterr().out
    assert ("--alpha" in told and "--deadline" in told) if command else "deploy COMMAND" in told


@pytest.mark.network
def test_a_real_network_computes_what_the_simulator_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["fedavg", "--rounds", "1", "--epochs", "1", "--split", "iid"]
    deployed, simulated = tmp_path / "deployed", tmp_path / "simulated"
    here = ["--nodes", "2", "--out", str(deployed), "--deadline", "120", "--rehearsal"]
    assert main(["deploy", "try", *common, *here]) == 0
    assert main(["run", *common, "--clients", "2", "--executor", "one-by-one", "--out", str(simulated)]) == 0
    model = "checkpoints/1/server.safetensors"
    assert (deployed / model).read_bytes() == (simulated / model).read_bytes()
    (record,), (wanted,) = read_metrics(deployed), read_metrics(simulated)
    for name in set(wanted) - {"seconds", "memory_bytes"}:
        assert record[name] == wanted[name], name
    assert all(0 < added < 20_000 for added in record["bytes_flower"].values())
    assert read_about(deployed)["executor"] == "flower"
    capsys.readouterr()
    assert main(["show", str(deployed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    assert main(["resume", str(deployed)]) == 0
    assert "already finished" in capsys.readouterr().err
