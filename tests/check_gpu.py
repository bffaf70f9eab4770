"""Every method on a GPU, in every executor that it has there, against the CPU: ``make gpu-test``.

    python tests/check_gpu.py [--quick]

Models are of float64, so that only rounding differs. A method fails if a client fails, or if its model after two rounds
is farther from the CPU's than its bound: 1e-9, or more where a codec rounds (a sign or a quantile that turns over moves
entries by a whole step). Needs torch, NumPy and safetensors alone. Without ``--quick`` steps are compiled as well, and
that takes minutes.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from gossamer import Method, Options
from gossamer.core import tree
from gossamer.core.types import State
from gossamer.engines.simulate import Simulation
from gossamer.methods import METHODS
from gossamer.parts.codecs import Feedback, OnWeights, TopK
from gossamer.parts.samplers import PowerOfChoice
from gossamer.testing import tiny_task

EXECUTORS = ("one-by-one", "stacked", "captured-plain")
COMPILED = ("compiled", "captured")
ROUGH = {
    "fedmrn",
    "fedmrns",
    "fedpm",
    "signsgd",
    "terngrad",
    "onebit-cs",
    "fedsparsify",
    "fedspa",
    "sub-fedavg",
    "topk",
}
"""Methods with a step function in them: how far two runs may be apart is up to it."""

VARIANTS: dict[str, Method] = {
    "error feedback": METHODS["fedavg"](steps=3).with_parts(codec=OnWeights(Feedback(TopK(0.2)))),
    "power-of-choice": METHODS["fedavg"](steps=3).with_parts(sampler=PowerOfChoice(4)),
}


def final(method: Method, device: str, executor: str) -> tuple[State, list[str]]:
    """The server's state after two rounds, on the CPU, and why clients failed."""
    options = Options(rounds=2, per_round=3, device=device, executor=executor)
    run = Simulation(method, tiny_task(5, torch.float64), options)
    result = run.run(None, lambda record: None)
    return tree.move(run.server, "cpu"), [f["reason"] for record in result.metrics for f in record["failures"]]


def apart(one: State, other: State) -> float:
    """The largest difference of two models."""
    a, b = tree.flatten(one["params"]), tree.flatten(other["params"])
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def main() -> int:
    """Print a row for each method. The exit status is 0 if all pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=None)
    asked = parser.parse_args()
    cases = {**{name: recipe() for name, recipe in METHODS.items() if not recipe().pooled}, **VARIANTS}
    wrong = 0
    for name, method in cases.items():
        if asked.only and name not in asked.only:
            continue
        wanted, _ = final(method, "cpu", "one-by-one")
        for executor in (*EXECUTORS, *(() if asked.quick else COMPILED)):
            begin = time.perf_counter()
            try:
                found, reasons = final(method, "cuda", executor)
                far = apart(found, wanted)
                well = not reasons and (far < 1e-9 or (name in ROUGH and far < 1))
                result = f"{far:.1e}" + (f" failures: {reasons[0]}" if reasons else "")
            except Exception as error:  # shown in its row, and counted
                well, result = False, f"{type(error).__name__}: {str(error)[:200]}"
            wrong += not well
            print(
                f"{'ok  ' if well else 'BAD '} {name:18} {executor:15} {result} ({time.perf_counter() - begin:.1f} s)",
                flush=True,
            )
    print(f"{wrong} wrong, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())
