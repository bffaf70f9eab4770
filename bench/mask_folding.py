"""Measure the aggregation of personal masks on the server: from the bytes of the messages to the new model.

    python bench/fedspa_masks.py --folding-only [--device cuda] [--profile FILE]

Ten clients of FedSpa (https://arxiv.org/abs/2201.11380) send masked ResNet18-GN updates in the first round, in which
half of each mask moves. The script shows the milliseconds, and the peak memory in dense models with 1, 2 and 10
messages, which must not grow with their number. A table splits the time. There the device is waited for after each
stage of each message, so the stages take longer than the whole. "Made in this process" are messages as the simulator
hands them over: their checksum is known, and from a GPU they are in pinned memory. The stages:

    check     header and checksum
    copy      the arrays, from the message to the device
    decode    the part that the client holds, and its next mask
    fold      finiteness, expansion and addition to the sum
    finish    the new model, once

On a CPU there is one thread for torch, and processor time counts.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

import gpu_profile
import stopwatch
import torch
from held import peak

from gossamer import METHODS, Task
from gossamer.core import wire
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.jobs import Trained
from gossamer.core.random import key
from gossamer.core.types import Clock, Flops, Params, State
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective

Messages = list[tuple[Clock, bytes]]
Frames = list[tuple[Clock, wire.Frame]]

KEY, ROUNDS = key(0), 1000
STAGES = ("check", "copy", "decode", "fold", "finish")
MOST = 50.0
"""Target for the milliseconds of ten messages on a GPU."""


class Setting(NamedTuple):
    """A client of the paper: samples, their shape, classes, and the number of timed steps on a CPU."""

    samples: int
    shape: tuple[int, ...]
    classes: int
    steps: int


SETTINGS = {
    "lenet5": Setting(1248, (1, 28, 28), 26, 50),
    "vgg11": Setting(500, (3, 32, 32), 10, 4),
    "resnet18-gn": Setting(500, (3, 32, 32), 100, 2),
}


def images(model: str, samples: int, clients: int = 1) -> Task:
    """Return random images."""
    _, shape, classes, _ = SETTINGS[model]
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, *shape, generator=draw), torch.randint(classes, (samples,), generator=draw)
    return Task.of(lambda: build(model, shape, classes), (x, y), (x[:2], y[:2]), clients=clients)


def on_one_thread(work: Callable[[], object]) -> float:
    """Return the processor milliseconds of ``work`` on one thread."""
    before = time.process_time()
    work()
    return 1e3 * (time.process_time() - before)


def clock_of(device: str) -> Callable[[Callable[[], object]], float]:
    return stopwatch.on_gpu if device == "cuda" else on_one_thread


class Made:
    """Training information of a client without training: given weights, and given or random gradients."""

    def __init__(self, weights: Params, draw: torch.Generator, slopes: Params | None = None) -> None:
        self.start, self.weights, self.carry, self.draw, self.slopes = weights, weights, State(), draw, slopes

    @classmethod
    def copied(cls, weights: Params, gradient: Params) -> Self:
        """Copy weights and gradients to the CPU."""
        here, slopes = ({name: t.cpu() for name, t in each.items()} for each in (weights, gradient))
        return cls(here, torch.Generator(), slopes)

    def loss(self) -> float:
        return 1.0

    def accuracy(self, params: Params) -> float:
        return 1.0

    def gradient(self) -> Params:
        drawn = ((name, torch.randn(t.shape, generator=self.draw).to(t)) for name, t in self.weights.items())
        return self.slopes or dict(drawn)

    def start_gradient(self) -> Params:
        return self.gradient()


class Desk:
    """A server with the messages of a round, which it makes itself unless they are given."""

    def __init__(self, model: str, count: int, device: str, messages: Messages | None = None) -> None:
        objective = Objective(images(model, count, count), device, KEY)
        method = METHODS["fedspa"](own_init=True).bind(objective)
        self.exchange, self.state = method.training, method.init(objective.initial(), KEY)
        self.dense = 4 * objective.layout.size
        draw = torch.Generator().manual_seed(1)
        self.made: Frames = [] if messages else [self._message(Clock(0, ROUNDS, c), draw) for c in range(count)]
        self.messages = messages or [(clock, bytes(data)) for clock, data in self.made]

    def _message(self, clock: Clock, draw: torch.Generator) -> tuple[Clock, wire.Frame]:
        down = self.exchange.make_download(self.state, clock, KEY, GLOBAL, None, None)
        job = self.exchange.read_download(down.data, {}, clock, KEY)
        made = Made(job.start, draw)
        trained = Trained(job.part.take(made.gradient()), {}, 0.0, Flops(0, 0), 500)
        sent, _ = self.exchange.make_upload(job, trained, made)
        return clock, sent.data

    def fold(self, messages: Messages | Frames) -> Params:
        """Aggregate messages, from their bytes to the new model, and return it."""
        server = self.exchange.server
        acc = server.begin(self.state, {clock.client: GLOBAL for clock, _ in messages})
        for clock, data in messages:
            acc = server.fold(acc, self._read(clock, data))
        new: Params = server.finish(self.state, acc, Clock(0, ROUNDS, -1))["params"]
        return new

    def stages(self, clock: Callable[[Callable[[], object]], float]) -> dict[str, float]:
        """Return the milliseconds of each stage, over all messages."""
        server, device = self.exchange.server, next(iter(self.state["params"].values())).device
        acc = server.begin(self.state, {each.client: GLOBAL for each, _ in self.messages})
        spent = dict.fromkeys(STAGES, 0.0)
        for at, data in self.messages:
            arrivals, frame, counts = list[Arrival](), wire.Frame.of(data), wire.read_head(wire.Frame.of(data))[1]
            spent["check"] += (check := clock(lambda: wire.read_head(wire.Frame.of(data))))  # noqa: B023
            spent["copy"] += (copy := clock(lambda: wire.read_piece(frame.single, counts.single, device)))  # noqa: B023
            read = clock(lambda: arrivals.append(self._read(at, data)))  # noqa: B023
            spent["decode"] += read - check - copy
            spent["fold"] += clock(lambda: server.fold(acc, arrivals[0]))  # noqa: B023
        spent["finish"] = clock(lambda: server.finish(self.state, acc, Clock(0, ROUNDS, -1)))
        return spent

    def _read(self, clock: Clock, data: bytes | wire.Frame) -> Arrival:
        return self.exchange.read_upload(data, self.state, clock, KEY, GLOBAL, None)[0]


def folding(
    device: str, repeats: int, model: str = "resnet18-gn", count: int = 10, profile: Path | None = None
) -> None:
    desk = Desk(model, count, device)
    clock = clock_of(device)
    desk.fold(desk.messages[:1])
    taken = statistics.median(clock(lambda: desk.fold(desk.messages)) for _ in range(repeats))
    here = statistics.median(clock(lambda: desk.fold(desk.made)) for _ in range(repeats))
    peaks = {few: peak(lambda: desk.fold(desk.messages[:few]), device) for few in (1, 2, count)}  # noqa: B023
    size = statistics.mean(len(data) for _, data in desk.messages)
    print(f"\ndense `{model}`: {desk.dense / 2**20:.1f} MiB; message: {size / 2**20:.1f} MiB")
    verdict = "" if device == "cpu" else ", target met" if taken <= MOST else f", target of {MOST:g} ms MISSED"
    print(f"folding {count} messages: {taken:,.1f} ms, {taken / count:,.1f} ms each{verdict}")
    print(f"folding {count} messages that were made in this process: {here:,.1f} ms")
    turns = [desk.stages(clock) for _ in range(repeats)]
    stages = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    print("stages: " + ", ".join(f"{name} {spent:,.1f} ms" for name, spent in stages.items()))
    for few, most in peaks.items():
        print(f"peak memory, {few} messages: {most / 2**20:.1f} MiB, {most / desk.dense:.2f} dense models")
    met = peaks[count] <= 1.01 * peaks[2]
    print("memory does not grow with messages: target met" if met else "memory GROWS with messages: target MISSED")
    alone, found = (each.fold(desk.messages) for each in (Desk(model, count, "cpu", desk.messages), desk))
    same = all(torch.equal(found[name].cpu(), tensor) for name, tensor in alone.items())
    print(f"model as on the CPU: {'SAME' if same else 'DIFFERENT'}")
    if profile is not None:
        phases = {name: spent / 1e3 for name, spent in stages.items()}
        spans = gpu_profile.spans(lambda: desk.fold(desk.messages), device)
        title = f"folding {count} messages of {model}"
        profile.write_text(gpu_profile.report(title, taken / 1e3, phases, *spans) + "\n")


def main() -> None:
    """Say how to use it."""
    print(__doc__)


if __name__ == "__main__":
    main()
