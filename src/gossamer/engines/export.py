"""Export the model of a run to files that do not need Gossamer.

    model.safetensors          all tensors of the network by name; the metadata describe the run
    model.pt2                  the network as a program: ``torch.export.load("model.pt2").module()`` loads it
    model.sparse.safetensors   for tensors with more than 50 % zeros: the nonzero values and a bitmap

The program uses ``torch.export``, because TorchScript is deprecated. It accepts any batch size if the network does. It
is traced with zeros on the CPU, so it contains no training sample. With batch statistics, the output of a static batch
norm depends on the other samples of the batch, also in the program. With ``statistics=train``, the mean statistics of
the training samples are part of the exported model.
"""

import io
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer import __version__
from gossamer.core import files
from gossamer.core.bits import bits
from gossamer.core.errors import RunError, require
from gossamer.core.method import Method
from gossamer.core.types import Params
from gossamer.engines.options import Options
from gossamer.engines.run import FederatedRun
from gossamer.engines.simulate import Simulation
from gossamer.engines.warm_start import Init
from gossamer.runs.records import read_about
from gossamer.runs.report.summary import method_name
from gossamer.runs.report.tables import method as short_name
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.samples import Samples
from gossamer.tasks.static_norms import OfTraining
from gossamer.tasks.task import Task

TENSORS, PROGRAM, SPARSE = "model.safetensors", "model.pt2", "model.sparse.safetensors"
ABOUT = "gossamer"
"""Metadata entry with the origin of a model, as JSON."""

ONE = "1 only"

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exported:
    """The exported files and their score: the primary metric of the task.

    Args:
        files: the files, with their sizes in bytes
        round: number of rounds that the model was trained for
        shared: whether it is the global model, not a client's personalized model
        zeros: fraction of zero entries
        batch: the batch sizes that the program accepts, as text
        problem: why there is no program; none if there is one
        score: score of the program on the whole test set, after reading it back; none without test samples
        own_score: score on the client's test samples, as the run measures it; with labels="own" outputs of
            labels that the client lacks count as 0; none without a client or without test samples
    """

    files: Mapping[Path, int]
    round: int
    shared: bool
    zeros: float
    batch: str
    problem: str | None
    score: float | None
    own_score: float | None


class ExportedProgram(NamedTuple):
    """A serialized program, the batch sizes it accepts, and the problem if there is no program."""

    data: bytes
    batch: str
    problem: str | None = None


def stand(path: str | Path, method: Method, task: Task) -> Simulation:
    """Load a run at its last checkpoint, for inspection only; ``method`` and ``task`` must be those of the run.

    The models are on the CPU, whatever the device of the run.
    """
    about = read_about(Path(path))
    options = Options(rounds=about["options"]["rounds"], seed=about["options"]["seed"])
    run = Simulation(method, task, options, init=Init.kept(Path(path)))
    run.about |= {name: about[name] for name in ("options", "request")}
    FederatedRun.restore(run, Path(path)).close()  # Simulation.restore would also create an executor
    if not run.metrics:
        raise RunError(f"{path} has no finished round yet: there is no model to export")
    return run


def export(run: Simulation, out: str | Path, client: int | None = None) -> Exported:
    """Write the global model of a run, or one client's deployed model, into the folder ``out``."""
    _check(run, Path(out), client)
    params = _deployed(run, client)
    shared = run.method.pooled or (run.method.shared and params is run.deployed())
    module = _network(run, params)
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    program, share = made(module, _zeros(run.task)), zeros(state)
    about = _about(run, client, shared, share)
    data = {TENSORS: _saved(state, about), PROGRAM: program.data}
    data[SPARSE] = _saved(compact(state), about) if any(map(_mostly_zero, state.values())) else b""
    sizes = _write(Path(out), data)
    network = _read(program.data) if program.data else module
    scores = _scores(run, network, client, 1 if program.batch == ONE else run.task.statistics.size)
    return Exported(sizes, len(run.metrics), shared, share, program.batch, program.problem, *scores)


def _check(run: Simulation, out: Path, client: int | None) -> None:
    clients = run.task.clients
    require(
        (
            client is None or 0 <= client < clients,
            f"there is no client {client}: clients are numbered 0 to {clients - 1}",
        ),
        (not out.exists() or out.is_dir(), f"{out} is a file: name a folder"),
        (
            client is not None or run.method.shared or run.method.pooled,
            "this run has no global model, only one model per client: name a client",
        ),
    )


def _deployed(run: Simulation, client: int | None) -> Params:
    """Return the network's tensors: a client's, or the global ones."""
    if client is None and not run.method.pooled:
        return run.deployed()
    return run.client_params(client or 0)


def _network(run: Simulation, params: Params) -> nn.Module:
    """Return the network in evaluation mode, with its statistics if they come from training samples."""
    settled = isinstance(run.task.statistics, OfTraining) and run.objective.static
    module = run.objective.settle(params) if settled else run.objective.build(params)
    return module.eval().requires_grad_(False)


def _zeros(task: Task) -> Nest:
    """Return two all-zero samples; with a batch of one, torch.export would fix the batch size."""
    some, _ = (task.data.test if len(task.data.test) else task.data.train).example(1)
    return nests.apply(lambda tensor: tensor.new_zeros(2, *tensor.shape[1:]), some)


def made(module: nn.Module, x: Nest) -> ExportedProgram:
    """Export a network for any batch size, or else for batches of one; if both fail, return the reason."""
    problem = ""
    for example, batch in ((x, _sizes(module, x)), (nests.take(x, slice(1)), ONE)):
        args, kwargs = nests.arguments(example)
        try:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=_dynamic(example, batch), strict=False)
        except Exception as error:  # torch.export raises many types of errors
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            continue
        data = io.BytesIO()
        torch.export.save(program, data)
        return ExportedProgram(data.getvalue(), batch)
    return ExportedProgram(b"", "any", problem)


def _read(data: bytes) -> Network:
    """Load the network of a program, without a warning of torch 2.11 about its own buffer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(io.BytesIO(data)).module()


def _dynamic(example: Nest, batch: str) -> Any:
    """Return which dimensions of the inputs may vary: the first of each tensor, unless the batch size is fixed."""
    dims = {} if batch == ONE else {0: torch.export.Dim("batch")}

    def each(nest: Nest) -> Any:
        if isinstance(nest, Tensor):
            return dims
        if isinstance(nest, tuple):
            return tuple(map(each, nest))
        return {name: each(inner) for name, inner in nest.items()}

    return (dims,) if isinstance(example, Tensor) else each(example)


def _sizes(module: nn.Module, x: Nest) -> str:
    """Return the accepted batch sizes: norms with batch statistics may refuse a batch of one."""
    try:
        nests.forward(module, nests.take(x, slice(1)))
    except ValueError:
        return "2 or more"
    return "any"


def _about(run: Simulation, client: int | None, shared: bool, share: float) -> dict[str, Any]:
    """Return the metadata of a model: its origin."""
    name, model, split = run.task.names
    return {
        "gossamer": __version__,
        "method": short_name({"method": method_name(run.about)}),
        "task": {"data": name, "model": model, "split": split},
        "round": len(run.metrics),
        "client": client,
        "shared": shared,
        "zeros": share,
    }


def zeros(state: Mapping[str, Tensor]) -> float:
    """Return the fraction of a model's floating-point entries that are zero."""
    floats = [tensor for tensor in state.values() if tensor.is_floating_point()]
    return sum(int((tensor == 0).sum()) for tensor in floats) / sum(tensor.numel() for tensor in floats)


def compact(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace tensors that are mostly zero by ``.values``, ``.bitmap`` (low bits first) and ``.shape``.

    >>> {name: tensor.tolist() for name, tensor in compact({"w": torch.tensor([[0.0, 3.0, 0.0]])}).items()}
    {'w.values': [3.0], 'w.bitmap': [2], 'w.shape': [1, 3]}
    """
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not _mostly_zero(tensor):
            found[name] = tensor
            continue
        flat = tensor.reshape(-1)
        shape = torch.tensor(tensor.shape, dtype=torch.int64)
        found |= {f"{name}.values": flat[flat != 0], f"{name}.bitmap": bits(flat != 0), f"{name}.shape": shape}
    return found


def _mostly_zero(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and 2 * int((tensor == 0).sum()) > tensor.numel()


def _saved(tensors: Mapping[str, Tensor], about: dict[str, Any]) -> bytes:
    """Serialize tensors to safetensors, with a single metadata entry: the order of several is not deterministic."""
    return files.to_tensors(tensors, {ABOUT: json.dumps(about)})


def _write(out: Path, data: Mapping[str, bytes]) -> dict[Path, int]:
    """Write the non-empty files, and delete the files of an earlier export."""
    with files.on_failure(f"the model is not in {out}, or not whole"):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in data.items():
            (out / name).unlink(missing_ok=True)
            if content:
                files.write(out / name, content)
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
def _answers(network: Network, samples: Samples, size: int) -> Tensor:
    """Return the network's outputs for samples."""
    return torch.cat([nests.forward(network, x) for x in samples.inputs_in_order(size)])
