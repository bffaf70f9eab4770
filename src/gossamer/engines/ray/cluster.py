"""The actors of a run, one per core or share of a GPU on all nodes of the cluster, and the executors over them.

``Cluster`` starts, prepares and replaces actors. ``OnCluster`` runs the tasks of one exchange: it deals them to the
actors, yields outcomes as they come, and repeats what is lost.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gossamer import __version__
from gossamer.core.errors import RunError
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientTask, Failure, TaskOutcome
from gossamer.engines.executors.auto import Choice
from gossamer.engines.executors.parcels import pack_state
from gossamer.engines.ray import nodes
from gossamer.engines.ray.actor import ClientActor, Machine, Parcel, Ready, ResultParcel, TaskParcel, unpacked_result
from gossamer.engines.ray.dealer import Dealer
from gossamer.engines.ray.nodes import LOST, PATIENCE, POLL, Need, Node, first_line, get, warn
from gossamer.tasks.memory import client_memory, forward_memory, gradient_count

HANG = 600.0
"""Seconds after which a run ends if none of its actors gets ready: another job may have their places."""

DEADLY = 3
"""Number of actors that may die while they run a task; then its client fails."""

LARGE = 64_000_000
"""Bytes of a method and a task without samples that are more than they should need."""

FEW = 32
"""Number of samples in the step by which the memory of training is estimated."""


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


class Cluster:
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
        self._owns, on_gpu = nodes.connect(self.cluster), self._client.objective.device.type == "cuda"
        try:
            sent = Parcel.of(self._client)
            self._need = need = Need(on_gpu, self._asked, nodes.PROCESS + self._training(), sent.nbytes)
            found = nodes.alive()
            nodes.check(found, need)
            for node in found:
                if (held := node.seats(need)) < (wanted := node.wanted(need)):
                    warn(f"{node.describe()} holds {held} of {wanted} actors: each needs {nodes.size(need.memory)}")
            layout = self._client.objective.layout
            if len(sent.blueprint) > max(LARGE, 4 * layout.size * layout.dtype.itemsize):
                size = nodes.size(len(sent.blueprint))
                why = "the function that builds the network, or the method, seems to refer to data: pass sizes instead"
                warn(f"each actor gets a copy of {size} beside the samples: {why}")
            self._blueprint = ray.put(sent)
        except BaseException:
            self.close()
            raise

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
                assert self._need is not None
                where = NodeAffinitySchedulingStrategy(node.id, soft=False)
                make = ray.remote(ClientActor).options(scheduling_strategy=where, **node.share(self._need))
                actor = Actor(self._started, node, make.remote(list(sys.path), [self._blueprint]))
                self._started += 1
                self.actors.append(actor)
                if self._preparation is not None:
                    actor.begun = actor.handle.prepare.remote(*self._preparation)

    def look(self) -> None:
        """Start actors on nodes that joined and in place of lost ones, if the last look was some time ago."""
        if time.monotonic() - self._looked > POLL:
            self.start()

    def _places(self, node: Node) -> int:
        assert self._need is not None
        return min(node.seats(self._need), self._limits.get(node.id, sys.maxsize))

    # Preparation.

    def executor(self, exchange: int, name: str) -> "OnCluster":
        """Return the executor of an exchange, given the name of the inner executor."""
        return OnCluster(self, exchange, name)

    def choice(self, client_task: ClientTask, client_tasks: int, rounds: int) -> Choice:
        """Return the fastest inner executor for ``rounds`` rounds of ``client_tasks`` tasks like ``client_task``."""
        self.start()
        first = self._first()
        found = first.handle.choose.remote(parcel(client_task), self._each(client_tasks), rounds)
        name, rates, left_out = get(found)
        self.prepare(name, client_task, client_tasks)
        return Choice(name, self.executor(self.last, name), rates, left_out)

    def prepare(self, name: str, client_task: ClientTask, client_tasks: int) -> None:
        """Prepare all actors; those that start later are prepared alike."""
        self.start()
        self._first()
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

    def _first(self) -> Actor:
        """Return the first actor that answers."""
        asked = {actor.handle.machine.remote(): actor for actor in self.actors}
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
        if isinstance(error, nodes.MEMORY):
            self._limits[actor.node.id] = limit = max(1, self._places(actor.node) - 1)
            fewer = f"{actor.node.host} has {limit} actors at most from now on"
            warn(f"{actor} ran out of memory: {fewer}, and its tasks are repeated ({first_line(error)})")
        elif isinstance(error, ActorDiedError) and error.actor_init_failed:
            self._limits[actor.node.id] = 0
            self._problem = f"{actor} cannot build its client: {nodes.last_line(error)}"
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
        """End the actors, and the connection if this cluster made it."""
        for actor in self.actors if ray.is_initialized() else ():
            ray.kill(actor.handle)
        self.actors.clear()
        self._blueprint, self._need, self._preparation = None, None, None
        if self._owns:
            self._owns = False
            nodes.disconnect()


def parcel(client_task: ClientTask) -> TaskParcel:
    """Return a task as it is sent, with the common piece of its download."""
    return TaskParcel(client_task._replace(state={}), None, pack_state(client_task.state))


class OnCluster:
    """Runs the tasks of one exchange on the actors of a cluster.

    Args:
        pool: the actors
        exchange: the number of the exchange
        name: the name of the inner executor
    """

    threads: int | None = 1

    def __init__(self, pool: Cluster, exchange: int, name: str) -> None:
        self.pool, self.exchange, self.name = pool, exchange, name
        self.dealer = Dealer()

    @property
    def size(self) -> int:
        """Number of clients that train at the same time."""
        return max(1, len(self.pool.actors) * self.together)

    @property
    def together(self) -> int:
        """Number of clients that one actor trains together."""
        return self.pool.sizes.get(self.exchange, 1)

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Start the actors and prepare their inner executors."""
        self.pool.prepare(self.name, client_task, client_tasks)

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Deal the tasks to the actors, and yield outcomes in the order in which they come."""
        self.pool.look()
        return Dealing(self, client_tasks).run()

    def close(self) -> None:
        """Do nothing: the pool is shared by the executors of all exchanges."""


class Dealing:
    """The tasks of one exchange of one round, and where they are."""

    def __init__(self, executor: OnCluster, client_tasks: Iterable[ClientTask]) -> None:
        self.executor, self.pool, self.dealer = executor, executor.pool, executor.dealer
        self._new = self.dealer.groups(client_tasks, max(1, len(self.pool.actors)), executor.together)
        self._again: deque[list[ClientTask]] = deque()
        self._deaths: Counter[int] = Counter()  # of actors that ran a client's task
        self._commons: list[tuple[bytes | memoryview, int, Any]] = []  # a piece, its number, its reference

    def run(self) -> Iterator[TaskOutcome]:
        """Yield the outcomes of all tasks."""
        try:
            while self._send() or any(actor.sent for actor in self.pool.actors):
                done = self._wait()
                outcomes = [outcome for reference in done for outcome in self._collect(reference)]
                self.pool.look()
                self._send()  # before the engine folds what came
                yield from outcomes
        finally:
            for actor in self.pool.actors:
                actor.sent.clear()

    def _wait(self) -> list[Any]:
        """Wait until a group is done or an actor is prepared, but not longer than until the next look at the nodes."""
        self.pool.check()
        awaited = [reference for actor in self.pool.actors for reference in actor.awaited]
        if not awaited:
            time.sleep(POLL / 10)
            return []
        done, _ = ray.wait(awaited, num_returns=1, timeout=POLL)
        return list(done)

    # Sending.

    def _send(self) -> bool:
        """Send groups to actors that have nothing to do, or soon will; return whether groups may be left."""
        for depth in range(1, self.dealer.depth + 1):
            for actor in self.pool.actors:
                if actor.ready and len(actor.sent) < depth:
                    group = self._again.popleft() if self._again else next(self._new, None)
                    if group is None:
                        return False
                    parcels = [self._parcel(actor, client_task) for client_task in group]
                    actor.sent[actor.handle.run.remote(self.executor.exchange, parcels)] = group
        return True

    def _parcel(self, actor: Actor, client_task: ClientTask) -> TaskParcel:
        """Return a task as it is sent; the common piece of its download is sent to an actor once."""
        data = client_task.data
        number = self._common(actor, data.common) if data.common else None
        bare = client_task._replace(state={}, data=Frame(data.head, b"", data.single))
        return TaskParcel(bare, number, pack_state(client_task.state))

    def _common(self, actor: Actor, piece: bytes | memoryview) -> int:
        """Return the number of a common piece; put it into the object store once, and tell the actor once."""
        found = next((entry for entry in self._commons if entry[0] is piece), None)
        if found is None:
            self.pool.pieces += 1
            found = piece, self.pool.pieces, ray.put(bytes(piece))
            self._commons.append(found)
        _, number, reference = found
        if number not in actor.received:
            current = {entry[1] for entry in self._commons}
            actor.handle.receive.options(num_returns=0).remote(number, reference, current)
            actor.received = (actor.received & current) | {number}
        return number

    # Results.

    def _collect(self, reference: Any) -> Sequence[TaskOutcome]:
        """Return the outcomes of a group, if the reference is that of one and its actor lives."""
        actor = next((each for each in self.pool.actors if reference in each.awaited), None)
        if actor is None:  # lost a moment ago
            return []
        if reference == actor.begun:
            self.pool.settle(actor)
            return []
        try:
            results: list[ResultParcel] = get(reference)
        except LOST as error:
            return self._repeat(actor, error)
        group = actor.sent.pop(reference)
        for client_task, result in zip(group, results, strict=True):
            self.dealer.measured(client_task, result.seconds)
        return [TaskOutcome(task, unpacked_result(each)) for task, each in zip(group, results, strict=True)]

    def _repeat(self, actor: Actor, error: BaseException) -> list[TaskOutcome]:
        """Put the tasks of a lost actor back, one by one; fail those that were running in too many lost actors."""
        groups = list(actor.sent.values())
        actor.sent.clear()
        self.pool.lose(actor, error)
        outcomes = []
        for number, group in enumerate(groups):
            self.pool.repeated += len(group)
            for client_task in group:
                client = client_task.clock.client
                self._deaths[client] += number == 0  # an actor runs its groups in order, so only the first was running
                if self._deaths[client] < DEADLY:
                    self._again.append([client_task])
                else:
                    reason = f"{DEADLY} actors died while they ran its task; the last one: {first_line(error)}"
                    outcomes.append(TaskOutcome(client_task, Failure(reason)))
        return outcomes
