"""How long something takes, in milliseconds: the median of several times, by events on a GPU."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3


def milliseconds(work: Callable[[], object], device: str, repeats: int = 20) -> float:
    """The median of ``repeats``, after a few that do not count."""
    clock = on_gpu if device == "cuda" else on_cpu
    for _ in range(WARM_UP):
        work()
    return statistics.median(clock(work) for _ in range(repeats))


def on_gpu(work: Callable[[], object]) -> float:
    """Milliseconds between two events around it."""
    event: Any = torch.cuda.Event  # torch leaves its constructor untyped
    before, after = (event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))


def on_cpu(work: Callable[[], object]) -> float:
    """Milliseconds by the clock."""
    before = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - before)
