"""A run's model as files that run without Gossamer."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gossamer import Method, Result, Task, fedavg, fedavg_pruned, local, perm, simulate
from gossamer.cli import main
from gossamer.core import files
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.random import key, uniform
from gossamer.engines.export import (
    LIST,
    ONNX,
    PROGRAM,
    SPARSE_PROGRAM,
    SPARSE_TENSORS,
    TENSORS,
    Exported,
    check_out,
    export,
    stand,
)
from gossamer.engines.export.programs import trace
from gossamer.engines.simulation import Simulation
from gossamer.runs.checkpoint import read_server
from gossamer.runs.folder import RunFolder
from gossamer.tasks.batch_norms import OfOwnBatch, OfTraining, Statistics
from gossamer.tasks.nets import build
from gossamer.tasks.nets.images import resnet18
from gossamer.testing import tiny_task
from helpers.paths import ROOT

PAGE = (ROOT / "docs/export.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
CLASSES = 5
SHAPES: dict[str, tuple[int, ...]] = {
    "resnet18": (1, 8, 8),
    "lstm": (3,),
    "cnn4": (1, 16, 16),
    "mlp": (1, 4, 4),
    "mixer": (1, 8, 8),
}

Fresh = dict[str, tuple[Path, nn.Module, Exported]]
"""By network: the folder of the export, the module of the run, and the result of the export."""

FRESH = """
import sys

sys.modules["gossamer"] = None  # importing it now raises ImportError
import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
use, once, loader, *folders = sys.argv[1:]
for folder in folders:
    with torch.no_grad():
        scope = {"x": load_file(f"{folder}/x.safetensors")["x"]}
        exec(use.replace("model.pt2", f"{folder}/model.pt2"), scope)
        exec(loader, scope)
        small = f"{folder}/model.sparse.pt2"
        assert torch.equal(torch.export.load(small).module()(scope["x"]), scope["scores"])
        exec(once.replace("model.sparse.pt2", small), scope)
        assert torch.equal(scope["network"](scope["x"]), scope["scores"])
        assert "masked_scatter" not in str(scope["network"].graph)
        pairs = scope["network"](scope["x"][:2])
        save_file({"scores": scope["scores"], "pairs": pairs}, f"{folder}/y.safetensors")
        save_file(scope["load_sparse"](f"{folder}/model.sparse.safetensors"), f"{folder}/filled.safetensors")
assert not [name for name in sys.modules if name.startswith("gossamer.")]
"""


def python_on_the_page(word: str) -> str:
    (found,) = (body for language, body in BLOCKS if language == "python" and word in body)
    return found


def images(model: str, samples: int, at: int) -> tuple[Tensor, Tensor]:
    """Inputs for a network, characters for the one that reads text; and labels."""
    shape = (samples, *SHAPES[model])
    x = uniform(key(at), torch.Size(shape).numel()).view(shape)
    y = (uniform(key(at + 1), samples) * CLASSES).long()
    return (x * CLASSES).long() if model == "lstm" else x - 0.5, y


def some_task(model: str) -> Task:
    def network() -> nn.Module:
        if model == "resnet18":
            return resnet18(torch.Size(SHAPES[model]), CLASSES, width=1 / 16)
        return build(model, SHAPES[model], CLASSES)

    return Task.of(network, images(model, 16, 1), images(model, 14, 2), clients=3)


def static_task(statistics: Statistics) -> Task:
    """A small network with a static batch norm."""

    def network() -> nn.Module:
        norm = nn.BatchNorm2d(4, track_running_stats=False)
        return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES))

    return replace(some_task("mlp"), model=network, statistics=statistics)


def ran(method: Method, task: Task, out: Path, **options: Any) -> Result:
    result = simulate(method, task, out=out, **{"rounds": 1, **options})
    assert not any(record["failures"] for record in result.metrics)
    return result


def about(file: Path) -> dict[str, Any]:
    with safe_open(file, "pt") as opened:
        (name,) = opened.metadata()
        assert name == "gossamer"
        facts_: dict[str, Any] = json.loads(opened.metadata()[name])
    return facts_


# Without Gossamer.


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """A run of each network, exported, and what a Python process without Gossamer made of it."""
    home, found = tmp_path_factory.mktemp("fresh"), {}
    for model in SHAPES:
        task, method = some_task(model), fedavg_pruned(steps=1, batch=8, lr=0.01)
        result = ran(method, task, home / model, per_round=1)
        out = home / model / "export"
        found[model] = out, result.model, export(stand(home / model, method, task), out)
        save_file({"x": task.data.test.x}, out / "x.safetensors")
    words = [FRESH, *map(python_on_the_page, ("scores = network(x)", "expand_once", "load_sparse"))]
    folders = [str(out) for out, _, _ in found.values()]
    done = subprocess.run([sys.executable, "-I", "-c", *words, *folders], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("resnet18", "lstm", "cnn4") else name for name in SHAPES],
)
def test_the_program_computes_what_the_network_computes(model: str, fresh: Fresh) -> None:
    out, module, exported = fresh[model]
    assert not module.training
    x, outputs = load_file(out / "x.safetensors")["x"], load_file(out / "y.safetensors")
    with torch.no_grad():
        scores = module(x)
        assert torch.allclose(outputs["scores"], scores, rtol=1e-5, atol=1e-7)
        assert torch.allclose(outputs["pairs"], module(x[:2]), rtol=1e-5, atol=1e-7)
    assert scores.std() > 0
    assert exported.batch == ("2 or more" if model == "resnet18" else "any")
    assert exported.problem is None


@pytest.mark.parametrize("model", SHAPES)
def test_the_tensors_are_the_networks_and_the_page_fills_in_the_zeros(model: str, fresh: Fresh) -> None:
    out, module, exported = fresh[model]
    for name in (TENSORS, "filled.safetensors"):
        read = load_file(out / name)
        assert read.keys() == module.state_dict().keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in module.state_dict().items())
        assert all(read[name].dtype == tensor.dtype for name, tensor in module.state_dict().items())
    assert (out / SPARSE_TENSORS).stat().st_size < 0.5 * (out / TENSORS).stat().st_size
    names = (TENSORS, SPARSE_TENSORS, PROGRAM, SPARSE_PROGRAM)
    assert exported.files == {out / name: (out / name).stat().st_size for name in names}
    floats = torch.cat([tensor.flatten() for tensor in module.state_dict().values() if tensor.is_floating_point()])
    assert exported.zeros == pytest.approx(float((floats == 0).double().mean()))
    task = {"data": "custom", "model": "custom", "split": "iid"}
    for name in (TENSORS, SPARSE_TENSORS):
        written = about(out / name)
        assert written.pop("gossamer")
        facts = {"method": "fedavg-pruned", "task": task, "round": 1, "client": None, "shared": True}
        assert written == {**facts, "zeros": exported.zeros}


@pytest.mark.parametrize("model", SHAPES)
def test_a_program_takes_one_sample_and_brings_none(model: str, fresh: Fresh) -> None:
    out, module, _ = fresh[model]
    program, x = torch.export.load(out / PROGRAM), load_file(out / "x.safetensors")["x"]
    assert not any(example.any() for example in program.example_inputs[0])
    assert not program.example_inputs[1]
    if model != "resnet18":
        with torch.no_grad():
            assert torch.allclose(program.module()(x[3:4]), module(x)[3:4], rtol=1e-4, atol=1e-6)


# Static batch norms.


def test_with_statistics_of_the_batch_a_sample_depends_on_its_batch(
    fresh: Fresh,
) -> None:
    out, module, _ = fresh["resnet18"]
    outputs = load_file(out / "y.safetensors")
    assert not torch.allclose(outputs["pairs"], outputs["scores"][:2], atol=1e-3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        module(torch.zeros(1, *SHAPES["resnet18"]))


def test_by_training_samples_it_does_not(tmp_path: Path) -> None:
    task = static_task(OfTraining(8))
    result = ran(fedavg(steps=1, batch=8), task, tmp_path / "run")
    exported = export(stand(tmp_path / "run", fedavg(steps=1, batch=8), task), tmp_path / "out")
    network, x = torch.export.load(tmp_path / "out" / PROGRAM).module(), task.data.test.x
    assert torch.allclose(network(x[:1]), network(x)[:1], rtol=1e-4, atol=1e-5)
    assert exported.batch == "any"
    assert exported.score == pytest.approx(result.accuracy)
    assert sum(name.endswith("running_mean") for name in load_file(tmp_path / "out" / TENSORS)) == 1


def test_by_own_batches_a_clients_figure_is_of_its_samples_alone(tmp_path: Path) -> None:
    task = static_task(OfOwnBatch(100))
    ran(fedavg(steps=1, batch=8), task, tmp_path / "run")
    run = stand(tmp_path / "run", fedavg(steps=1, batch=8), task)
    exported = export(run, tmp_path / "out", client=1)
    assert exported.own_score == pytest.approx(run.evaluate.on_client(run.deployed(), 1)[1])


# Whose model.


def test_local_training_exports_a_model_per_client(tmp_path: Path) -> None:
    task, method = tiny_task(), local(steps=2)
    ran(method, task, tmp_path / "run", per_round=2)
    run = stand(tmp_path / "run", method, task)
    took_part = run.metrics[0]["clients"]
    stranger = next(client for client in range(task.clients) if client not in took_part)
    written = {}
    for client in (*took_part, stranger):
        exported = export(run, tmp_path / str(client), client)
        written[client] = load_file(tmp_path / str(client) / TENSORS)
        assert not exported.shared
        assert about(tmp_path / str(client) / TENSORS)["client"] == client
        wanted = run.clients.get(client).get("own", run.objective.initial())
        assert all(torch.equal(written[client][name], tensor) for name, tensor in wanted.items())
        _, right = run.evaluate.on_client(wanted, client)
        assert exported.own_score == pytest.approx(right)
    first, second = (written[client]["0.weight"] for client in took_part)
    assert not torch.equal(first, second)
    with pytest.raises(ConfigError, match="no global model, only one model per client: name a client"):
        export(run, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_without_personal_models_a_client_has_the_global_one(tmp_path: Path) -> None:
    result = ran(fedavg(), tiny_task(), tmp_path / "run", rounds=2)
    run = stand(tmp_path / "run", fedavg(), tiny_task())
    exported = export(run, tmp_path / "out", client=4)
    assert exported.shared
    assert exported.round == 2
    assert exported.score == pytest.approx(result.accuracy)
    read = load_file(tmp_path / "out" / TENSORS)
    assert all(torch.equal(read[name], tensor) for name, tensor in result.model.state_dict().items())
    assert exported.files.keys() == {tmp_path / "out" / name for name in (TENSORS, PROGRAM)}


def test_an_interrupted_run_has_the_model_of_its_last_checkpoint(tmp_path: Path) -> None:
    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(fedavg(), tiny_task(), rounds=5, out=tmp_path / "run", callbacks=[stop])
    exported = export(stand(tmp_path / "run", fedavg(), tiny_task()), tmp_path / "out")
    assert exported.round == 2
    kept = read_server(tmp_path / "run")["params"]
    read = load_file(tmp_path / "out" / TENSORS)
    assert all(torch.equal(read[name], tensor) for name, tensor in kept.items())
    again = simulate(fedavg(), tiny_task(), rounds=5, out=tmp_path / "run", resume=True)
    whole = simulate(fedavg(), tiny_task(), rounds=5)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))


def test_a_run_on_a_gpu_is_exported_where_there_is_none(tmp_path: Path) -> None:
    result = ran(fedavg(), tiny_task(), tmp_path / "run")
    recorded = files.from_json(tmp_path / "run/run.json")
    recorded["options"] |= {"device": "cuda", "executor": "captured"}
    files.write(tmp_path / "run/run.json", files.to_json(recorded))
    files.write(tmp_path / "run/executor.json", files.to_json({"executor": "captured"}))
    exported = export(stand(tmp_path / "run", fedavg(), tiny_task()), tmp_path / "out")
    assert exported.score == pytest.approx(result.accuracy)


# Narrower models.

NARROW = perm(warmup=0, steps=1, batch=8, capacities=(1.0, 0.5))
"""Of three clients the second holds half of the channels."""

BARE = """
import sys

sys.modules["gossamer"] = None  # importing it now raises ImportError
import torch
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    x = load_file(f"{folder}/x.safetensors")["x"]
    with torch.no_grad():
        save_file({"scores": torch.export.load(f"{folder}/model.pt2").module()(x)}, f"{folder}/y.safetensors")
"""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Simulation, Exported]]:
    """The narrow client's own model of each network, and what a Python process without Gossamer made of it."""
    home, found = tmp_path_factory.mktemp("narrow"), {}
    for model in SHAPES:
        task, out = some_task(model), home / model / "export"
        ran(NARROW, task, home / model, rounds=2, executor="one-by-one")
        run = stand(home / model, NARROW, task)
        found[model] = out, run, export(run, out, client=1)
        save_file({"x": task.data.test.x}, out / "x.safetensors")
    folders = [str(out) for out, _, _ in found.values()]
    done = subprocess.run([sys.executable, "-I", "-c", BARE, *folders], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", SHAPES)
def test_the_program_of_a_narrower_client_computes_what_its_network_computes(
    model: str, narrow: dict[str, tuple[Path, Simulation, Exported]]
) -> None:
    """By the network that clients are trained and evaluated with, which has narrower tensors put into it."""
    out, run, exported = narrow[model]
    mine, x, y = run.client_params(1), run.task.data.test.x, run.task.data.test.y
    scores = load_file(out / "y.safetensors")["scores"]
    judged = run.objective.evaluate(mine, x, y)
    assert float(run.task.loss(scores, y)) == pytest.approx(judged.loss, rel=1e-5)
    assert exported.score == pytest.approx(judged.values()[0])
    assert exported.problem is None
    read = load_file(out / TENSORS)
    assert all(torch.equal(read[name], tensor) for name, tensor in mine.items())
    assert sum(map(Tensor.numel, mine.values())) < 0.6 * run.objective.layout.size


@pytest.mark.slow
def test_a_narrower_network_is_one_that_was_built_narrower(
    narrow: dict[str, tuple[Path, Simulation, Exported]],
) -> None:
    out, run, _ = narrow["mlp"]
    half = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, CLASSES)
    )
    half.load_state_dict(load_file(out / TENSORS))
    with torch.no_grad():
        assert torch.allclose(load_file(out / "y.safetensors")["scores"], half(run.task.data.test.x), atol=1e-6)


def test_static_norms_of_a_narrower_network_have_their_own_statistics(tmp_path: Path) -> None:
    task = static_task(OfTraining(8))
    ran(NARROW, task, tmp_path / "run", executor="one-by-one")
    run = stand(tmp_path / "run", NARROW, task)
    exported = export(run, tmp_path / "out", client=1)
    read, network, x = (
        load_file(tmp_path / "out" / TENSORS),
        run.objective.build(run.client_params(1)),
        task.data.train.x,
    )
    conv = network.get_submodule("0")
    assert isinstance(conv, nn.Conv2d)
    batches = [conv(batch).mean((0, 2, 3)) for batch in torch.split(x, 8)]
    assert torch.allclose(read["1.running_mean"], torch.stack(batches).mean(0), atol=1e-6)
    assert len(read["1.running_mean"]) == 2
    assert exported.batch == "any"
    assert exported.own_score == pytest.approx(run.evaluate.on_client(run.client_params(1), 1)[1])


# Networks that torch cannot follow.


class ByBatch(nn.Linear):
    """Has a rule for small batches."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 3 else super().forward(x) + 1


class ByValue(nn.Linear):
    """Has a rule for bright samples."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


def test_a_network_for_fixed_batches_is_written_for_one_sample() -> None:
    traced = trace(ByBatch(4, 2).eval(), torch.zeros(2, 4))
    assert traced.program is not None
    assert traced.batch == "1 only"
    assert traced.problem is None


def test_a_network_that_looks_at_values_has_no_program_but_its_tensors(tmp_path: Path) -> None:
    task = replace(tiny_task(), model=lambda: ByValue(6, 3))
    result = ran(fedavg(), task, tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / PROGRAM).write_bytes(b"of an earlier release")
    exported = export(stand(tmp_path / "run", fedavg(), task), tmp_path / "out", force=True)
    assert exported.problem is not None
    assert "data-dependent" in exported.problem
    assert "\n" not in exported.problem
    assert {file.name for file in (tmp_path / "out").iterdir()} == {TENSORS, LIST}
    assert exported.score == pytest.approx(result.accuracy)


# The command.

Said = tuple[int, str, str]


def gossamer(line: str) -> Said:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = main(shlex.split(line))
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """Output of the last command of each block on the page, and the output that the page shows."""
    home, before = tmp_path_factory.mktemp("page"), Path.cwd()
    shown = [body for language, body in BLOCKS if language == "console"]
    printed = []
    os.chdir(home)
    try:
        for block in shown:
            lines = [line.removeprefix("$ gossamer ") for line in block.splitlines() if line.startswith("$")]
            results = [gossamer(f"{line} --out other" if "onnx" in line else line) for line in lines]
            assert {status for status, _, _ in results} == {0}
            printed.append(results[-1][1])
    finally:
        os.chdir(before)
    return home, printed, shown


def test_the_command_prints_what_the_page_shows(page: tuple[Path, list[str], list[str]]) -> None:
    def shape(line: str) -> str:
        line = re.sub(r"[\d.e+-]+ (%|kB|at most)", r"# \1", line.replace("other/", "runs/thin/export/client-3/"))
        return re.sub(r"\s+", " ", line.replace("─", "")).strip()

    for printed, block in zip(*page[1:], strict=True):
        found = [shape(line) for line in printed.splitlines()]
        assert found == [shape(line) for line in block.splitlines() if line[:1] != "$"]
        assert "zeros         70.00 %" in printed


def test_a_clients_sparse_model_is_small(page: tuple[Path, list[str], list[str]]) -> None:
    out = page[0] / "runs/thin/export/client-3"
    assert about(out / TENSORS)["method"] == "fedspa"
    assert about(out / TENSORS)["client"] == 3
    assert not about(out / TENSORS)["shared"]
    assert about(out / TENSORS)["task"] == {"data": "digits", "model": "mlp", "split": "dirichlet:0.3"}
    scope: dict[str, Any] = {}
    exec(python_on_the_page("load_sparse"), scope)
    dense, filled = load_file(out / TENSORS), scope["load_sparse"](out / SPARSE_TENSORS)
    assert all(torch.equal(dense[name], filled[name]) for name in dense | filled)
    assert (out / SPARSE_TENSORS).stat().st_size < 0.34 * (out / TENSORS).stat().st_size


def test_an_earlier_export_goes(page: tuple[Path, list[str], list[str]], tmp_path: Path) -> None:
    run = page[0] / "runs/thin"
    status, out, _ = gossamer(f"export {run} --client 1 --out {tmp_path}")
    assert status == 0
    assert {file.name for file in tmp_path.iterdir()} == {LIST, TENSORS, SPARSE_TENSORS, PROGRAM, SPARSE_PROGRAM}
    assert "the personalized model of client 1" in out
    status, out, _ = gossamer(f"export {run} --out {tmp_path}")
    assert status == 0
    assert {file.name for file in tmp_path.iterdir()} == {LIST, TENSORS, PROGRAM}
    assert "the global model, after 3 rounds" in out
    measured, recorded = re.findall(r"([\d.]+) %", next(line for line in out.splitlines() if line[:8] == "accuracy"))
    assert measured == recorded
    (tmp_path / ONNX).write_text("a file of another program")
    assert gossamer(f"export {run} --client 1 --format safetensors --out {tmp_path}")[0] == 0
    assert {file.name for file in tmp_path.iterdir()} == {LIST, TENSORS, SPARSE_TENSORS, PROGRAM, ONNX}


def test_files_that_export_has_not_written_are_not_replaced(
    page: tuple[Path, list[str], list[str]], tmp_path: Path
) -> None:
    line = f"export {page[0] / 'runs/thin'} --client 1 --format safetensors --out {tmp_path}"
    (tmp_path / TENSORS).write_text("mine")
    status, out, err = gossamer(line)
    assert (status, out) == (2, "")
    why = "which export has not written, or which was changed since: --force replaces it"
    assert err == f"gossamer: {tmp_path} has {TENSORS}, {why}\n"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(TENSORS, "mine")]
    assert gossamer(f"{line} --force")[0] == 0
    assert gossamer(line)[0] == 0, "an export of one's own is replaced"
    with (tmp_path / SPARSE_TENSORS).open("ab") as file:
        file.write(b"edited since")
    status, _, err = gossamer(line)
    assert status == 2
    assert SPARSE_TENSORS in err


@pytest.mark.parametrize("name", [TENSORS, LIST])
def test_a_list_a_link_or_a_folder_of_somebody_else_is_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    places = [tmp_path / "file", tmp_path / "link", tmp_path / "folder"]
    for place in places:
        place.mkdir()
    (places[0] / name).write_text("[" * 100_000)
    (places[1] / name).symlink_to(tmp_path / "mine")
    (places[2] / name).mkdir()
    for place in places:
        with pytest.raises(ConfigError, match=f"{place} has {name}, which export has not written"):
            check_out(place, ["safetensors"])
    check_out(places[0], ["safetensors"], force=True)


def test_python_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(python_on_the_page("stand"), {})
    assert (tmp_path / "mine/export" / PROGRAM).is_file()


TASK = """
import torch
from torch import nn

from gossamer import Task

def arrays(n, seed):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()

def task():
    return Task.of(lambda: nn.Linear(4, 2), arrays(60, 1), arrays(20, 2), clients=5)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Said]:
    """Runs of a task in a file, which each test damages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gossamer.cli.run.try_to_write_page", lambda path, data: None)  # it takes longer than the run
    (tmp_path / "mine.py").write_text(TASK)
    command = "run fedavg --task mine.py:task --rounds 2 --steps 2 --executor one-by-one --eval-every 3 --out run"
    assert gossamer(command)[0] == 0
    return gossamer


def test_a_task_in_a_file_must_still_be_there(own: Callable[[str], Said]) -> None:
    status, out, _ = own("export run --client 2")
    assert status == 0
    assert "the global model: client 2 has no other with this method, after 2 rounds" in out
    Path("mine.py").write_text(TASK + "\nmore = 1\n")
    status, _, err = own("export run")
    assert status == 1
    assert "was changed since the run was started" in err
    Path("mine.py").unlink()
    status, _, err = own("export run")
    assert status == 2
    assert re.fullmatch(r"gossamer: run was started with \S*mine\.py, which is missing: restore it\n", err)
    assert not Path("run/export/model.pt2").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("nowhere", 2, "nowhere is not a run: there is no run.json in it"),
        ("run --client 5", 2, "--client 5: the run has clients 0 to 4"),
        ("run --client -1", 2, "--client -1: the run has clients 0 to 4"),
        ("run --client two", 2, "--client must be a whole number, got 'two'"),
        ("nowhere --client two", 2, "2 mistakes"),
        ("run --out mine.py", 2, "mine.py is a file: name a folder"),
        ("run --out mine.py/here", 1, "the model is not in mine.py/here"),
    ],
)
def test_mistakes_are_reported_and_nothing_is_written(
    own: Callable[[str], Said], words: str, status: int, message: str
) -> None:
    found, out, err = own(f"export {words}")
    assert (found, out) == (status, "")
    assert message in err
    assert not Path("run/export").exists()


def test_a_run_that_goes_on_is_left_alone(own: Callable[[str], Said]) -> None:
    folder = RunFolder.open(Path("run"))
    status, _, err = own("export run")
    folder.close()
    assert status == 1
    assert "another process is working in run" in err


def test_a_run_without_a_finished_round_has_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Callable[[str], Said]
) -> None:
    def stop(self: Simulation, number: int, folder: RunFolder, callbacks: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "round", stop)
    assert own("run fedavg --task mine.py:task --rounds 2 --executor one-by-one --out new")[0] == 130
    status, _, err = own("export new")
    assert status == 1
    assert err == "gossamer: new has no finished round yet: there is no model to export\n"


def test_an_export_of_local_training_needs_a_client(own: Callable[[str], Said]) -> None:
    line = "run local --task mine.py:task --rounds 1 --steps 2 --per-round 1 --executor one-by-one --out alone"
    assert own(line)[0] == 0
    status, _, err = own("export alone")
    assert status == 2
    assert err == "gossamer: alone has no global model: choose a client with --client N\n"
    (chosen,) = json.loads(Path("alone/metrics.jsonl").read_text())["clients"]
    status, out, _ = own(f"export alone --client {chosen}")
    assert status == 0
    assert f"the personalized model of client {chosen}, after 1 round of alone" in out
    assert "as the mean over clients" in out
    status, out, _ = own(f"export alone --client {(chosen + 1) % 5}")
    assert status == 0
    assert f"the initial model: client {(chosen + 1) % 5} took part in no round" in out


def test_a_run_from_python_is_exported_from_python(tmp_path: Path) -> None:
    ran(fedavg(), tiny_task(), tmp_path / "run")
    status, _, err = gossamer(f"export {tmp_path}/run")
    assert status == 2
    assert "its task cannot be built from the folder: add --task FILE.py:NAME, or in Python task=task" in err
    with pytest.raises(RunError, match="started with another method"):
        stand(tmp_path / "run", fedavg(lr=0.2), tiny_task())


def test_of_a_deployed_run_the_server_has_the_global_model_alone(tmp_path: Path) -> None:
    from gossamer.cli.build import make_task
    from gossamer.cli.build_method import make_method
    from gossamer.cli.request import Request
    from gossamer.engines.flower import Settings
    from gossamer.engines.flower.server import FlowerRun
    from helpers.flower_runs import nodes
    from helpers.local_grid import LocalGrid

    request = Request("fedavg", {"steps": "2"}, clients="4")
    method, task = make_method(request), make_task(request, 0, None)
    settings = Settings(rounds=1, wait=0, deadline=0.05)
    run = FlowerRun(method, task, settings, LocalGrid(nodes(method, task, tmp_path / "nodes")), request.plain())
    folder = run.create(tmp_path / "run")
    result = run.run(folder, lambda record: None)
    folder.close()
    status, _, err = gossamer(f"export {tmp_path}/run")
    assert status == 0, err
    read = load_file(tmp_path / "run/export" / TENSORS)
    assert all(torch.equal(read[name], tensor) for name, tensor in result.model.state_dict().items())
    status, _, err = gossamer(f"export {tmp_path}/run --client 0")
    assert status == 2
    assert "the run was deployed, and the models of its clients are on their machines" in err
