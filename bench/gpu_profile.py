"""Where the time of a round goes: kernels, launches and waits of the host, and the idle share of the device.

    python bench/gpu_rows.py --profile FOLDER     one file for each row

``torch.profiler`` records one round. Kernels of several streams overlap, so their sum may exceed the time of the round.
The device is busy while at least one kernel runs. The profiler slows the host down, so the time of the round is also
given without it. On a CPU the operators of torch take the place of kernels, to test the script.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

TOP = 15
"""Number of kernels in the table."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class Span(NamedTuple):
    """A kernel or a call, in nanoseconds."""

    name: str
    start: int
    end: int

    @property
    def length(self) -> int:
        """Its duration."""
        return self.end - self.start


def spans(work: Callable[[], object], device: str) -> tuple[list[Span], list[Span]]:
    """Run some work, and return its kernels and the calls of the host."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiled:
        work()
        if device == "cuda":
            torch.cuda.synchronize()
    found: Any = profiled.profiler
    kernels: list[Span] = []
    calls: list[Span] = []
    for event in found.kineto_results.events():
        span = Span(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        on_gpu = str(event.device_type()).endswith("CUDA")
        (kernels if on_gpu or (device == "cpu" and span.name.startswith("aten::")) else calls).append(span)
    return kernels, calls


def busy(kernels: Iterable[Span]) -> int:
    """Return the nanoseconds in which at least one kernel runs.

    >>> busy([Span("a", 0, 4), Span("b", 2, 6), Span("c", 9, 10)])
    7
    """
    total, until = 0, -1
    for span in sorted(kernels, key=lambda span: span.start):
        total += max(0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def table(kernels: Sequence[Span]) -> str:
    """Return the kernels with the largest sums of durations."""
    spent, count = Counter[str](), Counter[str]()
    for span in kernels:
        spent[span.name] += span.length
        count[span.name] += 1
    whole = sum(spent.values()) or 1
    rows = [
        f"| {1e-6 * time:.2f} | {100 * time / whole:.1f} % | {count[name]:,} | `{name[:100].replace('|', '/')}` |"
        for name, time in spent.most_common(TOP)
    ]
    return "\n".join(["| ms | of all kernels | calls | kernel |", "| ---: | ---: | ---: | --- |", *rows])


def calls_of(calls: Sequence[Span], names: Sequence[str]) -> str:
    """Return the number and the duration of the host's calls of some kinds."""
    found = [span for span in calls if span.name.startswith(tuple(names))]
    kinds = Counter(span.name for span in found)
    listed = ", ".join(f"{count:,} {name}" for name, count in kinds.most_common(4))
    return f"{1e-6 * sum(span.length for span in found):.1f} ms" + (f" ({listed})" if listed else "")


def report(title: str, seconds: float, phases: dict[str, float], kernels: list[Span], calls: list[Span]) -> str:
    """Return the text on one round; ``seconds`` and ``phases`` are those without the profiler."""
    every = [*kernels, *calls]
    wall = max(span.end for span in every) - min(span.start for span in every)
    working = busy(kernels)
    lines = [
        f"## {title}\n",
        f"- a round without the profiler: {1e3 * seconds:.1f} ms; by phase: "
        + ", ".join(f"{name} {1e3 * spent:.1f}" for name, spent in phases.items()),
        f"- with the profiler: {1e-6 * wall:.1f} ms",
        f"- kernels: {1e-6 * sum(span.length for span in kernels):.1f} ms in {len(kernels):,} calls, on all streams",
        f"- device busy: {1e-6 * working:.1f} ms; idle: {100 * (1 - working / wall):.1f} % of the profiled round, "
        f"{100 * max(0.0, 1 - 1e-9 * working / seconds):.1f} % of the round without the profiler",
        f"- launches by the host: {calls_of(calls, LAUNCHES)}",
        f"- waits of the host: {calls_of(calls, WAITS)}\n",
        table(kernels),
    ]
    return "\n".join(lines)


def main() -> None:
    """Say how to use it."""
    print(__doc__)


if __name__ == "__main__":
    main()
