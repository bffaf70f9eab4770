"""The only file here that knows the library's engine: it plays a case, and copies what travels and what is remembered.

A change of the engine's classes is followed here, and nowhere else in this folder.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from gossamer import Method, Options, Task
from gossamer.core import wire
from gossamer.core.types import Layout
from gossamer.engines.client import ClientResult
from gossamer.engines.simulation import Simulation

Nest = Mapping[str, Any]
"""Tensors by name, in nested mappings."""


class Sent(NamedTuple):
    """A message, in the order in which clients trained.

    Args:
        exchange: number of the exchange in the round
        client: the client
        way: down (to the client) or up
        data: all bytes
        arrays: the decoded arrays, without the header
    """

    exchange: int
    client: int
    way: str
    data: bytes
    arrays: Mapping[str, Tensor]


class Round(NamedTuple):
    """What happened in a round: its messages, and its record as nested mappings and lists."""

    sent: list[Sent]
    record: Mapping[str, Any]


class Memory(NamedTuple):
    """What is remembered after the last round: by the server, by each client, and the server's model of each client."""

    server: Nest
    clients: Mapping[int, Nest]
    models: Mapping[int, Nest]


def play(method: Method, task: Task, options: Mapping[str, Any]) -> tuple[list[Round], Memory]:
    """Run a method one client at a time. Return each round, and the memory after the last one."""
    run, rounds = _Tapped(method, task, Options(executor="one-by-one", **options)), list[Round]()

    def watch(record: Mapping[str, Any]) -> None:
        rounds.append(Round(run.sent, record))
        run.sent = []

    run.run(None, watch)
    layout, trained = run.method.training.solver.layout, run.objective.trained
    clients = {client: dict(run.clients.get(client)) for client in run.clients.known()}
    for memory in clients.values():  # the record has tensors by name where solvers now keep vectors
        memory["solver"] = _named(memory.get("solver", {}), layout, trained)
    return rounds, Memory(run.server, clients, {client: run.models.get(client) for client in run.models.known()})


def _named(nest: Nest, layout: Layout, trained: Collection[str]) -> Nest:
    """Return a nest with the tensors of the model in place of vectors of all entries.

    Control variates have none for buffers, and personal models have all.
    """
    found: dict[str, Any] = {}
    for name, value in nest.items():
        if isinstance(value, Mapping):
            found[name] = _named(value, layout, trained)
        elif value.shape == (layout.size,):
            tensors = layout.unflatten(value)
            found[name] = {n: t for n, t in tensors.items() if name == "personal" or n in trained or bool(t.any())}
        else:
            found[name] = value
    return found


class _Tapped(Simulation):
    """A simulation that copies the messages of clients that trained; downloads of other clients are left out."""

    def __init__(self, method: Method, task: Task, options: Options) -> None:
        super().__init__(method, task, options)
        self.sent: list[Sent] = []

    def trained(self, stage: Any, tasks: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        for outcome in super().trained(stage, tasks):
            who = stage.exchange.number, outcome.client_task.clock.client
            self._note(*who, "down", outcome.client_task.data)
            if isinstance(outcome.result, ClientResult):
                self._note(*who, "up", outcome.result.sent.data)
            yield outcome

    def _note(self, exchange: int, client: int, way: str, data: Any) -> None:
        if data:
            self.sent.append(Sent(exchange, client, way, bytes(data), wire.unpack(data).arrays))
