"""Count what a reader would have to read: the functions and modules of ours that one plain FedAvg round passes through.

    python bench/one_round.py [--list]

Three clients, one at a time, in one process: training, messages both ways and aggregation, without evaluation and run
folder.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import gossamer
from gossamer import Options, Task, fedavg
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation

ROOT = Path(gossamer.__file__).parent


def passed_through() -> dict[str, Counter[str]]:
    """Return the calls of each function of ours in one round, by module."""
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    task = Task.of(lambda: torch.nn.Linear(4, 3), (x, y), (x, y), clients=3)
    run = Simulation(fedavg(epochs=1, batch=5), task, Options(rounds=3))
    run.train(0, Ledger())
    seen = Counter[CodeType]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(ROOT):
            seen[frame.f_code] += 1

    sys.setprofile(note)
    run.train(1, Ledger())
    sys.setprofile(None)
    found: dict[str, Counter[str]] = {}
    for code, calls in seen.items():
        module = str(Path(code.co_filename).relative_to(ROOT))
        found.setdefault(module, Counter())[code.co_qualname] += calls
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each function with its number of calls")
    given = parser.parse_args()
    found = passed_through()
    for module, functions in sorted(found.items()) if given.list else ():
        print(module, ", ".join(f"{name} {calls}" for name, calls in functions.items()))
    calls = sum(sum(functions.values()) for functions in found.values())
    print(f"{sum(map(len, found.values()))} functions in {len(found)} modules, {calls:,} calls")


if __name__ == "__main__":
    main()
