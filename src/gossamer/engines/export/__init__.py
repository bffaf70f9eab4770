"""Export the model of a run to files that do not need Gossamer, in one or more formats.

    safetensors     model.safetensors, model.sparse.safetensors    all tensors of the network by name
    torch-export    model.pt2, model.sparse.pt2                    the network as a program, for torch
    onnx            model.onnx, model.sparse.onnx                  the network as a program, for ONNX Runtime
    peft            adapter_model.safetensors, adapter_config.json the adapter alone, for PEFT

The metadata of the tensors and of ONNX models describe the run. The sparse file of a format stores a bitmap and the
nonzero values of each tensor for which this is smaller (``gossamer.core.sparse``); it is written if there is such a
tensor. A sparse program computes the same function: it fills in the zeros with operators of the graph.

The tensors of an adapter are merged into those of the network, except in the format of PEFT.

Programs use ``torch.export``, because TorchScript is deprecated. With batch statistics, the output of a static batch
norm depends on the other samples of the batch, also in the program. With ``statistics=train``, the mean statistics of
the training samples are part of the exported model. Every program is read back and compared with the network.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer import __version__
from gossamer.core import files, specs
from gossamer.core.errors import RunError, require
from gossamer.core.method import Method
from gossamer.core.sparse import compact
from gossamer.core.types import Params
from gossamer.engines.export import programs
from gossamer.engines.export.programs import ABOUT, ONE, Traced, trace
from gossamer.engines.kept_run import kept_key
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.runs.records import check_about, read_about, refuse_busy
from gossamer.runs.report.summary import method_name
from gossamer.runs.report.tables import method as short_name
from gossamer.tasks.batch_norms import OfTraining
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.samples import AnySamples
from gossamer.tasks.precision import FLOAT32, on_cpu
from gossamer.tasks.task import Task

TENSORS, SPARSE_TENSORS = "model.safetensors", "model.sparse.safetensors"
PROGRAM, SPARSE_PROGRAM = "model.pt2", "model.sparse.pt2"
ONNX, SPARSE_ONNX = "model.onnx", "model.sparse.onnx"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
PROGRAMS = (PROGRAM, SPARSE_PROGRAM, ONNX, SPARSE_ONNX)
FILES = (TENSORS, SPARSE_TENSORS, *PROGRAMS, ADAPTER, ADAPTER_CONFIG)

LIST = "export.json"
"""The list of the files that were exported to a folder, with their digests."""

Format = Literal["safetensors", "torch-export", "onnx", "peft"]
FORMATS: tuple[Format, ...] = get_args(Format)
NAMES = dict(zip(FORMATS, zip(FILES[::2], FILES[1::2], strict=True), strict=True))
"""The files of each format: the dense one and the sparse one, or the tensors of an adapter and its configuration."""

DEFAULT: tuple[Format, ...] = ("safetensors", "torch-export")

COMPARED, TOLERANCE = 8, 1e-3
"""Number of samples on which programs and network are compared, and the allowed difference of their scores."""

Network = Callable[..., Any]


@dataclass(frozen=True)
class Exported:
    """The exported files and their score: the primary metric of the task.

    Args:
        files: the files, with their sizes in bytes
        round: number of rounds that the model was trained for
        shared: whether it is the global model, not a client's personalized model
        zeros: fraction of zero entries
        batch: the batch sizes that the program accepts, as text
        problem: why there is no program of torch; none if there is one, or none was asked for
        difference: the largest difference between a score of a program and the network's; none without programs
        score: score of the first program on the whole test set, after reading it back, or of the network if there is
            no program; none without test samples
        own_score: score on the client's test samples, as the run measures it; with labels="own" outputs of
            labels that the client lacks count as 0; none without a client or without test samples
    """

    files: Mapping[Path, int]
    round: int
    shared: bool
    zeros: float
    batch: str
    problem: str | None
    difference: float | None
    score: float | None
    own_score: float | None


def stand(path: str | Path, method: Method, task: Task) -> Simulation:
    """Load a run at its last checkpoint, for inspection only; ``method`` and ``task`` must be those of the run.

    The models are on the CPU, whatever the device of the run.
    """
    refuse_busy(Path(path))
    about = read_about(Path(path))
    check_about(Path(path), about)
    kept = {name: about["options"][name] for name in ("rounds", "seed")}
    kept |= {"checkpointing": about["options"].get("checkpointing", False)}
    options = Options(**kept, precision=on_cpu(about["options"].get("precision", FLOAT32)))
    run = Simulation(method, task, options, init=Init.kept(Path(path)), key=kept_key(Path(path)))
    run.about |= {name: about[name] for name in ("options", "request")}
    run.look(Path(path))
    if not run.metrics:
        raise RunError(f"{path} has no finished round yet: there is no model to export")
    return run


def export(
    run: Simulation,
    out: str | Path,
    client: int | None = None,
    formats: Sequence[Format] = DEFAULT,
    force: bool = False,
) -> Exported:
    """Write the global model of a run, or one client's deployed model, into the folder ``out``.

    An earlier export there is replaced. Other files of the same names are replaced only with ``force``.
    """
    _check(run, client, formats)
    check_out(Path(out), formats, force)
    everybody = client is None and not run.method.pooled
    params = run.deployed() if everybody else run.client_params(client or 0)
    shared = run.method.pooled or (run.method.shared and params is run.deployed())
    settled = isinstance(run.task.statistics, OfTraining) and run.objective.static
    module = run.objective.settle(params) if settled else run.objective.build(params)
    module = run.merged(module).eval().requires_grad_(False)
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    share = zeros(state)
    name, model, split = run.task.names
    origin = {
        "gossamer": __version__,
        "method": short_name({"method": method_name(run.about)}),
        "task": {"data": name, "model": model, "split": split},
        "round": len(run.metrics),
        "client": client,
        "shared": shared,
        "zeros": share,
    }
    about = json.dumps(origin)
    traced = trace(module, _zeros(run.task)) if {"torch-export", "onnx"} & set(formats) else Traced(None, (), "any")
    data = _made(traced, state, formats, about)
    if "peft" in formats:
        adapter = run.method.method.adapter
        assert adapter is not None  # or it was refused
        tensors, config = adapter.to_peft(run.objective.build(params))
        stored = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        data[ADAPTER] = files.to_tensors(stored, {"format": "pt"})  # the metadata that PEFT writes
        data[ADAPTER_CONFIG] = json.dumps(config, indent=1).encode()
    loaded = {
        name: programs.load_onnx(content) if name.endswith(".onnx") else programs.load(content)
        for name, content in data.items()
        if name in PROGRAMS and content
    }
    difference = _difference(run.task, module, loaded, traced.batch)
    sizes = _write(Path(out), data)
    network = next(iter(loaded.values()), module)
    scores = _scores(run, network, client, 1 if traced.batch == ONE else run.task.statistics.size)
    return Exported(sizes, len(run.metrics), shared, share, traced.batch, traced.problem, difference, *scores)


def _check(run: Simulation, client: int | None, formats: Sequence[str]) -> None:
    clients = run.task.clients
    require(
        *((name in FORMATS, specs.unknown("format", name, FORMATS)) for name in formats),
        (bool(formats), "formats must name at least one format"),
        (
            client is None or 0 <= client < clients,
            f"there is no client {client}: clients are numbered 0 to {clients - 1}",
        ),
        (
            client is not None or run.method.shared or run.method.pooled,
            "this run has no global model, only one model per client: name a client",
        ),
        (
            "peft" not in formats or run.method.method.adapter is not None,
            "format peft: the run trained the whole network, without an adapter",
        ),
    )
    if "onnx" in formats:
        programs.check_onnx()


def check_out(out: Path, formats: Sequence[Format], force: bool = False) -> None:
    """Refuse a folder with files that an export would replace and has not written, as far as its list says."""
    require((not out.exists() or out.is_dir(), f"{out} is a file: name a folder"))
    wanted = [*(name for each in formats for name in NAMES[each]), LIST]
    there = [name for name in wanted if (out / name).is_symlink() or (out / name).exists()]
    strange = [name for name in there if not force and not _ours(out, name)]
    why = "which export has not written, or which was changed since: --force replaces it"
    require((not strange, f"{out} has {', '.join(strange)}, {why}"))


def _ours(out: Path, name: str) -> bool:
    """Return whether a file is of an earlier export, and unchanged since; a link or a folder is not."""
    file, listed = out / name, _listed(out)
    if listed is None or file.is_symlink() or not file.is_file():
        return False
    return name == LIST or listed.get(name) == files.digest(file)


def _listed(out: Path) -> dict[str, Any] | None:
    """Return the files of earlier exports, with their digests; none if the list is missing or damaged."""
    try:
        return files.from_json(out / LIST)
    except (OSError, ValueError):
        return None


def _zeros(task: Task) -> Nest:
    """Return two all-zero samples; with a batch of one, torch.export would fix the batch size."""
    some, _ = _samples(task).example(1)
    return nests.apply(lambda tensor: tensor.new_zeros(2, *tensor.shape[1:]), some)


def _samples(task: Task) -> AnySamples:
    return task.data.test if len(task.data.test) else task.data.train


def _made(traced: Traced, state: Params, formats: Sequence[str], about: str) -> dict[str, bytes]:
    """Return the content of every file of the formats by name; empty if there is no such file."""
    data = dict[str, bytes]()
    if "safetensors" in formats:
        small = compact(state)
        data[TENSORS] = _saved(state, about)
        data[SPARSE_TENSORS] = _saved(small, about) if small.keys() != state.keys() else b""
    if "torch-export" in formats:
        data[PROGRAM] = programs.save(traced.program) if traced.program else b""
        sparse = programs.thinned(traced) if traced.program else None
        data[SPARSE_PROGRAM] = _smaller(programs.save(sparse), data[PROGRAM]) if sparse else b""
    if "onnx" in formats:
        model = programs.to_onnx(traced, about)
        data[ONNX] = model.SerializeToString()
        data[SPARSE_ONNX] = _smaller(model.SerializeToString(), data[ONNX]) if programs.thin_onnx(model) else b""
    return data


def _smaller(sparse: bytes, dense: bytes) -> bytes:
    """Return the sparse file if it is smaller: how much the operators of a tensor take is an estimate."""
    return sparse if len(sparse) < len(dense) else b""


@torch.no_grad()
def _difference(task: Task, module: nn.Module, loaded: Mapping[str, Network], batch: str) -> float | None:
    """Return the largest difference between the scores of programs and network; refuse a program that is wrong."""
    x, _ = _samples(task).example(1 if batch == ONE else COMPARED)
    wanted, worst = nests.forward(module, x), 0.0
    for name, program in loaded.items():
        found = nests.forward(program, x)
        same = (found == wanted) | (found.isnan() & wanted.isnan())
        difference = float((found - wanted).abs().masked_fill(same, 0.0).max())
        if not difference <= TOLERANCE * max(1.0, float(wanted.nan_to_num().abs().max())):
            raise RunError(f"{name} computes other scores than the network: they differ by up to {difference:.2g}")
        worst = max(worst, difference)
    return worst if loaded else None


def zeros(state: Mapping[str, Tensor]) -> float:
    """Return the fraction of a model's floating-point entries that are zero."""
    floats = [tensor for tensor in state.values() if tensor.is_floating_point()]
    return sum(int((tensor == 0).sum()) for tensor in floats) / sum(tensor.numel() for tensor in floats)


def _saved(tensors: Mapping[str, Tensor], about: str) -> bytes:
    """Serialize tensors to safetensors, with a single metadata entry: the order of several is not deterministic."""
    return files.to_tensors(tensors, {ABOUT: about})


def _write(out: Path, data: Mapping[str, bytes]) -> dict[Path, int]:
    """Write the non-empty files, and delete the others, which are of an earlier export in these formats."""
    with files.on_failure(f"the model is not in {out}, or not whole"):
        out.mkdir(parents=True, exist_ok=True)
        listed = {name: digest for name, digest in (_listed(out) or {}).items() if name not in data}
        listed |= {name: files.digest_of(content) for name, content in data.items() if content}
        for name, content in data.items():
            (out / name).unlink(missing_ok=True)
            if content:
                files.write(out / name, content)
        files.write(out / LIST, files.to_json(listed))
    return {out / name: len(content) for name, content in data.items() if content}


def _scores(run: Simulation, network: Network, client: int | None, size: int) -> tuple[float | None, float | None]:
    """Return the primary metric on all test samples and on the client's, in batches of ``size``."""
    judge, test = run.objective, run.task.data.test
    if not len(test):
        return None, None
    answers = _answers(network, test, size)
    score = judge.judged([answers], test.y).values()[0]
    if client is None or not len(mine := run.task.split.test(client)):
        return score, None
    picked = test.take(mine)
    answers = _answers(network, picked, size) if run.evaluate.alone else answers[torch.from_numpy(mine)]
    return score, judge.judged([answers], picked.y, run.labels(client)).values()[0]


@torch.no_grad()
def _answers(network: Network, samples: AnySamples, size: int) -> Tensor:
    """Return the network's outputs for samples."""
    return torch.cat([nests.forward(network, x) for x in samples.inputs_in_order(size)])
