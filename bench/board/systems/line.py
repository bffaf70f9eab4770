"""The protocol of a system: it loads one workload after the other, and trains rounds on request.

    system: {"version": "torch 2.13.0", "device": "cpu"}
    bench:  {"workload": "femnist", ...}      system: {"ready": 0.4}     or {"skip": "why it cannot take part"}
    bench:  "round"                           system: {"seconds": 1.3, "memory": 0, "note": ""}
    bench:  "end"                             the system releases the workload and waits for the next
    bench:  (closes)                          the system ends

A message is one line of text. A system measures its own time, until the GPU has finished. ``ready`` is the time for
its construction, without that of the samples. All other output goes to standard error.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from board.samples import Held, held
from board.workloads import WORKLOADS, Workload, reduced


class Setting(NamedTuple):
    """What a system is asked to load, with the options of the system."""

    work: Workload
    device: str
    data: str
    options: dict[str, Any]

    @classmethod
    def read(cls, text: str) -> "Setting":
        """Read a setting from a message."""
        given = json.loads(text)
        work = reduced(WORKLOADS[given["workload"]], given["count"], given["small"])
        return cls(work, given["device"], given["data"], given["options"])

    def samples(self) -> Held:
        """Return the samples of all clients, in the memory of the CPU."""
        return held(self.work, self.data)


class Line:
    """The connection to the benchmark."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._begin = 0.0

    def settings(self) -> Iterator[Setting]:
        """Yield the workloads to load."""
        while line := sys.stdin.readline():
            if line.startswith("{"):
                yield Setting.read(line)

    def building(self) -> None:
        """Note that the samples are there, and construction begins."""
        release()
        self._begin = time.perf_counter()

    def ready(self) -> None:
        """Report the time of the construction."""
        synchronize()
        self.send(ready=time.perf_counter() - self._begin)

    def go(self) -> bool:
        """Wait for the next request; return False if the workload ends."""
        asked = sys.stdin.readline().strip() == "round"
        self._begin = time.perf_counter()
        return asked

    def done(self, note: str = "") -> None:
        """Report the end of a round."""
        synchronize()
        self.send(seconds=time.perf_counter() - self._begin, memory=memory(), note=note)

    def send(self, **words: Any) -> None:
        """Send a message."""
        print(json.dumps(words), file=self._out, flush=True)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory() -> int:
    """Return the peak of the GPU memory that PyTorch has reserved for this process, in bytes."""
    return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0


def release() -> None:
    """Return the memory of the workload before, and begin to measure its peak again."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def serve(version: str, run: Callable[[Setting, Line], None]) -> None:
    """Handle all workloads; ``run`` constructs one, calls ``ready``, and trains rounds until ``go`` returns False."""
    line = Line()
    synchronize()  # starts CUDA
    importlib.import_module("torch._dynamo")  # torch imports it at the first step, which takes seconds
    line.send(version=f"{version}torch {torch.__version__}", device=device())
    for setting in line.settings():
        try:
            run(setting, line)
        except Exception as error:
            traceback.print_exc()
            line.send(skip=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
