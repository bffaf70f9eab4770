"""The memory of one client on a GPU, and CUDA graphs of its steps.

A graph has fixed shapes and addresses, so a client's tensors and sample indices are copied to a slot for the round. A
slot serves one client after the other, if their tensors have the same shapes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.devices import to_device
from gossamer.core.types import Params, State
from gossamer.engines.client import BatchSchedule, Client
from gossamer.engines.executors.stacked import Pair
from gossamer.engines.executors.steps import Step, in_place, tensors

T = TypeVar("T")

WORTH_CAPTURING = 4
"""Number of steps with a batch size after which a graph is captured: capturing takes as long as four steps."""
MAX_GRAPHS = 64
"""Maximum number of graphs per slot: clients of many sizes have many sizes of the last batch."""
LENGTHS = (8, 1)
"""Numbers of steps that one graph may hold, in decreasing order. A launch of several steps costs the host less."""
PER_SAMPLE = {"samples", "draws", "real"}

Stepping = Callable[[State, int], None]
"""Run one step of a slot's client on its next batch of the given size."""


def stepping(client: Client, by: Step) -> Stepping:
    """Return a step on tensors with fixed addresses, starting from sample indices."""
    step = in_place(by, client.objective)

    def take(slot: State, size: int) -> None:
        feed = slot["feeds"][str(size)] if "feeds" in slot else _next_feed(slot, size)
        slot["loss"].add_(step(slot["start"], slot["carry"], slot["context"], feed, slot["hyperparams"]))
        slot["at"].add_(size)

    return take


def _next_feed(slot: State, size: int) -> State:
    """Return the next ``size`` sample indices of a slot's client, with their draws."""
    rows = slot["at"] + torch.arange(size, device=slot["at"].device)
    marks = {name: slot[name][rows] for name in PER_SAMPLE - {"samples"} if name in slot}
    return {"rows": slot["samples"][rows], **marks}


class Screen(NamedTuple):
    """The captured gradient after training: the memory of its batch, its graph, and the memory of the gradient."""

    feed: State
    graph: "torch.cuda.CUDAGraph"
    gradient: Params


class ClientSlot:
    """Fixed memory for one client's tensors, with a stream and the graphs of its steps.

    Args:
        client: the client side of the run
        pair: a client with the tensors of this slot
        batches: the batch schedule of that client
        room: the number of sample indices to have memory for
        plain: a step of such clients
        compiled: the step on full batches
    """

    def __init__(
        self, client: Client, pair: Pair, batches: BatchSchedule, room: int, plain: Stepping, compiled: Stepping
    ) -> None:
        self.client, self.plain, self.compiled = client, plain, compiled
        self.layout = client.exchange.solver_on(pair[1].layout).layout
        self.tensors = tree.clone(brought(client, pair, batches))
        for name in PER_SAMPLE & self.tensors.keys():
            given = self.tensors[name]
            self.tensors[name] = given.new_zeros(max(room, len(given)), *given.shape[1:])
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}  # by batch size and number of steps
        self.screens: dict[int, Screen] = {}
        self.seen: Counter[int] = Counter()
        self.screened: Counter[int] = Counter()

    def holds(self, batches: BatchSchedule) -> bool:
        """Return whether the sample indices of a schedule fit; batches that are read have no indices here."""
        return "samples" not in self.tensors or sum(batches.sizes) <= len(self.tensors["samples"])

    def load(self, new: State) -> None:
        """Copy a client's tensors into the slot."""
        for name, value in new.items():
            if name == "feeds":
                continue  # filled step by step
            if name in PER_SAMPLE:
                self.tensors[name][: len(value)] = value
            elif isinstance(value, Tensor):
                self.tensors[name].copy_(value)
            else:
                tree.put(self.tensors[name], ..., value)

    def capture(self, batches: BatchSchedule, parts: "Sequence[Part]", full: int | None) -> None:
        """Capture the graphs for the parts of a batch schedule; only the step on full batches is compiled.

        Another batch size gets a graph when it has occurred often enough. Until then its steps run in eager mode.
        """
        for size, steps in Counter(batches.sizes).items():
            before = self.seen[size] + (steps if size == full else 0)
            if before >= WORTH_CAPTURING and len(self.graphs) < MAX_GRAPHS:
                step = self.compiled if size == full else self.plain
                for length in {part.steps for part in parts if part.size == size}:
                    self._capture_steps(batches, size, length, step, benchmark=size == full)
            self.seen[size] += steps

    def _capture_steps(self, batches: BatchSchedule, size: int, length: int, step: Stepping, benchmark: bool) -> None:
        """Capture a graph of some steps, unless it exists."""
        if (size, length) in self.graphs:
            return
        self.place(batches, batches.sizes.index(size))
        self.client.objective.train_mode(alone=size == 1)

        def work() -> None:
            for _ in range(length):
                step(self.tensors, size)

        self.graphs[size, length], _ = self._captured(work, benchmark)

    def parts(self, batches: BatchSchedule) -> "list[Part]":
        """Cut a schedule into parts of one launch; batches that are read are placed before each step."""
        return cut(batches.sizes, (1,) if "feeds" in self.tensors else LENGTHS)

    def capture_screen(self, feed: State, full: int | None) -> None:
        """Capture the gradient after training for the size of a batch, under the same conditions as a step."""
        size = len(feed["rows"])
        if size not in self.screens and (size == full or self.screened[size]):
            fixed = tree.clone(feed)
            graph, gradient = self._captured(partial(self._gradient, fixed), benchmark=size == full)
            self.screens[size] = Screen(fixed, graph, gradient)
        self.screened[size] += 1

    def _gradient(self, feed: State) -> Params:
        """Return the gradient at the slot's trained tensors."""
        start, params = self.tensors["start"], self.tensors["carry"]["params"]
        context, weights = self.tensors["context"], start + (params - start)  # rounded as sent
        with torch.enable_grad():
            held = {**context["constant"], **self.layout.unflatten(weights)}
            return self.client.screen(held, feed, context.get("labels"))

    def screen(self, feed: State) -> Params:
        """Compute the gradient after training, on the slot's stream; the result is valid until the next step."""
        known = self.screens.get(len(feed["rows"]))
        with torch.cuda.stream(self.stream):
            if known is None:
                return self._gradient(feed)
            tree.put(known.feed, ..., feed)
            known.graph.replay()
            return known.gradient

    def place(self, batches: BatchSchedule, number: int) -> None:
        """Copy a batch that was read into the memory for its size; a new size gets memory of its own."""
        if "feeds" not in self.tensors:
            return
        feed, size = batches.feed(number), str(batches.sizes[number])
        if size in self.tensors["feeds"]:
            tree.put(self.tensors["feeds"][size], ..., feed)
        else:
            self.tensors["feeds"][size] = tree.clone(feed)

    def _captured(self, work: Callable[[], T], benchmark: bool) -> "tuple[torch.cuda.CUDAGraph, T]":
        """Capture some work, and return its graph and result, whose memory each replay fills.

        Two warm-up runs compile programs and choose algorithms before a client is loaded.
        """
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with benchmarking(benchmark):
            with torch.cuda.stream(self.stream):
                for _ in range(2):
                    self.tensors["at"].zero_()
                    work()
                self.tensors["at"].zero_()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                made = work()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph, made

    def run(self, batches: BatchSchedule, part: "Part") -> None:
        """Run the steps of a part, the next of its client."""
        with torch.cuda.stream(self.stream):
            self.place(batches, part.first)
            if graph := self.graphs.get((part.size, part.steps)):
                graph.replay()
                return
            self.client.objective.train_mode(alone=part.size == 1)
            for _ in range(part.steps):
                self.plain(self.tensors, part.size)


@contextmanager
def benchmarking(wanted: bool) -> Iterator[None]:
    """Let cuDNN measure its algorithms, and leave its other settings as they are, such as those of TF32."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def brought(client: Client, pair: Pair, batches: BatchSchedule) -> State:
    """Return all tensors that a client's steps need."""
    (_, job), solver, objective = pair, client.exchange.solver, client.objective
    start, carry, context = client.begin(job, len(batches))
    device, dtype = objective.device, objective.layout.dtype
    found: State = {
        "start": start,
        "carry": carry,
        "context": context,
        "hyperparams": tensors(solver.hyperparams(job.clock), objective),
        "at": torch.zeros((), dtype=torch.int64, device=device),
        "loss": torch.zeros((), dtype=dtype, device=device),
    }
    if objective.samples.lazy:
        return found | {"feeds": {}}
    marks = {name: torch.cat(each) for name, each in (("draws", batches.draws), ("real", batches.real)) if each}
    return found | {"samples": to_device(batches.numbers, device)} | marks


class Part(NamedTuple):
    """Consecutive steps of a client on batches of the same size.

    Args:
        first: number of the first step
        size: batch size
        steps: number of steps
    """

    first: int
    size: int
    steps: int

    @property
    def numbers(self) -> range:
        """Numbers of the steps."""
        return range(self.first, self.first + self.steps)


def cut(sizes: Sequence[int], lengths: Sequence[int]) -> list[Part]:
    """Cut a schedule of batch sizes into parts of the given lengths, which decrease to 1.

    >>> tuple((part.size, part.steps) for part in cut([4, 4, 4, 1], (2, 1)))
    ((4, 2), (4, 1), (1, 1))
    """
    parts, first = [], 0
    for size, group in groupby(sizes):
        left = len(list(group))
        while left:
            steps = next(length for length in lengths if length <= left)
            parts.append(Part(first, size, steps))
            first, left = first + steps, left - steps
    return parts
