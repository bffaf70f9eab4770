"""Records cases: values in float64, digests of messages, metrics of rounds; and reads what was recorded.

Cases are played in a process of their own (``fresh``), where most CPUs round alike. In ``recorded/`` there are two
files per family of cases: ``FAMILY.npz`` has all values as one vector, and ``FAMILY.json.gz`` has their names and
shapes, the digests and the metrics.
"""

import gzip
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replay import tap
from replay.cases import CASES, Case
from replay.tasks import task

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
ABOUT = RECORDED / "about.json"
DIFFERENCES = HERE / "differences.json"

ANY_CPU = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""Variables that torch and MKL read as they are loaded; with them most CPUs round alike."""

OPTIONS: dict[str, Any] = {"rounds": 3, "per_round": 4, "seed": 3}

UNSTEADY = ("seconds", "memory_bytes", "by_client")
"""Entries of a record that time and memory decide, or that repeat others in fewer digits."""

Values = npt.NDArray[np.float64]


class Played(NamedTuple):
    """What a case gives.

    Args:
        values: float64 values of server, clients and models by name
        messages: by ``ROUND.EXCHANGE.CLIENT.WAY``, the length of a message, the digest of all of its bytes and the
            digest of its decoded arrays
        metrics: the numbers in the record of each round, by name
    """

    values: dict[str, Values]
    messages: dict[str, tuple[int, str, str]]
    metrics: list[dict[str, float]]


Recording = dict[str, Played]
"""What cases give, by name."""


class Fresh(NamedTuple):
    """What cases give now.

    Args:
        rounding: how this machine rounds
        played: what cases give
        failed: the tracebacks of cases that raised
    """

    rounding: str
    played: Recording
    failed: dict[str, str]


def play(case: Case) -> Played:
    """Play a case."""
    made = task(case.net, case.split, case.clients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounds, memory = tap.play(case.method(), made, {**OPTIONS, "channel": case.channel, **case.options})
    kept = {"server": memory.server, "clients": _named(memory.clients), "models": _named(memory.models)}
    leaves = {name: leaf for name, leaf in flat(kept) if isinstance(leaf, Tensor) and not _is_encoded(name, leaf)}
    values = {name: leaf.detach().cpu().double().numpy() for name, leaf in leaves.items()}
    metrics = [{name: value for name, value in flat(_steady(each.record)) if _is_number(value)} for each in rounds]
    return Played(values, _messages(rounds) if case.messages else {}, metrics)


def flat(nest: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings and lists, with names such as ``a/b/0``."""
    if not isinstance(nest, Mapping | list | tuple):
        yield at, nest
        return
    for name, inner in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
        yield from flat(inner, f"{at}/{name}" if at else str(name))


def _is_encoded(name: str, leaf: Tensor) -> bool:
    """Return whether a tensor is bytes that the server keeps for messages, where they are compared."""
    return name.startswith("server/") and leaf.dtype == torch.uint8


def _named(nests: Mapping[int, Any]) -> dict[str, Any]:
    return {str(client): nests[client] for client in sorted(nests)}


def _steady(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in record.items() if name not in UNSTEADY}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _messages(rounds: Sequence[tap.Round]) -> dict[str, tuple[int, str, str]]:
    found: dict[str, tuple[int, str, str]] = {}
    for number, each in enumerate(rounds, 1):
        for sent in each.sent:
            name = f"{number}.{sent.exchange}.{sent.client}.{sent.way}"
            while name in found:  # a client that trains several times in a round, under a schedule
                name += "+"
            found[name] = len(sent.data), digest(sent.data), digest_of_arrays(sent.arrays)
    return found


def digest(data: bytes) -> str:
    """Return the beginning of the SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def digest_of_arrays(arrays: Mapping[str, Tensor]) -> str:
    """Return the digest of arrays: names, types, shapes and bytes."""
    return digest(b"".join(piece for name in sorted(arrays) for piece in _pieces(name, arrays[name])))


def _pieces(name: str, tensor: Tensor) -> tuple[bytes, bytes]:
    held = tensor.detach().cpu().contiguous()
    plain = held.view(torch.int16) if held.dtype == torch.bfloat16 else held  # NumPy has no bfloat16
    return f"{name} {held.dtype} {tuple(held.shape)} ".encode(), plain.numpy().tobytes()


# This machine.


def single_threaded() -> None:
    """Compute on one thread, without libraries whose results depend on the CPU."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    torch.backends.nnpack.set_flags(False)


def rounding() -> str:
    """Return a digest that tells how this machine rounds: functions of the C library, products, a convolution."""
    x = torch.from_numpy(np.random.default_rng(1).random(4096)) * 4 - 2
    square, roots = x.view(64, 64), x.abs()
    found = [x.exp(), roots.log(), roots.sqrt(), x.cos(), x.tanh(), x.sigmoid(), roots.pow(0.3), x.erf(), x.sum()]
    convolved = torch.nn.functional.conv2d(x.view(64, 1, 8, 8), x[:9].view(1, 1, 3, 3))
    found += [square @ square, square.softmax(1), convolved]
    found += [each.float() for each in found] + [roots.float().log(), x.float().exp(), x.float().cos()]
    return digest_of_arrays({str(number): each for number, each in enumerate(found)})


def release() -> str:
    """Return the release of torch, which rounding depends on."""
    return str(torch.__version__).partition("+")[0]


def fresh(names: Sequence[str], more: Mapping[str, str] | None = None) -> "Fresh":
    """Play cases in a process of its own, in which most CPUs round alike. ``more`` are other environment variables."""
    env = {**os.environ, **ANY_CPU, "PYTHONPATH": os.pathsep.join(sys.path), **(more or {})}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "played.pickle"
        subprocess.run([sys.executable, "-m", "replay.recorder", str(file), *names], check=True, env=env)
        found: Fresh = pickle.loads(file.read_bytes())
    return found


# Files.


def write(recording: Recording, how: str) -> None:
    """Write what cases give; equal cases give equal bytes."""
    RECORDED.mkdir(exist_ok=True)
    for family, named in groupby(sorted(recording), key=lambda name: name.partition("/")[0]):
        names = list(named)
        vector = [value.ravel() for name in names for _, value in sorted(recording[name].values.items())]
        np.savez_compressed(RECORDED / f"{family}.npz", values=np.concatenate([*vector, np.empty(0)]))
        text = json.dumps({name: _entry(recording[name]) for name in names}, separators=(",", ":"))
        (RECORDED / f"{family}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    for file in (*RECORDED.glob("*.npz"), *RECORDED.glob("*.json.gz")):
        if file.name.partition(".")[0] not in {name.partition("/")[0] for name in recording}:
            file.unlink()
    ABOUT.write_text(json.dumps({"torch": release(), "rounding": how}, indent=1) + "\n")


def _entry(played: Played) -> dict[str, Any]:
    shapes = {name: list(value.shape) for name, value in sorted(played.values.items())}
    return {"values": shapes, "messages": played.messages, "metrics": played.metrics}


def read() -> Recording:
    """Return what was recorded."""
    found: Recording = {}
    for file in sorted(RECORDED.glob("*.json.gz")):
        with np.load(RECORDED / file.name.replace(".json.gz", ".npz")) as held:
            vector, at = held["values"], 0
        for name, entry in json.loads(gzip.decompress(file.read_bytes())).items():
            values: dict[str, Values] = {}
            for leaf, shape in entry["values"].items():
                size = math.prod(shape)
                values[leaf], at = vector[at : at + size].reshape(shape), at + size
            messages = {message: tuple(about) for message, about in entry["messages"].items()}
            found[name] = Played(values, messages, entry["metrics"])
    return found


def about() -> dict[str, str]:
    """Return the release of torch of the record, and how its machine rounds."""
    found: dict[str, str] = json.loads(ABOUT.read_text()) if ABOUT.exists() else {}
    return found


def differences() -> dict[str, dict[str, str]]:
    """Return the accepted differences by case: what may differ (``only``), and why."""
    found: dict[str, dict[str, str]] = json.loads(DIFFERENCES.read_text())
    return found


def main(file: str, *names: str) -> None:
    """Play cases in this process, and write what they give."""
    single_threaded()
    played, failed = Recording(), dict[str, str]()
    for name in names or CASES:
        try:
            played[name] = play(CASES[name])
        except Exception:
            failed[name] = traceback.format_exc()
    Path(file).write_bytes(pickle.dumps(Fresh(rounding(), played, failed)))


if __name__ == "__main__":
    from replay import recorder  # what is pickled must not be in __main__

    recorder.main(*sys.argv[1:])
