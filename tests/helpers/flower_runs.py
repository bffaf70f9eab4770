"""Runs through a Flower grid in one process, and the simulator's runs that they must equal bit for bit."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, MessageType

from gossamer.core import wire
from gossamer.core.downlink import HELD
from gossamer.core.method import Method
from gossamer.core.types import State
from gossamer.engines.client import ClientResult, ClientTask, Failure
from gossamer.engines.flower import Settings, client_app, credentials
from gossamer.engines.flower.journal import NEVER, Journal
from gossamer.engines.flower.messages import WORDS, content, data, word
from gossamer.engines.flower.server import FOLDED, FlowerRun
from gossamer.engines.held_models import HeldModels
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.options import DEPLOYED_WEIGHT, Options
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.tasks.task import AnyTask, Task
from helpers.compare import same
from helpers.local_grid import Handle, LocalGrid, node, through

CLIENTS = 4
NUMBERS = (71, 8, 940, 33)
"""What Flower calls the nodes of clients 0 to 3."""

Sent = dict[tuple[str, int, int], bytes]
"""A run's messages by direction, round and client."""


def ignore(record: dict[str, Any]) -> None:
    pass


# The deployment.


app = cache(client_app)  # one app per method and task, as in one process; a test of a new process clears it


def config(client: int, home: Path) -> dict[str, Any]:
    return {"partition-id": client, "state-dir": str(home)}


@cache
def signing_keys() -> Path:
    """A folder with the keys of all nodes, for secure aggregation."""
    folder = Path(tempfile.mkdtemp(prefix="gossamer-test-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for client in range(CLIENTS):
        credentials.node_key(folder / f"node-{client}")
    return folder


def nodes(method: Method, task: AnyTask, home: Path, clients: Iterable[int] = range(CLIENTS)) -> dict[int, Handle]:
    def signing(client: int) -> dict[str, str]:
        return {"key": str(signing_keys() / f"node-{client}")} if method.training.secure else {}

    return {NUMBERS[c]: node(app(method, task), {**config(c, home), **signing(c)}) for c in clients}


def restarted(method: Method, task: AnyTask, home: Path) -> dict[int, Handle]:
    """All nodes, in new processes."""
    app.cache_clear()
    return nodes(method, task, home)


def flower_run(method: Method, task: Task, grid: LocalGrid, **more: Any) -> FlowerRun:
    usual: dict[str, Any] = {
        "rounds": 2,
        "wait": 0,
        "deadline": 0.05,
        "rehearsal": True,
    }  # to compare it with a simulation
    usual |= {"keys": str(signing_keys())} if method.training.secure else {}
    return FlowerRun(method, task, Settings(**{**usual, **more}), grid)


def deploy(method: Method, task: Task, grid: LocalGrid, watch: Any = ignore, **more: Any) -> FlowerRun:
    deployed = flower_run(method, task, grid, **more)
    deployed.run(None, watch)
    return deployed


def messages(grid: LocalGrid) -> Sent:
    found = {}
    for message in grid.sent:
        if message.metadata.message_type == MessageType.TRAIN:
            client = NUMBERS.index(message.metadata.dst_node_id)
            found["down", word(message, "round", int), client] = data(message)
    for message in grid.received:
        if message.metadata.message_type == MessageType.TRAIN:
            client = NUMBERS.index(message.metadata.src_node_id)
            found["up", word(message, "round", int), client] = data(message)
    return found


def remembered(deployed: FlowerRun, home: Path, client: int) -> State:
    """A node's client state at the end of a run, settled by the last round that the server folded."""
    known = int(deployed.clients.get(client).get(FOLDED, NEVER))
    journal = Journal(home, deployed.about["id"], client)
    return journal.recall(deployed.options.rounds, known, deployed.method.training.settle)


# Altered replies.


def altered(handle: Handle, change: Callable[[Message], Message | None], kind: str, rounds: Iterable[int]) -> Handle:
    """A node whose replies in some rounds are not what it made."""

    def answer(message: Message) -> Message | None:
        reply = handle(message)
        meant = message.metadata.message_type == kind and word(message, "round", int) in rounds
        return change(reply) if meant and reply is not None else reply

    return answer


def rewritten(reply: Message, sent: bytes | None = None, **words: Any) -> Message:
    """A reply with other bytes or other fields; fields that are ``None`` are left out."""
    fields = dict(reply.content.config_records[WORDS]) | words
    kept = {name: value for name, value in fields.items() if value is not None}
    reply.content = content(kept, data(reply) if sent is None else sent)
    return through(reply)


def arrays(reply: Message, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Message:
    message = wire.unpack(data(reply))
    payload = {name: change(name, array) for name, array in message.payload.items()}
    return rewritten(reply, wire.pack(replace(message, payload=payload)))


def filled(value: float) -> Callable[[Message], Message]:
    """All numbers of an upload are this one."""

    def change(name: str, array: torch.Tensor) -> torch.Tensor:
        return torch.full_like(array, value) if array.is_floating_point() else array

    return lambda reply: arrays(reply, change)


# The simulator.


class Reference(Simulation):
    """The simulator with its messages kept, whose cohorts and losses can be those of a deployment."""

    def __init__(
        self,
        method: Method,
        task: Task,
        cohorts: Mapping[int, list[int]],
        lost: Iterable[tuple[int, int]],
        options: Options,
    ) -> None:
        super().__init__(method, task, options)
        self.cohorts, self.losses = cohorts, set(lost)
        self.messages: Sent = {}

    def cohort(self, number: int, ledger: Ledger) -> list[int]:
        self.sizes = self.available()
        return self.cohorts[number] if number in self.cohorts else super().cohort(number, ledger)

    def client_tasks(self, stage: Stage, ledger: Ledger, inbox: Replies) -> Iterator[ClientTask]:
        for client_task in super().client_tasks(stage, ledger, inbox):
            self.messages["down", stage.number, client_task.clock.client] = bytes(client_task.data)
            yield client_task

    def send_upload(self, client_task: ClientTask, result: ClientResult | Failure, ledger: Ledger) -> ClientReply:
        assert isinstance(result, ClientResult)
        self.messages["up", client_task.clock.round, client_task.clock.client] = bytes(result.sent.data)
        if (client_task.clock.round, client_task.clock.client) not in self.losses:
            return super().send_upload(client_task, result, ledger)
        ledger.lost.append(client_task.clock.client)
        return ClientReply(state=result.state)


def simulated(
    method: Method,
    task: Task,
    watch: Callable[[Simulation, dict[str, Any]], None] = lambda run, record: None,
    cohorts: Mapping[int, list[int]] | None = None,
    lost: Iterable[tuple[int, int]] = (),
    **options: Any,
) -> Reference:
    given = {"rounds": 2, "max_weight": DEPLOYED_WEIGHT, **options}
    run = Reference(method, task, cohorts or {}, lost, Options(**given))
    run.run(None, lambda record: watch(run, record))
    return run


undisturbed = cache(simulated)


# Comparing.


def agree(deployed: FlowerRun, run: Simulation, home: Path) -> None:
    """Check that the models and the states of all clients agree."""
    assert same(deployed.server, run.server)
    assert deployed.models.known() == run.models.known()
    assert all(same(deployed.models.get(client), run.models.get(client)) for client in run.models.known())
    for client in range(run.task.clients):
        assert same(shown(remembered(deployed, home, client), run), run.clients.get(client)), f"memory of {client}"


def shown(state: State, run: Simulation) -> State:
    """A node's client state as the simulator stores it; the model that the client holds is compared here."""
    taken = HeldModels().taken(state)
    if HELD in taken and (version := int(taken[HELD]["version"])) in run.held_models.models:
        assert same(state, run.held_models.given(taken, version))
    return taken


FIGURES = ("accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy", "train_loss", "flops")
COUNTS = ("round", "clients", "bytes_up", "bytes_down", "failures", "lost", "exchanges")


def figures(records: list[dict[str, Any]], names: tuple[str, ...] = FIGURES + COUNTS) -> list[dict[str, Any]]:
    return [{name: record[name] for name in names} for record in records]


def check_parity(method: Method, task: Task, home: Path, **options: Any) -> None:
    """Check that a deployed run sends the bytes of a simulated one, with the same results."""
    grid, run = LocalGrid(nodes(method, task, home)), undisturbed(method, task, **options)
    deployed = deploy(method, task, grid, **options)
    agree(deployed, run, home)
    assert messages(grid) == run.messages
    assert figures(deployed.metrics) == figures(run.metrics)
