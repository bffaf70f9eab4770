"""Median time of a piece of work in milliseconds, by CUDA events on a GPU."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3


def milliseconds(work: Callable[[], object], device: str, repeats: int = 20) -> float:
    """Return the median of ``repeats`` measurements after a warm-up."""
    clock = on_gpu if device == "cuda" else on_cpu
    for _ in range(WARM_UP):
        work()
    return statistics.median(clock(work) for _ in range(repeats))


def on_gpu(work: Callable[[], object]) -> float:
    """Return the milliseconds between CUDA events before and after ``work``."""
    event: Any = torch.cuda.Event  # torch leaves its constructor untyped
    before, after = (event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))


def on_cpu(work: Callable[[], object]) -> float:
    """Return the wall-clock milliseconds of ``work``."""
    before = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - before)
