"""The executor over Ray actors: deals tasks, yields outcomes as they come, and repeats what is lost."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import ray

from gossamer.core.wire import Frame
from gossamer.engines.client import ClientTask, Failure, TaskOutcome
from gossamer.engines.executors.auto import Choice
from gossamer.engines.executors.parcels import pack_state
from gossamer.engines.ray.actor import ResultParcel, TaskParcel, unpacked_result
from gossamer.engines.ray.dealer import Dealer
from gossamer.engines.ray.pool import LOST, POLL, Actor, Pool, first_line, get

DEADLY = 3
"""Number of actors that may die while they run a task; then its client fails."""


class OnCluster:
    """Runs the tasks of one exchange on the actors of a pool.

    Args:
        pool: the actors
        exchange: the number of the exchange
        name: the name of the inner executor
    """

    threads: int | None = 1

    def __init__(self, pool: Pool, exchange: int, name: str) -> None:
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


class Cluster(Pool):
    """The actors of a run, and the executors over them."""

    def executor(self, exchange: int, name: str) -> OnCluster:
        """Return the executor of an exchange, given the name of the inner executor."""
        return OnCluster(self, exchange, name)

    def choice(self, client_task: ClientTask, client_tasks: int, rounds: int) -> Choice:
        """Return the fastest inner executor for ``rounds`` rounds of ``client_tasks`` tasks like ``client_task``."""
        name, rates, left_out = self.choose(client_task, client_tasks, rounds)
        self.prepare(name, client_task, client_tasks)
        return Choice(name, self.executor(self.last, name), rates, left_out)


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
            while self._send() or self._sent():
                done = self._wait()
                outcomes = [outcome for reference in done for outcome in self._collect(reference)]
                self.pool.look()
                self._send()  # before the engine folds what came
                yield from outcomes
        finally:
            for actor in self.pool.actors:
                actor.sent.clear()

    def _sent(self) -> bool:
        """Return whether results are outstanding."""
        return any(actor.sent for actor in self.pool.actors)

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
                    self._hand(actor, group)
        return True

    def _hand(self, actor: Actor, group: list[ClientTask]) -> None:
        parcels = [self._parcel(actor, client_task) for client_task in group]
        actor.sent[actor.handle.run.remote(self.executor.exchange, parcels)] = group

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
