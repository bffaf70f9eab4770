"""Many clients at once on a GPU, each with a stream and captured graphs of its own.

On a GPU small operations cost more to start than to do. A captured graph starts a whole step at once (gathering the
batch, forward, backward, update), and the graphs of several clients run side by side. A graph has fixed shapes and
places in memory, so a client's tensors and the numbers of its samples are brought to a place, where they stay for the
round. Clients need not keep step with each other: each follows its own plan of batches.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.jobs import Job, Trained
from gossamer.core.types import State
from gossamer.engines.client import BatchSchedule, Client, ClientTask
from gossamer.engines.executors.compiled import check
from gossamer.engines.executors.program import begin_anew
from gossamer.engines.executors.stacked import ClientGroup, InChunks, Pair, kind
from gossamer.engines.executors.steps import Step, in_place, pure_step, tensors

CHUNK = 16
"""How many clients run at once at most; more of them go no faster."""
SHARE = 0.5
"""How much of the memory that is free the places may take."""
WORTH_CAPTURING = 4
"""A size of batch that fewer steps of a lesson have gets no graph of its own."""
PER_SAMPLE = {"samples", "draws"}


class Captured(InChunks):
    """Chunks of clients on a GPU, each client's step one replay of a captured graph."""

    compiles: ClassVar[bool] = True

    def __init__(self, client: Client, size: int = CHUNK) -> None:
        if client.objective.device.type != "cuda":
            raise ConfigError("executor captured needs a GPU: use --device cuda, or another executor")
        super().__init__(client, size)
        # As a client takes it by itself: GroupNorm's backward pass is one kernel then, and twenty in a pure step.
        self.plain = self.compiled = stepping(client, torch.enable_grad()(client.step))
        if self.compiles:
            begin_anew()
            pure = stepping(client, pure_step(client))
            self.compiled = torch.compile(pure, fullgraph=True, dynamic=False)
        self.full: int | None = None
        self.room = 0
        self.slots: dict[Any, list[ClientSlot]] = {}

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Compile and capture; how much memory one place took tells how many there may be."""
        plan = self.client.exchange.solver.plan(len(client_task.samples), client_task.key)
        self.full, self.room = len(plan[0]), 2 * sum(map(len, plan))
        before, _ = torch.cuda.mem_get_info()
        self._try(client_task, 1)
        free, _ = torch.cuda.mem_get_info()
        self.size = max(1, min(self.size, client_tasks, int(SHARE * free / max(before - free, 1))))
        self._try(client_task, self.size)

    def _try(self, client_task: ClientTask, many: int) -> None:
        for done in self.run([client_task._replace(limit=WORTH_CAPTURING)] * many):
            check(done)

    def bucket(self, job: Job) -> Any:
        """All of a chunk: each has a graph of its own, so that a narrow client and a wide one run side by side."""

    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        """The clients of a bucket, each in a place of its shapes."""
        batches_per_client, taken, places = (
            [BatchSchedule(self.client, client_task, job) for client_task, job in bucket],
            Counter[Any](),
            [],
        )
        for pair, batches in zip(bucket, batches_per_client, strict=True):
            shapes = kind(pair[1])
            places.append(self._place(self.slots.setdefault(shapes, []), taken[shapes], pair, batches))
            taken[shapes] += 1
        return CapturedGroup(self.client, bucket, batches_per_client, places, self.plain)

    def _place(self, alike: "list[ClientSlot]", number: int, pair: Pair, batches: BatchSchedule) -> "ClientSlot":
        """Of the places that are alike the one of a number, with graphs for a lesson; made if there is none."""
        if number == len(alike):
            alike.append(ClientSlot(self.client, pair, batches, self.room))
        elif not alike[number].holds(batches):
            alike[number] = ClientSlot(self.client, pair, batches, 2 * sum(batches.sizes))
        alike[number].capture(batches, self.plain, self.compiled, self.full)
        return alike[number]


class CapturedPlain(Captured):
    """The same with steps as they are: ready at once, for networks that take long to compile, or at many widths."""

    compiles: ClassVar[bool] = False


Stepping = Callable[[State, int], None]
"""Takes one step, on the next so many samples, of the client whose tensors these are."""


def stepping(client: Client, by: Step) -> Stepping:
    """A client's step on tensors that stay where they are, from the numbers of its samples on."""
    step = in_place(by, client.objective)

    def take(place: State, size: int) -> None:
        rows = place["at"] + torch.arange(size, device=place["at"].device)
        draws = place["draws"][rows] if "draws" in place else None
        samples = place["samples"][rows]
        place["loss"].add_(step(place["start"], place["carry"], place["context"], samples, draws, place["hyperparams"]))
        place["at"].add_(size)

    return take


class ClientSlot:
    """Where one client's tensors lie, its stream, and the graphs of its steps there."""

    def __init__(self, client: Client, pair: Pair, batches: BatchSchedule, room: int) -> None:
        self.client = client
        self.tensors = tree.clone(brought(client, pair, batches))
        for name in PER_SAMPLE & self.tensors.keys():
            given = self.tensors[name]
            self.tensors[name] = given.new_zeros(max(room, len(given)), *given.shape[1:])
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.seen: Counter[int] = Counter()

    def holds(self, batches: BatchSchedule) -> bool:
        """Whether there is room for the numbers of so many samples."""
        return sum(batches.sizes) <= len(self.tensors["samples"])

    def settle(self, new: State) -> None:
        """Bring a client here."""
        for name, value in new.items():
            if name in PER_SAMPLE:
                self.tensors[name][: len(value)] = value
            elif isinstance(value, Tensor):
                self.tensors[name].copy_(value)
            else:
                tree.put(self.tensors[name], ..., value)

    def capture(self, batches: BatchSchedule, plain: Stepping, compiled: Stepping, full: int | None) -> None:
        """The graphs that a lesson needs. Only the step on full batches is compiled: others are not worth the wait.

        A size that is not the full one gets a graph when it is met again, and is stepped plainly until then.
        """
        for size, many in Counter(batches.sizes).items():
            if size not in self.graphs and many >= WORTH_CAPTURING and (size == full or self.seen[size]):
                self.graphs[size] = self._captured(size, compiled if size == full else plain, benchmark=size == full)
            self.seen[size] += 1

    def _captured(self, size: int, step: Stepping, benchmark: bool) -> torch.cuda.CUDAGraph:
        """Steps before it compile programs and choose algorithms; what lies here now is not yet anybody's."""
        graph, tf32 = torch.cuda.CUDAGraph(), torch.backends.cudnn.allow_tf32
        self.client.objective.train_mode(alone=size == 1)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=tf32):
            with torch.cuda.stream(self.stream):
                for _ in range(2):
                    self.tensors["at"].zero_()
                    step(self.tensors, size)
                self.tensors["at"].zero_()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                step(self.tensors, size)
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph

    def step(self, size: int, plain: Stepping) -> None:
        """One step on the next ``size`` samples."""
        with torch.cuda.stream(self.stream):
            if size in self.graphs:
                self.graphs[size].replay()
            else:
                self.client.objective.train_mode(alone=size == 1)
                plain(self.tensors, size)


def brought(client: Client, pair: Pair, batches: BatchSchedule) -> State:
    """All that a step needs of a client, as tensors."""
    (_, job), solver, objective = pair, client.exchange.solver, client.objective
    start, carry, context = client.begin(job, len(batches))
    device, dtype = objective.device, objective.layout.dtype
    found: State = {
        "start": start,
        "carry": carry,
        "context": context,
        "hyperparams": tensors(solver.hyperparams(job.clock), objective),
        "samples": batches.numbers.to(device),
        "at": torch.zeros((), dtype=torch.int64, device=device),
        "loss": torch.zeros((), dtype=dtype, device=device),
    }
    return found | ({"draws": torch.cat(batches.draws)} if batches.draws else {})


class CapturedGroup:
    """Clients in their places, for one round."""

    def __init__(
        self,
        client: Client,
        bucket: Sequence[Pair],
        batches_per_client: Sequence[BatchSchedule],
        slots: Sequence[ClientSlot],
        plain: Stepping,
    ) -> None:
        self.client, self.bucket, self.batches_per_client, self.slots, self.plain = (
            client,
            bucket,
            batches_per_client,
            slots,
            plain,
        )

    def train(self) -> list[Trained]:
        """All steps of all clients, a step of each in turn so that all streams have work."""
        main = torch.cuda.current_stream()
        for pair, batches, place in zip(self.bucket, self.batches_per_client, self.slots, strict=True):
            place.settle(brought(self.client, pair, batches))
        for place in self.slots:
            place.stream.wait_stream(main)
        sizes = [batches.sizes for batches in self.batches_per_client]
        for number in range(max(map(len, sizes))):
            for place, own in zip(self.slots, sizes, strict=True):
                if number < len(own):
                    place.step(own[number], self.plain)
        for place in self.slots:
            main.wait_stream(place.stream)
        return self.results()

    def results(self) -> list[Trained]:
        """What came of each client, in memory of its own."""
        losses = torch.stack([place.tensors["loss"] for place in self.slots]).tolist()
        return [self._result(number, losses[number]) for number in range(len(self.bucket))]

    def _result(self, number: int, loss: float) -> Trained:
        batches, carry = self.batches_per_client[number], self.slots[number].tensors["carry"]
        return self.client.finish(*self.bucket[number], batches, tree.clone(carry), loss / len(batches))
