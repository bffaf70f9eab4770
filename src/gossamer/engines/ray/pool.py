"""The actors of a run: one per core or share of a GPU, on all nodes of the cluster."""

import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gossamer import __version__
from gossamer.core.errors import RunError
from gossamer.engines.client import Client, ClientTask
from gossamer.engines.executors.parcels import pack_state
from gossamer.engines.ray import nodes
from gossamer.engines.ray.actor import Chosen, ClientActor, Machine, Ready, ShortOfMemoryError, TaskParcel
from gossamer.engines.ray.blueprint import Parcel
from gossamer.engines.ray.nodes import Need, Node
from gossamer.tasks.memory import client_memory, forward_memory, gradient_count

POLL = 5.0
"""Seconds between two looks at the nodes of the cluster."""

PATIENCE = 120.0
"""Seconds after which a run without any actor ends."""

HANG = 600.0
"""Seconds after which a run ends if none of its actors gets ready: another job may have their places."""

LARGE = 64_000_000
"""Bytes of a method and a task without samples that are more than they should need."""

FEW = 32
"""Number of samples in the step by which the memory of training is estimated."""

MEMORY = (OutOfMemoryError, ShortOfMemoryError)
"""What is raised for an actor that ran out of memory."""

LOST = (*MEMORY, RayActorError, ActorUnschedulableError, NodeDiedError, ObjectLostError, WorkerCrashedError)
"""What is raised for tasks of an actor that died, and for results that were lost with their node."""


class ClusterWarning(UserWarning):
    """Nodes hold fewer actors than they have cores, differ from each other, or an actor ran out of memory."""


@dataclass(eq=False)
class Actor:
    """An actor, as the driver sees it.

    Args:
        number: its number in messages
        node: its node
        handle: Ray's handle
        begun: the reference of its preparation, until it is prepared
        sent: the groups of tasks that it has not returned yet, by the reference of their results
        received: numbers of the common pieces that it has
        ready: whether it is prepared
    """

    number: int
    node: Node
    handle: Any
    begun: Any = None
    sent: dict[Any, list[ClientTask]] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    ready: bool = False

    def __str__(self) -> str:
        return f"actor {self.number} on {self.node.host}"

    @property
    def awaited(self) -> list[Any]:
        """References of what it is doing."""
        return [*self.sent, *([] if self.begun is None else [self.begun])]


class Pool:
    """Starts, prepares and replaces actors.

    Args:
        client: the driver's client, from which the actors build theirs
        cluster: local, auto, or the address of a cluster
        actors: the number of actors on each node; none means one per core or GPU
    """

    def __init__(self, client: Client, cluster: str, actors: int | None = None) -> None:
        self.cluster, self._client, self._asked = cluster, client, actors
        self.last = client.exchange.number
        self.actors: list[Actor] = []
        self.machines: Counter[Machine] = Counter()
        self.sizes: dict[int, int] = {}
        self._need: Need | None = None
        self._limits: dict[str, int] = {}  # of actors, by node, where one ran out of memory
        self._blueprint: Any = None
        self._preparation: tuple[str, Any, int] | None = None
        self._owns = False
        self._started, self._looked, self._alone_since = 0, 0.0, time.monotonic()
        self._problem = ""
        self.pieces = 0  # common pieces of downloads so far
        self.repeated = 0  # tasks of lost actors, since the last note

    # The cluster.

    def connect(self) -> None:
        """Connect to the cluster, once; refuse a cluster that cannot hold the task."""
        if self._need is not None:
            return
        self._owns = nodes.connect(self.cluster)
        try:
            sent = Parcel.of(self._client)
            self._need = need = Need(self._on_gpu, self._asked, nodes.PROCESS + self._training(), sent.nbytes)
            found = nodes.alive()
            nodes.check(found, need)
            for node in found:
                if (held := node.seats(need)) < (wanted := node.wanted(need)):
                    warn(f"{node.describe()} holds {held} of {wanted} actors: each needs {nodes.size(need.memory)}")
            self._check_size(sent)
            self._blueprint = ray.put(sent)
        except BaseException:
            self.close()
            raise

    @property
    def _on_gpu(self) -> bool:
        return self._client.objective.device.type == "cuda"

    def _check_size(self, sent: Parcel) -> None:
        """Warn if every actor would get a large copy of something beside the samples."""
        layout = self._client.objective.layout
        if len(sent.blueprint) > max(LARGE, 4 * layout.size * layout.dtype.itemsize):
            size = nodes.size(len(sent.blueprint))
            why = "the function that builds the network, or the method, seems to refer to data: pass sizes instead"
            warn(f"each actor gets a copy of {size} beside the samples: {why}")

    def _training(self) -> int:
        """Return the bytes of a training step of the largest client, by a step on a few samples."""
        objective, solver = self._client.objective, self._client.exchange.solver
        largest = int(objective.task.split.sizes().max())
        batch = max(map(len, solver.plan(largest, objective.key)), default=1)
        few = max(1, min(batch, FEW))
        if solver.uses == "losses":
            found = forward_memory(objective, objective.initial(), solver, few)
        else:
            gradients = gradient_count(solver, batch)
            found = client_memory(objective, objective.initial(), few, copies=2, gradients=gradients)
        return found.total + found.activations * (batch - few) // few

    def start(self) -> None:
        """Start actors on all free places of the cluster."""
        self.connect()
        self._looked = time.monotonic()
        for node in nodes.alive():
            taken = sum(actor.node.id == node.id for actor in self.actors)
            for _ in range(self._places(node) - taken):
                self._hire(node)

    def look(self) -> None:
        """Start actors on nodes that joined and in place of lost ones, if the last look was some time ago."""
        if time.monotonic() - self._looked > POLL:
            self.start()

    def _places(self, node: Node) -> int:
        assert self._need is not None
        return min(node.seats(self._need), self._limits.get(node.id, sys.maxsize))

    def _hire(self, node: Node) -> None:
        assert self._need is not None
        where = NodeAffinitySchedulingStrategy(node.id, soft=False)
        make = ray.remote(ClientActor).options(scheduling_strategy=where, **node.share(self._need))
        actor = Actor(self._started, node, make.remote(list(sys.path), [self._blueprint]))
        self._started += 1
        self.actors.append(actor)
        if self._preparation is not None:
            actor.begun = actor.handle.prepare.remote(*self._preparation)

    # Preparation.

    def choose(self, client_task: ClientTask, client_tasks: int, rounds: int) -> Chosen:
        """Let the first actor that has started choose the inner executor by measuring."""
        self.start()
        first = self._first({actor.handle.machine.remote(): actor for actor in self.actors})
        chosen: Chosen = get(first.handle.choose.remote(parcel(client_task), self._each(client_tasks), rounds))
        return chosen

    def prepare(self, name: str, client_task: ClientTask, client_tasks: int) -> None:
        """Prepare all actors; those that start later are prepared alike."""
        self.start()
        self._first({actor.handle.machine.remote(): actor for actor in self.actors})
        self._preparation = name, ray.put(parcel(client_task)), self._each(client_tasks)
        for actor in self.actors:
            actor.begun = actor.handle.prepare.remote(*self._preparation)
        begun = {actor.begun: actor for actor in self.actors}
        ray.wait(list(begun), num_returns=1, timeout=None)  # it may compile
        done, _ = ray.wait(list(begun), num_returns=len(begun), timeout=PATIENCE)
        for reference in done:
            self.settle(begun[reference])
        self._alone_since = time.monotonic()

    def _each(self, client_tasks: int) -> int:
        return -(-client_tasks // max(1, len(self.actors)))

    def _first(self, asked: dict[Any, Actor]) -> Actor:
        """Return the first actor that answers."""
        done, _ = ray.wait(list(asked), num_returns=1, timeout=PATIENCE)
        if not done:
            free = ", ".join(f"{amount:g} {name}" for name, amount in sorted(ray.available_resources().items()))
            raise RunError(f"no actor started within {PATIENCE:.0f} s; the cluster has free: {free}")
        return asked[done[0]]

    def settle(self, actor: Actor) -> None:
        """Note that the preparation of an actor ended."""
        try:
            ready: Ready = get(actor.begun)
        except LOST as error:
            return self.lose(actor, error)
        if ready.machine.gossamer != __version__:
            versions = f"has Gossamer {ready.machine.gossamer}, and this machine {__version__}"
            raise RunError(f"{actor.node.host} {versions}: install the same release on all nodes")
        actor.begun, actor.ready, self.sizes = None, True, ready.sizes
        new = ready.machine not in self.machines
        self.machines[ready.machine] += 1
        if new and len(self.machines) > 1:
            warn(f"the nodes differ, so results may depend on them in the last bits: {', '.join(self._kinds)}")
        return None

    # Losses.

    def lose(self, actor: Actor, error: BaseException) -> None:
        """Remove an actor that died or ran out of memory. The next look starts another where there is a place."""
        if actor not in self.actors:
            return
        self.actors.remove(actor)
        ray.kill(actor.handle)
        self._looked = 0.0
        if isinstance(error, MEMORY):
            self._limits[actor.node.id] = limit = max(1, self._places(actor.node) - 1)
            fewer = f"{actor.node.host} has {limit} actors at most from now on"
            warn(f"{actor} ran out of memory: {fewer}, and its tasks are repeated ({first_line(error)})")
        elif isinstance(error, ActorDiedError) and error.actor_init_failed:
            self._limits[actor.node.id] = 0
            self._problem = f"{actor} cannot build its client: {last_line(error)}"
            warn(f"{self._problem}; {actor.node.host} is not used")

    def check(self) -> None:
        """Raise if there has been no actor for a while, or if none can start."""
        now = time.monotonic()
        if any(actor.ready for actor in self.actors):
            self._alone_since = now
            return
        waited = now - self._alone_since
        if not self.actors and self._problem and not any(map(self._places, nodes.alive())):
            raise RunError(f"the cluster has no actor left: {self._problem}")
        if waited > (HANG if self.actors else PATIENCE):
            raise RunError(f"the cluster has no actor left: no node has had a place for one for {waited:.0f} s")

    def describe(self) -> dict[str, Any]:
        """Return the number of nodes and actors, and the kinds of machines, for the record of a run."""
        return {**self.note(), "machines": self._kinds}

    @property
    def _kinds(self) -> dict[str, int]:
        """Kinds of machines on which results may depend, with the number of actors so far."""
        return {f"{kind.processor}, torch {kind.torch}": count for kind, count in sorted(self.machines.items())}

    def note(self) -> dict[str, Any]:
        """Return the number of nodes, actors and repeated tasks since the last note, and machines if they differ."""
        counts = {"nodes": len({actor.node.id for actor in self.actors}), "actors": len(self.actors)}
        repeated, self.repeated = self.repeated, 0
        differ = {"machines": self._kinds} if len(self.machines) > 1 else {}
        return counts | ({"repeated": repeated} if repeated else {}) | differ

    def close(self) -> None:
        """End the actors, and the connection if this pool made it."""
        for actor in self.actors if ray.is_initialized() else ():
            ray.kill(actor.handle)
        self.actors.clear()
        self._blueprint, self._need, self._preparation = None, None, None
        if self._owns:
            self._owns = False
            nodes.disconnect()


def get(reference: Any) -> Any:
    """Return the value of a reference; an error that was raised in an actor is raised here."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from error


def parcel(client_task: ClientTask) -> TaskParcel:
    """Return a task as it is sent, with the common piece of its download."""
    return TaskParcel(client_task._replace(state={}), None, pack_state(client_task.state))


def warn(text: str) -> None:
    """Show a warning about the cluster."""
    warnings.warn(text, ClusterWarning, stacklevel=2)


def first_line(error: BaseException) -> str:
    """Return the first statement of an error; Ray adds tables to it."""
    return str(error).partition("\n")[0].partition(";")[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an error: that of a traceback names the error."""
    return str(error).strip().rpartition("\n")[2]
