"""A run on the virtual clock without training: only the schedule, the devices and the sampler decide what happens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from gossamer.core.channel import Channel
from gossamer.core.exchange import GLOBAL, Assignment
from gossamer.core.jobs import Outgoing
from gossamer.core.random import key
from gossamer.core.sampler import Pool
from gossamer.core.schedule import Schedule
from gossamer.core.types import Clock, Flops, State
from gossamer.core.wire import Body, Frame
from gossamer.engines.client import ClientResult, ClientTask, TaskOutcome
from gossamer.engines.inbox import Immediate
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage
from gossamer.engines.virtual.clock import VirtualTime
from gossamer.parts.samplers.draws import Uniform

SAMPLES = np.arange(1)
FLOPS = Flops(1000, 1000, 1.0)
CLIENT = SimpleNamespace(least_flops=lambda client_task: FLOPS)
SIZES = {"down.values": 100}
UPLOAD = Outgoing(Frame(bytes(100)), {"codec.values": 100})


class StubRun:
    """What the virtual clock needs of a run. Training takes no time of the processor, and all messages are equal.

    Args:
        clients: the number of clients
        cohort: clients per round
        schedule: the schedule
        channel: the devices
        rounds: the number of rounds
    """

    def __init__(self, clients: int, cohort: int, schedule: Schedule, channel: Channel, rounds: int) -> None:
        self.server: State = {}
        self.key = key(0)
        self.clients, self.cohort_size, self.rounds = clients, cohort, rounds
        self.metrics: list[dict[str, Any]] = []
        self.excluded: Sequence[int] = ()
        self.groups: list[int] = []
        self.sampler = Uniform()
        self.stage_server = SimpleNamespace(assign=self.assign)
        self.exchange: Any = SimpleNamespace(number=0, last=True, server=self.stage_server)
        self.method: Any = SimpleNamespace(training=self.exchange)
        self.dispatcher = VirtualTime(self, schedule, channel, dict.fromkeys(range(clients), 1))

    def assign(self, state: State, cohort: Sequence[int], *rest: object) -> dict[int, Assignment]:
        """Let every client train the global model."""
        return dict.fromkeys(cohort, GLOBAL)

    def all_clients(self) -> int:
        """Return the number of clients."""
        return self.clients

    def propose(self, number: int, available: Mapping[int, int], count: int) -> list[int]:
        """Sample clients uniformly."""
        if not count or not available:
            return []
        return self.sampler.propose(Pool(self.clients, available, count), self.clock(number), self.key)

    def clock(self, number: int, client: int = -1) -> Clock:
        """Return the clock of a round."""
        return Clock(number, self.rounds, client)

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None]
    ) -> tuple[ClientTask, dict[str, int]]:
        """Return a task without content."""
        return ClientTask(self.clock(stage.number, client), self.key, UPLOAD.data, {}, SAMPLES), SIZES

    def client_of(self, exchange: object) -> Any:
        """Return what knows the operations of a task."""
        return CLIENT

    def trained(self, stage: Stage, tasks: Callable[[Stage], Iterator[ClientTask]]) -> Iterator[TaskOutcome]:
        """Return the same upload for all clients."""
        self.groups.append(len(stage.active))
        return (TaskOutcome(task, ClientResult(UPLOAD, {}, 0.0, FLOPS)) for task in tasks(stage))

    def fails(self, client_task: ClientTask) -> bool:
        """Return that no client fails."""
        return False

    def round(self) -> dict[str, Any]:
        """Do a round, and return the schedule's entries of its record."""
        number, ledger = len(self.metrics), Ledger()
        self.dispatcher.begin_round()
        cohort = self.propose(number, self.dispatcher.eligible(), self.dispatcher.free)
        stage = Stage(self.exchange, number, self.assign({}, cohort))
        ledger.begin()
        self.dispatcher.exchange(stage, ledger, Immediate(lambda client, reply: None))
        self.metrics.append({**ledger.notes, "delay": ledger.delay, "energy": ledger.energy})
        return self.metrics[-1]
