"""A Flower grid in one process on a clock of its own: each training takes a given time, and nothing else takes any."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import Message, MessageType

from gossamer.core.availability import nanoseconds
from gossamer.core.channel import Channel, Cost, Receipt
from gossamer.core.random import Key
from gossamer.core.types import Clock, Flops
from gossamer.engines.flower.messages import word
from helpers.flower_runs import NUMBERS
from helpers.local_grid import Handle, LocalGrid

Seconds = Callable[[int, int], float]
"""How long a client trains from a version of the model."""


class TimedGrid(LocalGrid):
    """Nodes whose replies arrive after some time. The clock goes on when the server sleeps."""

    def __init__(self, nodes: dict[int, Handle], seconds: Seconds) -> None:
        super().__init__(nodes)
        self.seconds, self.time = seconds, 10**15
        self.ready: dict[str, int] = {}
        self.events: dict[int, Callable[[], None]] = {}
        """What happens at a time, given in nanoseconds from the start."""

    def clock(self) -> int:
        return self.time

    def sleep(self, seconds: float) -> None:
        until = self.time + nanoseconds(seconds)
        coming = [time for time in (*self.ready.values(), *self.events) if self.time < time < until]
        self.time = min([until, *coming])
        for time in [time for time in self.events if time <= self.time]:
            self.events.pop(time)()

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen at a time of the run."""
        self.events[10**15 + nanoseconds(seconds)] = event

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        numbers = super().push_messages(messages)
        for message, number in zip(messages, numbers, strict=True):
            train = message.metadata.message_type == MessageType.TRAIN
            client = NUMBERS.index(message.metadata.dst_node_id)
            assert client not in self.training(), "a node that trains gets no second message"
            taken = self.seconds(client, word(message, "round", int)) if train else 0.0
            self.ready[number] = self.time + nanoseconds(taken)
        return numbers

    def training(self) -> set[int]:
        """The clients that train now."""
        busy = [number for number, time in self.ready.items() if time > self.time]
        sent = {message.metadata.message_id: message.metadata.dst_node_id for message in self.sent}
        return {NUMBERS.index(sent[number]) for number in busy}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return super().pull_messages([number for number in message_ids if self.ready[number] <= self.time])


@dataclass(frozen=True)
class TimedChannel(Channel):
    """The same times in a simulation."""

    seconds: Seconds

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        return Cost(self.seconds(clock.client, clock.round))

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        return Receipt(delivered=True)
