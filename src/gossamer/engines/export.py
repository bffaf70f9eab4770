"""The model of a run as files that need no Gossamer: tensors for safetensors, and a program for torch.

    model.safetensors          every tensor of the network by name; the metadata say where the model comes from
    model.pt2                  the network as a program: ``torch.export.load("model.pt2").module()`` calls it
    model.sparse.safetensors   where more than half of a tensor is zero, its other values and a bit for each entry

The program is one of ``torch.export``, rather than of TorchScript, which torch calls deprecated at every step. It takes
batches of any size where the network does. It is made from zeros, so that no sample goes with it, and on the CPU,
wherever the run was carried out. Static batch norms that a run evaluates by the batch at hand do so in the program too:
what it says of a sample then depends on the others in its batch. If they are evaluated by training samples
(``statistics`` is ``train``), their mean statistics are part of the model.
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
from gossamer.runs.folder import read_about
from gossamer.runs.report.tables import method as short_name
from gossamer.tasks.data.samples import Samples
from gossamer.tasks.static_norms import OfTraining
from gossamer.tasks.task import Task

TENSORS, PROGRAM, SPARSE = "model.safetensors", "model.pt2", "model.sparse.safetensors"
ABOUT = "gossamer"
"""The entry of the metadata that says, as JSON, where a model comes from."""

ONE = "1 only"

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exported:
    """What was written, and how good it is.

    Args:
        files: the files, with their sizes in bytes
        round: how many rounds the model was trained for
        shared: whether it is the global model, rather than a client's own
        zeros: share of its entries that are zero
        batch: how many samples the program takes at once, in words
        problem: why there is no program; none where there is one
        accuracy: of the program, as it was read back, on all test samples; none where there are no test samples
        own_accuracy: the same on the client's test samples, as the run measures it: of a method with labels="own", the
            program's scores of labels that the client lacks count as 0; none where there is no client, or it has no
            test samples
    """

    files: Mapping[Path, int]
    round: int
    shared: bool
    zeros: float
    batch: str
    problem: str | None
    accuracy: float | None
    own_accuracy: float | None


class ExportedProgram(NamedTuple):
    """A network as a program, what batches it takes, and why there is none if there is none."""

    data: bytes
    batch: str
    problem: str | None = None


def stand(path: str | Path, method: Method, task: Task) -> Simulation:
    """The run in a folder, as it stands at its last checkpoint; ``method`` and ``task`` are those it was started with.

    It is on the CPU, wherever it was carried out, and there to be looked at, not to be gone on with.
    """
    about = read_about(Path(path))
    options = Options(rounds=about["options"]["rounds"], seed=about["options"]["seed"])
    run = Simulation(method, task, options)
    run.about |= {name: about[name] for name in ("options", "request")}
    FederatedRun.restore(run, Path(path)).close()  # not the simulator's, which makes an executor ready too
    if not run.metrics:
        raise RunError(f"{path} has no finished round yet: there is no model to export")
    return run


def export(run: Simulation, out: str | Path, client: int | None = None) -> Exported:
    """Write the global model of a run, or what one client deploys, into the folder ``out``."""
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
        (client is None or 0 <= client < clients, f"there is no client {client}: they are numbered 0 to {clients - 1}"),
        (not out.exists() or out.is_dir(), f"{out} is a file: name a folder"),
        (
            client is not None or run.method.shared or run.method.pooled,
            "this run has no global model, every client has its own: name a client",
        ),
    )


def _deployed(run: Simulation, client: int | None) -> Params:
    """The network's tensors, of the client or of all."""
    if client is None and not run.method.pooled:
        return run.deployed()
    return run.client_params(client or 0)


def _network(run: Simulation, params: Params) -> nn.Module:
    """The network in evaluation, with these tensors in it, and what its static norms are evaluated by."""
    settled = isinstance(run.task.statistics, OfTraining) and run.objective.static
    module = run.objective.settle(params) if settled else run.objective.build(params)
    return module.eval().requires_grad_(False)


def _zeros(task: Task) -> Tensor:
    """Two samples that are nobody's; of a batch of one, torch would take the size for fixed."""
    some = task.data.test.x if len(task.data.test) else task.data.train.x
    return some.new_zeros(2, *some.shape[1:])


def made(module: nn.Module, x: Tensor) -> ExportedProgram:
    """A network as a program for any number of samples; if it has none, for one; if it has none of that, why."""
    problem = ""
    for example, batch in ((x, _sizes(module, x)), (x[:1], ONE)):
        dims = {0: torch.export.Dim("batch")} if len(example) > 1 else {}
        try:
            program = torch.export.export(module, (example,), dynamic_shapes=(dims,), strict=False)
        except Exception as error:  # whatever a network does that torch cannot follow
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            continue
        data = io.BytesIO()
        torch.export.save(program, data)
        return ExportedProgram(data.getvalue(), batch)
    return ExportedProgram(b"", "any", problem)


def _read(data: bytes) -> Network:
    """The network behind a program; torch 2.11 warns of a buffer of its own making."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(io.BytesIO(data)).module()


def _sizes(module: nn.Module, x: Tensor) -> str:
    """What batches a network takes: norms by the batch at hand may refuse one sample, which a program does not."""
    try:
        module(x[:1])
    except ValueError:
        return "2 or more"
    return "any"


def _about(run: Simulation, client: int | None, shared: bool, share: float) -> dict[str, Any]:
    """Where a model comes from, and what it takes."""
    name, model, split = run.task.names
    return {
        "gossamer": __version__,
        "method": short_name({"method": (run.about["request"] or {}).get("method", "custom")}),
        "task": {"data": name, "model": model, "split": split},
        "round": len(run.metrics),
        "client": client,
        "shared": shared,
        "zeros": share,
    }


def zeros(state: Mapping[str, Tensor]) -> float:
    """The share of a model's floating-point entries that are zero."""
    floats = [tensor for tensor in state.values() if tensor.is_floating_point()]
    return sum(int((tensor == 0).sum()) for tensor in floats) / sum(tensor.numel() for tensor in floats)


def compact(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, but those with more zeros than others as ``.values``, ``.bitmap`` (low bits first) and ``.shape``.

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
    """Tensors as a safetensors file; one entry of metadata, as the order of several would differ from time to time."""
    return files.to_tensors(tensors, {ABOUT: json.dumps(about)})


def _write(out: Path, data: Mapping[str, bytes]) -> dict[Path, int]:
    """Write the files that there are; those of an earlier export go."""
    with files.told(f"the model is not in {out}, or not whole"):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in data.items():
            (out / name).unlink(missing_ok=True)
            if content:
                files.write(out / name, content)
    return {out / name: len(content) for name, content in data.items() if content}


def _scores(run: Simulation, network: Network, client: int | None, size: int) -> tuple[float | None, float | None]:
    """Accuracy on all test samples and on the client's, in batches of so many, put together as in the run."""
    judge, test = run.objective, run.task.data.test
    if not len(test):
        return None, None
    answers = _answers(network, test, size)
    accuracy = _mean(judge.judged([answers], test.y)[1])
    if client is None or not len(mine := run.task.split.test(client)):
        return accuracy, None
    picked = test.take(mine)
    answers = _answers(network, picked, size) if run.evaluate.alone else answers[torch.from_numpy(mine)]
    return accuracy, _mean(judge.judged([answers], picked.y, run.labels(client))[1])


@torch.no_grad()
def _answers(network: Network, samples: Samples, size: int) -> Tensor:
    """What a network gives for samples."""
    return torch.cat([network(x) for x in torch.split(samples.x, size)])


def _mean(right: Tensor) -> float:
    return float(right.double().mean())
