"""Many clients at once on a GPU, each with its own stream and CUDA graphs.

On a GPU small operations cost more to launch than to run. A CUDA graph launches whole steps at once: gathering the
batch, forward, backward and update. The graphs of several clients run concurrently. Clients need not be in step: each
follows its own batch schedule. If the view asks for the gradient after training (``View.screens``), a graph
of its own computes it right after the last step of each client.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch

from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.jobs import Job, Trained
from gossamer.core.types import Layout, Params, State
from gossamer.engines.client import BatchSchedule, Client, ClientTask
from gossamer.engines.executors.channels_last import channels_last_options
from gossamer.engines.executors.compiled import check, compile_on_gpu, reset_compiler
from gossamer.engines.executors.slots import LENGTHS, ClientSlot, Part, Stepping, brought, stepping
from gossamer.engines.executors.stacked import ClientGroup, InChunks, Pair, TrainedAloneWarning, kind

T = TypeVar("T")

CHUNK = 16
"""Maximum number of concurrent clients; more are not faster."""
BUSY = 5
"""Number of concurrent clients that keep a device busy."""
SHARE = 0.5
"""Fraction of the free memory that slots may take."""


class NotCompiledWarning(UserWarning):
    """A compiled step failed, and steps are captured without compilation."""


class Captured(InChunks):
    """Chunks of clients on a GPU; each client step replays a captured graph."""

    compiles: ClassVar[bool] = True
    ahead: ClassVar[bool] = True

    def __init__(self, client: Client, size: int = CHUNK) -> None:
        if client.objective.device.type != "cuda":
            raise ConfigError("executor captured needs a GPU: use --device cuda, or another executor")
        super().__init__(client, size)
        self.compiling = self.compiles
        if self.compiling:
            reset_compiler()
        self.steppings = dict[Layout, tuple[Stepping, Stepping]]()
        self.full: int | None = None
        self.room = 0
        self.slots: dict[Any, list[ClientSlot]] = {}

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Compile and capture; the memory of one slot determines the number of slots.

        The task is that of the largest client, so that the slots have room for all.
        """
        plan = self.client.exchange.solver.plan(len(client_task.samples), client_task.key)
        self.full, self.room = len(plan[0]), 2 * sum(map(len, plan))
        try:
            self._fill(client_task, client_tasks)
        except (ConfigError, TrainedAloneWarning) as error:
            if not self.compiling:
                raise
            text = "the compiled step fails, so steps are captured without compilation: "
            warnings.warn(text + str(error).rpartition("one by one: ")[2], NotCompiledWarning, stacklevel=2)
            self.compiling = False
            self.slots.clear()
            self.steppings.clear()
            self._fill(client_task, client_tasks)

    def _fill(self, client_task: ClientTask, client_tasks: int) -> None:
        """Make the slots."""
        before, _ = torch.cuda.mem_get_info()
        self._try(client_task, 1)
        free, _ = torch.cuda.mem_get_info()
        self.size = max(1, min(self.size, client_tasks, int(SHARE * free / max(before - free, 1))))
        self._try(client_task, self.size)

    def _try(self, client_task: ClientTask, count: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", TrainedAloneWarning)
            for done in self.run([client_task._replace(limit=sum(LENGTHS))] * count):
                check(done)

    def bucket(self, job: Job) -> Any:
        """Group all clients of a chunk: each has its own graph, so widths may differ."""

    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        """Return the clients of a bucket; they get their slots as they are launched."""
        return CapturedGroup(self, bucket)

    def seat(self, pair: Pair, batches: BatchSchedule, taken: "Counter[Any]") -> "Seat":
        """Assign a client a slot with its shapes, the next of those that are not taken."""
        shapes = kind(pair[1])
        slot = self._slot(self.slots.setdefault(shapes, []), taken[shapes], pair, batches)
        taken[shapes] += 1
        parts = slot.parts(batches)
        slot.capture(batches, parts, self.full)
        feed = self.client.screen_feed(pair[1]) if self._screens else None
        if feed is not None:
            slot.capture_screen(feed, self.full)
        return Seat(slot, batches, parts, feed)

    @property
    def _screens(self) -> bool:
        """Whether gradients are computed with the steps; samples that are read when needed are left to the client."""
        return self.client.exchange.view.screens and not self.client.objective.samples.lazy

    def _slot(self, alike: list[ClientSlot], number: int, pair: Pair, batches: BatchSchedule) -> ClientSlot:
        """Return a slot of the given shapes that holds the batch schedule; create it if necessary."""
        steps = self._steppings(pair[1])
        if number == len(alike):
            alike.append(ClientSlot(self.client, pair, batches, self.room, *steps))
        elif not alike[number].holds(batches):
            alike[number] = ClientSlot(self.client, pair, batches, 2 * sum(batches.sizes), *steps)
        return alike[number]

    def _steppings(self, job: Job) -> tuple[Stepping, Stepping]:
        """Return the step of clients with tensors like this one's, and the one on full batches, which is compiled."""
        layout = job.layout.full
        if layout not in self.steppings:
            # In eager mode GroupNorm's backward pass is one kernel; in a pure step it takes twenty.
            plain = compiled = stepping(self.client, torch.enable_grad()(self.client.local_step(job).eager))
            if self.compiling:
                pure = stepping(self.client, self.client.local_step(job).pure)
                backend = partial(compile_on_gpu, options=channels_last_options())
                compiled = torch.compile(pure, fullgraph=True, dynamic=False, backend=backend)
            self.steppings[layout] = plain, compiled
        return self.steppings[layout]


class CapturedPlain(Captured):
    """The same without compilation: for networks that take long to compile, or clients of many widths."""

    compiles: ClassVar[bool] = False


def at_once(clients: int) -> int:
    """Return how many clients of a group train at the same time: two thirds, but enough to keep the device busy.

    The uploads of the first ones are made and aggregated while the others train.

    >>> at_once(10), at_once(16)
    (7, 11)
    """
    return max(BUSY, -(-2 * clients // 3))


def in_turn(own: Sequence[Sequence[T]]) -> list[tuple[int, T]]:
    """Return clients and items in the order of execution, one item of each client in turn.

    >>> in_turn(["ab", "c"])
    [(0, 'a'), (1, 'c'), (0, 'b')]
    """
    rows = zip_longest(*([(client, item) for item in items] for client, items in enumerate(own)))
    return [each for row in rows for each in row if each is not None]


class Seat(NamedTuple):
    """A client's place in a round: its slot, its batches, the parts of its schedule, and its batch for the gradient."""

    slot: ClientSlot
    batches: BatchSchedule
    parts: list[Part]
    feed: State | None

    def run(self, part: Part) -> None:
        """Launch the steps of a part, the next of the client."""
        self.slot.run(self.batches, part)


class CapturedGroup(ClientGroup):
    """Clients in their slots, for one round."""

    def __init__(self, executor: Captured, bucket: Sequence[Pair]) -> None:
        self.executor, self.client, self.bucket = executor, executor.client, bucket
        self.seats: list[Seat] = []
        self.gradients: list[Params] = []

    def launch(self) -> None:
        """Launch all steps, some of each client in turn, so that several streams are busy.

        The first steps of a client run while the host prepares the next client. Not all clients train at once: each
        of the others follows on one that was launched before, so that results do not arrive all at the end. The current
        stream does not wait for any: meanwhile the host makes uploads on it. After a failure nothing is left running.
        """
        try:
            self._launch()
        except BaseException:
            torch.cuda.synchronize()
            raise

    def _launch(self) -> None:
        taken, width = Counter[Any](), at_once(len(self.bucket))
        for number, (pair, batches) in enumerate(zip(self.bucket, self._schedules(), strict=True)):
            if number >= width and number % width == 0:
                self._launch_rest(self.seats[-width:])
            after = self.seats[number - width] if number >= width else None
            self._begin(pair, self.executor.seat(pair, batches, taken), after)
        self._launch_rest(self.seats[(len(self.seats) - 1) // width * width :])
        self.gradients = [seat.slot.screen(seat.feed) for seat in self.seats if seat.feed is not None]

    def _launch_rest(self, seats: "Sequence[Seat]") -> None:
        """Launch the steps of some clients after their first ones, a few of each in turn."""
        rest = in_turn([seat.parts[1:] for seat in seats])
        for index, part in rest:
            seats[index].batches.announce(part.numbers)
        for index, part in rest:
            seats[index].run(part)

    def _schedules(self) -> Iterable[BatchSchedule]:
        """Return the batches of each client, when it is their turn; first batches that are read are announced first."""
        schedules = (self.client.batches(client_task) for client_task, _ in self.bucket)
        if not self.client.objective.samples.lazy:
            return schedules
        made = list(schedules)
        for batches in made:
            batches.announce([0])
        return made

    def _begin(self, pair: Pair, seat: Seat, after: Seat | None) -> None:
        """Load a client into its slot, and launch its first steps, to run after those of another client."""
        slot = seat.slot
        slot.load(brought(self.client, pair, seat.batches))
        slot.stream.wait_stream(torch.cuda.current_stream())
        if after is not None:
            slot.stream.wait_stream(after.slot.stream)
        for part in seat.parts[:1]:
            seat.run(part)
        self.seats.append(seat)

    def results(self) -> Iterator[Trained]:
        """Wait for one client after the other, and yield its training result, copied out of its slot."""
        for number, seat in enumerate(self.seats):
            torch.cuda.current_stream().wait_stream(seat.slot.stream)
            yield self._result(number, float(seat.slot.tensors["loss"]))

    def _result(self, number: int, loss: float) -> Trained:
        slot, batches, _, feed = self.seats[number]
        trained = self.client.finish(
            *self.bucket[number], batches, tree.clone(slot.tensors["carry"]), loss / len(batches)
        )
        if feed is None:
            return trained
        spent = self.client.objective.flops(trained.change, feed["rows"]).done
        return trained._replace(flops=trained.flops.plus(spent), gradient=tree.clone(self.gradients[number]))
