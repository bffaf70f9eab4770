"""Programs in sparse form: small files that compute what the network computes, without Gossamer."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Task, fedspa, simulate
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.extras import MissingExtraError
from gossamer.core.random import key, uniform
from gossamer.engines.export import (
    ONNX,
    PROGRAMS,
    SPARSE_ONNX,
    SPARSE_PROGRAM,
    Exported,
    export,
    programs,
    stand,
)
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.nets import NETS, build
from helpers.paths import ROOT

PAGE = (ROOT / "docs/export.md").read_text()
(ON_DEVICE,) = (block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if "onnxruntime" in block)
BATCHES = (1, 2, 7)

Thin = tuple[Path, nn.Module, Exported]
"""The folder of an export, the network, and the result of the export."""


def thin(module: nn.Module, density: float = 0.4) -> nn.Module:
    """Keep a random fraction of the entries of each weight."""
    for number, weight in enumerate(module.requires_grad_(False).parameters()):
        if weight.dim() > 1:
            weight.mul_((uniform(key(number), weight.numel()) < density).view(weight.shape))
    return module.eval()


def four_programs(module: nn.Module, x: Nest) -> dict[str, Any]:
    """Return the four programs of a network, read back, and check that the sparse ones are smaller."""
    traced = programs.trace(module, x)
    assert traced.program is not None, traced.problem
    sparse = programs.thinned(traced)
    assert sparse is not None
    model = programs.to_onnx(traced, "{}")
    dense, found = (
        model.SerializeToString(),
        {"pt2": programs.save(traced.program), "sparse pt2": programs.save(sparse)},
    )
    assert programs.thin_onnx(model)
    assert len(found["sparse pt2"]) < len(found["pt2"])
    assert model.ByteSize() < len(dense)
    loaded: dict[str, Any] = {name: programs.load(data) for name, data in found.items()}
    return loaded | {"onnx": programs.load_onnx(dense), "sparse onnx": programs.load_onnx(model.SerializeToString())}


@torch.no_grad()
def check(module: nn.Module, x: Nest, sizes: tuple[int, ...] = BATCHES) -> None:
    """Dense programs compute the scores of the network up to rounding; sparse ones compute those of the dense ones."""
    made = four_programs(module, nests.apply(lambda tensor: torch.zeros_like(tensor[:2]), x))
    for size in sizes:
        batch = nests.take(x, slice(size))
        wanted = nests.forward(module, batch)
        scores = {name: nests.forward(each, batch) for name, each in made.items()}
        assert torch.allclose(scores["pt2"], wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
        assert torch.equal(scores["pt2"], scores["sparse pt2"])
        assert torch.allclose(scores["onnx"], wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
        assert torch.equal(scores["onnx"], scores["sparse onnx"])


# A run.


def net() -> nn.Module:
    """Sizes that are no multiple of eight."""
    return nn.Sequential(nn.Conv2d(1, 13, 3), nn.GroupNorm(1, 13), nn.ReLU(), nn.Flatten(), nn.Linear(468, 43))


X = uniform(key(1), 20 * 64).view(20, 1, 8, 8)
METHOD = fedspa(density=0.4, epochs=1, batch=5)


def task() -> Task:
    return Task.of(net, (X, torch.arange(20)), (X, torch.arange(20)), clients=2)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Thin:
    """The sparse model of a client."""
    home = tmp_path_factory.mktemp("run")
    simulate(METHOD, task(), rounds=1, out=home / "run")
    run = stand(home / "run", METHOD, task())
    found = export(run, home / "out", client=1, formats=["onnx", "torch-export"])
    return home / "out", run.objective.build(run.client_params(1)).eval(), found


def test_the_sizes_are_those_of_bitmap_and_values(exported: Thin) -> None:
    out, module, found = exported
    dense = sum(tensor.nbytes for tensor in module.state_dict().values())
    weight = module.get_parameter("4.weight")
    saved = weight.nbytes - (-(-weight.numel() // 8) + 4 * int(weight.count_nonzero()))
    sizes = {file.name: size for file, size in found.files.items()}
    assert sizes == {name: (out / name).stat().st_size for name in PROGRAMS}
    assert abs(sizes[ONNX] - dense) < 3_000
    assert 0 < saved - (sizes[ONNX] - sizes[SPARSE_ONNX]) < 1_500
    assert 0 < saved - (sizes["model.pt2"] - sizes[SPARSE_PROGRAM]) < programs.OVERHEAD
    assert found.difference is not None
    assert found.difference < 1e-5


DEVICE = """
import sys

sys.modules.update(dict.fromkeys(("gossamer", "torch", "onnx", "onnxscript")))  # importing them raises ImportError
import numpy as np

use, folder = sys.argv[1:]
found = {}
for name in ("model.onnx", "model.sparse.onnx"):
    for size in (1, 7, 20):
        scope = {"x": np.load(f"{folder}/x.npy")[:size]}
        exec(use.replace("model.sparse.onnx", f"{folder}/{name}"), scope)
        found[f"{name} {size}"] = scope["scores"]
np.savez(f"{folder}/scores.npz", **found)
assert not [name for name in sys.modules if name.startswith(("gossamer.", "torch."))]
"""


def test_a_device_runs_it_with_onnx_runtime_alone(exported: Thin) -> None:
    out, module, _ = exported
    np.save(out / "x.npy", X.numpy())
    words = [sys.executable, "-I", "-c", DEVICE, ON_DEVICE, str(out)]
    done = subprocess.run(words, cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(out / "scores.npz")
    for size in (1, 7, 20):
        assert np.array_equal(found[f"model.onnx {size}"], found[f"model.sparse.onnx {size}"])
        with torch.no_grad():
            assert np.allclose(found[f"model.onnx {size}"], module(X[:size]).numpy(), rtol=1e-4, atol=1e-6)


def test_onnx_runtime_fills_in_the_zeros_once(exported: Thin) -> None:
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    out, *_ = exported
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out / "loaded.onnx")
    runtime.InferenceSession(out / SPARSE_ONNX, options)
    stored, loaded = (
        {node.op_type for node in onnx.load(out / name).graph.node} for name in (SPARSE_ONNX, "loaded.onnx")
    )
    filling = {"BitShift", "BitwiseAnd", "CumSum", "Gather"}
    assert filling <= stored
    assert not filling & loaded


def test_an_onnx_file_is_valid_and_says_what_it_is(exported: Thin) -> None:
    onnx = importlib.import_module("onnx")
    out, *_ = exported
    for name in (ONNX, SPARSE_ONNX):
        model = onnx.load(out / name)
        onnx.checker.check_model(model, full_check=True)
        assert {(entry.domain, entry.version) for entry in model.opset_import} == {("", 18)}
        (entry,) = model.metadata_props
        assert json.loads(entry.value)["client"] == 1
        (x,), (scores,) = model.graph.input, model.graph.output
        assert (x.name, scores.name) == ("x", "scores")
        assert {each.type.tensor_type.shape.dim[0].dim_param for each in (x, scores)} == {"batch"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_has_a_path_of_this_machine(name: str, exported: Thin) -> None:
    data = (exported[0] / name).read_bytes()
    assert b".py" not in data
    assert str(ROOT).encode() not in data


# Inputs and outputs.


class Pair(nn.Module):
    """Takes inputs by name, and returns more than scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 300), nn.Linear(300, 50, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, weights: Tensor, ids: Tensor) -> dict[str, Any]:
        mean = (self.embed(ids) * weights.unsqueeze(-1)).mean(1)
        return {"hidden": (mean, mean + 1), "logits": self.out(mean)}


@pytest.mark.slow
def test_inputs_by_name_several_outputs_and_tied_weights() -> None:
    torch.manual_seed(0)
    x: Nest = {"ids": (50 * uniform(key(1), 7 * 4)).long().view(7, 4), "weights": uniform(key(2), 7 * 4).view(7, 4)}
    module = thin(Pair())
    check(module, x)
    traced = programs.trace(module, nests.take(x, slice(2)))
    sparse = programs.thinned(traced)
    assert sparse is not None
    assert sum(name.endswith(".bitmap") for name in sparse.state_dict) == 1
    assert [each.name for each in programs.to_onnx(traced, "").graph.output] == ["scores"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_every_network_by_name(name: str) -> None:
    torch.manual_seed(0)
    shape = (3, 32, 32) if NETS[name].min_side else (80,)
    x = uniform(key(1), 7 * torch.Size(shape).numel()).view(7, *shape)
    check(
        thin(build(name, shape, 10)), x if NETS[name].min_side else (x * 10).long(), (2, 7) if "18" in name else BATCHES
    )


@pytest.mark.slow
def test_models_of_hugging_face() -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=900, num_labels=3, max_position_embeddings=8, hidden_size=64, intermediate_size=64,
        num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    ids = (900 * uniform(key(1), 7 * 8)).long().view(7, 8)
    check(thin(transformers.BertForSequenceClassification(config)), {"input_ids": ids, "attention_mask": ids % 2})
    config = transformers.GPT2Config(vocab_size=900, n_positions=8, n_embd=64, n_layer=1, n_head=2, use_cache=False)
    check(thin(transformers.GPT2LMHeadModel(config)), ids)


# What cannot be exported.


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x.view(-1, 2, 3))


def test_an_operator_that_onnx_lacks_is_named() -> None:
    with pytest.raises(RunError, match=r"there is no ONNX model: ONNX has no operator for aten\._linalg_svd$"):
        programs.to_onnx(programs.trace(Spectrum(), torch.zeros(2, 6)), "")


class ByValue(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


def test_without_a_program_of_torch_there_is_none_of_onnx() -> None:
    with pytest.raises(RunError, match=r"no ONNX model, because torch cannot export this network: .*data-dependent"):
        programs.to_onnx(programs.trace(ByValue(4, 2), torch.zeros(2, 4)), "")


def test_a_dense_network_has_no_sparse_program() -> None:
    traced = programs.trace(nn.Linear(200, 50), torch.zeros(2, 200))
    assert programs.thinned(traced) is None
    assert not programs.thin_onnx(programs.to_onnx(traced, ""))


def test_mistakes_come_before_any_work(exported: Thin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, module, _ = exported
    run = stand(exported[0].parent / "run", METHOD, task())
    with pytest.raises(ConfigError, match="unknown format 'onxx': did you mean onnx"):
        export(run, tmp_path / "out", formats=["onxx"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="formats must name at least one format"):
        export(run, tmp_path / "out", formats=[])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"this needs onnxruntime: pip install 'gossamer\[onnx\]'"):
        export(run, tmp_path / "out", formats=["onnx"])
    monkeypatch.undo()
    monkeypatch.setattr(programs, "load_onnx", lambda data: lambda x: module(x) + 1)
    with pytest.raises(RunError, match=r"model.onnx computes other scores than the network: they differ by up to 1$"):
        export(run, tmp_path / "out", client=1, formats=["onnx"])
    assert not (tmp_path / "out").exists()
