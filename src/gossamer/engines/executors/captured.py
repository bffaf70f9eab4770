"""A chunk's whole step as one compiled program on the GPU, captured as a graph and replayed.

On a GPU a step of a small network is hundreds of kernels that each take less time than starting them does. Stacking
makes them few and large, the compiler fuses them, and a captured graph starts them all at once. A graph has fixed
shapes and places in memory: a chunk is filled up with idle rows, whoever does not step is masked out, and batches are
gathered from the data inside the graph, by numbers that lie on the device for the whole round. Steps on batches of an
uncommon size are taken outside of the graph, client by client.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer import tree
from gossamer.engines.client import Client
from gossamer.engines.executors.compiled import CompiledStacked
from gossamer.engines.executors.stacked import Chunk, Pair, kind, schedule
from gossamer.engines.executors.steps import Step
from gossamer.errors import ConfigError
from gossamer.method import Trained

CHUNK = 32
WORTH_CAPTURING = 4
"""A size of batch that fewer steps of a chunk have gets no graph of its own."""


class Captured(CompiledStacked):
    """Chunks of clients on a GPU, each step one replay of a captured graph."""

    def __init__(self, client: Client, chunk: int = CHUNK) -> None:
        if client.objective.device.type != "cuda":
            raise ConfigError("executor captured needs a GPU: use --device cuda, or another executor")
        super().__init__(client, chunk)
        self.places: dict[Any, Places] = {}

    def chunk(self, bucket: Sequence[Pair]) -> Chunk:
        """The clients of a bucket, in the places that the graphs know."""
        chunk = Chunk(self.client, self.plain, bucket)
        shapes = kind(bucket[0][1])
        if shapes not in self.places or self.places[shapes].rows < len(bucket):
            self.places[shapes] = Places(chunk, max(self.size, len(bucket)), self.step)
        return CapturedChunk(chunk, self.places[shapes])


class Places:
    """Where the tensors of a chunk lie, for good, and the graphs that work on them there."""

    def __init__(self, chunk: Chunk, rows: int, compiled: Step) -> None:
        self.rows, self.compiled, self.plain = rows, compiled, chunk.step
        self.start, self.carry, self.keep = (tree.grown(n, rows) for n in (chunk.start, chunk.carry, chunk.keep))
        self.now = {name: value.clone() for name, value in chunk.now.items()}
        self.losses = torch.zeros(rows, dtype=chunk.losses.dtype, device=chunk.losses.device)
        self.graphs: dict[int, Graph] = {}

    def settle(self, chunk: Chunk) -> None:
        """Bring a chunk's tensors here."""
        for mine, theirs in ((self.start, chunk.start), (self.carry, chunk.carry), (self.keep, chunk.keep)):
            tree.put(mine, slice(0, len(chunk.bucket)), theirs)
        tree.put(self.now, ..., chunk.now)
        self.losses.zero_()

    def graph(self, size: int, client: Client, full: bool) -> "Graph":
        """The graph for batches of one size; capturing takes a few steps, which leave no trace.

        Only the step on full batches is compiled: for the few others a compilation is not worth the wait.
        """
        if size not in self.graphs:
            carry, losses = tree.grown(self.carry, self.rows), self.losses.clone()
            self.graphs[size] = Graph(self, size, client, self.compiled if full else self.plain)
            tree.put(self.carry, ..., carry)
            self.losses.copy_(losses)
        return self.graphs[size]


class Graph:
    """One step of a whole chunk on batches of one size, captured."""

    def __init__(self, places: Places, size: int, client: Client, step: Step) -> None:
        self.places, self.client, self.step = places, client, step
        device, augment = client.objective.device, client.objective.task.data.augment
        self.rows = torch.zeros(places.rows, size, dtype=torch.int64, device=device)
        self.active = torch.zeros(places.rows, dtype=torch.bool, device=device)
        self.draws = None if augment is None else torch.zeros(places.rows * size, augment.draws, device=device)
        self.graph = torch.cuda.CUDAGraph()
        client.objective.train_mode(alone=size == 1)
        self._capture()

    def _capture(self) -> None:
        """Shapes are fixed from here on, so it pays to let the library try out which of its algorithms is fastest."""
        tf32 = torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=tf32):
            self._warm_up_and_capture()

    def _warm_up_and_capture(self) -> None:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # the compiler runs, and memory is found, before anything is captured
                self._take_step()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(self.graph):
            self._take_step()

    def _take_step(self) -> None:
        places = self.places
        x, y = self.client.objective.batch(self.rows.view(-1), self.draws)
        x, y = x.view(*self.rows.shape, *x.shape[1:]), y.view(*self.rows.shape, *y.shape[1:])
        new, losses = self.step(places.start, places.carry, places.keep, x, y, places.now)
        tree.put_where(places.carry, self.active, new)
        places.losses.add_(torch.where(self.active, losses, 0))

    def replay(self, rows: Tensor, active: Tensor, draws: Tensor | None) -> None:
        """One step of the active clients on the samples named."""
        self.rows.copy_(rows)
        self.active.copy_(active)
        if self.draws is not None and draws is not None:
            self.draws.copy_(draws)
        self.graph.replay()


class CapturedChunk(Chunk):
    """A chunk in its places, whose common steps are replays."""

    def __init__(self, chunk: Chunk, places: Places) -> None:
        self.__dict__.update(vars(chunk))
        places.settle(chunk)
        self.places = places
        self.start, self.carry, self.keep, self.now = places.start, places.carry, places.keep, places.now
        self.losses = places.losses

    def train(self) -> list[Trained]:
        """All steps of all clients."""
        steps = schedule([lesson.sizes for lesson in self.lessons])
        many = Counter(size for size, clients in steps if self._together(clients))
        replays = {size: self._plan(size, steps) for size in many if many[size] >= WORTH_CAPTURING}
        for size, clients in steps:
            if size in replays and self._together(clients):
                rows, active, draws = next(replays[size])
                self.places.graph(size, self.client, full=size == max(replays)).replay(rows, active, draws)
            else:
                self.client.objective.train_mode(alone=size == 1)
                for c in clients:
                    x, y = self.batch([c])
                    self.alone(c, x[0], y[0])
            for c in clients:
                self.at[c] += 1
        return self.results()

    def _together(self, clients: Sequence[int]) -> bool:
        """A replay does the work of all rows, so at least half of the clients should have something to do in it."""
        return len(clients) > 1 and 2 * len(clients) >= len(self.bucket)

    def _plan(self, size: int, steps: Sequence[tuple[int, list[int]]]) -> Any:
        """For each replay on batches of one size: sample numbers, who steps, draws; brought to the device at once."""
        at, wanted = [0] * len(self.lessons), [c for s, c in steps if s == size and self._together(c)]
        rows = np.zeros((len(wanted), self.places.rows, size), dtype=np.int64)
        active = np.zeros((len(wanted), self.places.rows), dtype=bool)
        first = np.zeros_like(rows)
        starts = [np.cumsum([0, *lesson.sizes]) for lesson in self.lessons]
        offsets = np.cumsum([0, *(start[-1] for start in starts)])
        number = 0
        for s, clients in steps:
            if s == size and self._together(clients):
                for c in clients:
                    rows[number, c], active[number, c] = self.lessons[c].rows[at[c]], True
                    first[number, c] = offsets[c] + starts[c][at[c]] + np.arange(size)
                number += 1
            for c in clients:
                at[c] += 1
        device = self.losses.device
        draws = [torch.cat(lesson.draws) for lesson in self.lessons if lesson.draws]
        noise = torch.cat(draws)[torch.from_numpy(first).to(device).view(len(wanted), -1)] if draws else [None] * number
        return zip(torch.from_numpy(rows).to(device), torch.from_numpy(active).to(device), noise, strict=True)

    def results(self) -> list[Trained]:
        """What came of each client; the idle rows are left out."""
        self.losses = self.losses[: len(self.bucket)]
        return super().results()
