"""Measure the size of every exported file and the time of a call, by the density of the weights.

    python bench/export.py [--networks vgg11 lenet5] [--densities 1.0 0.6 0.5 0.2 0.1] [--repeats 20]

Random weights, for images of CIFAR-10's shape. A random fraction of each weight matrix or kernel is kept; biases and
norms are dense. Calls have one sample and one thread, and take turns; times are medians. A dash stands for a file that
would not be smaller in sparse form.
"""

import argparse
import statistics
from collections.abc import Callable

import stopwatch
import torch
from torch import Tensor, nn

from gossamer.core.files import to_tensors
from gossamer.core.sparse import compact
from gossamer.engines.executors import threads
from gossamer.engines.export import programs
from gossamer.runs.report import text
from gossamer.tasks.nets import build

SIZES = ("safetensors", "sparse", "pt2", "sparse pt2", "onnx", "sparse onnx")
CALLS = ("network", "pt2", "sparse pt2", "onnx", "sparse onnx")
NONE = "-"


def network(name: str, side: int, density: float) -> nn.Module:
    torch.manual_seed(0)
    module = build(name, (3, side, side), 10).eval().requires_grad_(False)
    for weight in module.parameters():
        if weight.dim() > 1:
            weight.mul_(torch.rand_like(weight) < density)
    return module


def written(module: nn.Module, side: int) -> dict[str, bytes]:
    """Return the content of every file; empty if it is not written."""
    state = module.state_dict()
    small = compact(state)
    traced = programs.trace(module, torch.zeros(2, 3, side, side))
    assert traced.program is not None, traced.problem
    thinned = programs.thinned(traced)
    model = programs.to_onnx(traced, "{}")
    files = {
        "safetensors": to_tensors(state),
        "sparse": to_tensors(small) if len(small) > len(state) else b"",
        "pt2": programs.save(traced.program),
        "sparse pt2": programs.save(thinned) if thinned else b"",
        "onnx": model.SerializeToString(),
    }
    return {**files, "sparse onnx": model.SerializeToString() if programs.thin_onnx(model) else b""}


def calls(module: nn.Module, files: dict[str, bytes]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the network and every program that was written."""
    load: dict[str, Callable[[bytes], Callable[[Tensor], Tensor]]] = {
        "pt2": programs.load,
        "sparse pt2": programs.load,
        "onnx": programs.load_onnx,
        "sparse onnx": programs.load_onnx,
    }
    return {"network": module, **{name: read(files[name]) for name, read in load.items() if files[name]}}


@torch.no_grad()
def times(field: dict[str, Callable[[Tensor], Tensor]], x: Tensor, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of a call, and check that all compute the same."""
    wanted = field["network"](x)
    for name, call in field.items():
        assert torch.allclose(call(x), wanted, rtol=1e-3, atol=1e-5), name
    turns = [{name: stopwatch.on_cpu(lambda: call(x)) for name, call in field.items()} for _ in range(repeats)]  # noqa: B023
    return {name: statistics.median(turn[name] for turn in turns) for name in field}


def row(name: str, side: int, density: float, repeats: int) -> str:
    module = network(name, side, density)
    files = written(module, side)
    taken = times(calls(module, files), torch.randn(1, 3, side, side), repeats)
    sizes = [text.size(len(files[kind])) if files[kind] else NONE for kind in SIZES]
    clocks = [f"{taken[kind]:.1f} ms" if kind in taken else NONE for kind in CALLS]
    return f"| `{name}` | {density} | " + " | ".join(sizes + clocks) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure exported files and the time of a call.")
    parser.add_argument("--networks", nargs="+", default=["vgg11", "lenet5"])
    parser.add_argument("--densities", nargs="+", type=float, default=[1.0, 0.6, 0.5, 0.2, 0.1])
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    heads = ["network", "density", *SIZES, *(f"call {kind}" for kind in CALLS)]
    print(f"| {' | '.join(heads)} |\n|" + "---|" + " ---: |" * (len(heads) - 1))
    with threads(1):
        for name in given.networks:
            for density in given.densities:
                print(row(name, given.side, density, given.repeats), flush=True)


if __name__ == "__main__":
    main()
