"""Choosing an executor by measuring: a few steps with each, on one client of the first round.

On a CPU a run that takes no longer than a coffee is done one by one or side by side, whichever is faster: these two
give the same bits, so a run does not depend on how the measuring went. A longer one may also be stacked or compiled,
if that is clearly faster: the result then differs in rounding. A compiler is waited for only where it is repaid, and
stacking, which takes more memory, is tried only where compiling does not pay and steps are short: it spares what each
operation costs to begin. On a GPU short runs are done one by one or stacked, longer ones captured. What was chosen is
kept with the run.
"""

import ctypes
import gc
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from gossamer.core.errors import ConfigError
from gossamer.engines.client import Client, ClientTask, Failure
from gossamer.engines.executors.base import Executor, OneByOne, threads
from gossamer.engines.executors.captured import Captured
from gossamer.engines.executors.compiled import compiled
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import Stacked

AT_ONCE = 8
"""Clients that are measured together."""
ENOUGH = 0.6
"""Seconds that an executor is measured for, about."""
TIMES = 4
"""So many times, of which the fastest counts."""
LONG = 120.0
"""From so many seconds on, a run may change its rounding to be faster, and wait for a compiler."""
LONG_ON_GPU = 60.0
SHORT_STEP = 0.02
"""Seconds; nothing is gained by stacking clients whose steps take longer."""
CLEARLY = 1.2
"""So many times faster is worth other rounding."""


class Choice(NamedTuple):
    """An executor, ready, with the client steps a second that each candidate made."""

    name: str
    executor: Executor
    rates: dict[str, float]


def choose(client: Client, client_task: ClientTask, client_tasks: int, rounds: int) -> Choice:
    """The fastest executor for ``rounds`` rounds of ``orders`` orders like this one."""
    gpu, several = client.objective.device.type == "cuda", client_tasks > 1
    compilable = not client.objective.random
    stackable = several and compilable
    race = Race(client, client_task, client_tasks)
    race.enter("one-by-one", OneByOne)
    if several and not gpu:
        race.enter("side-by-side", SideBySide, clearly=1.0)
    if stackable and gpu:
        race.enter("stacked", Stacked)
    if race.seconds(rounds) > (LONG_ON_GPU if gpu else LONG):
        if stackable or (compilable and not gpu):
            race.enter(*(("captured", Captured) if gpu else ("compiled", compiled)))
        if stackable and not gpu and race.leader != "compiled" and race.rates["one-by-one"] * SHORT_STEP > 1:
            race.enter("stacked", Stacked)
    release()
    return race.won()


class Race:
    """Candidates, one after the other; the winner so far stays ready."""

    def __init__(self, client: Client, client_task: ClientTask, client_tasks: int) -> None:
        self.client, self.client_task, self.client_tasks = client, client_task, client_tasks
        self.steps = len(client.exchange.solver.plan(len(client_task.samples), client_task.key))
        self.rates: dict[str, float] = {}
        self.best: tuple[str, Executor] | None = None

    def enter(self, name: str, make: Callable[[Client], Executor], clearly: float = CLEARLY) -> None:
        """Measure one more; it wins if it is so many times faster than the best so far, which rests meanwhile."""
        if self.best is not None:
            self.best[1].close()  # its workers would only take memory: they are made again when there is work
        executor = make(self.client)
        try:
            with threads(executor.threads):
                executor.prepare(self.client_task, self.client_tasks)
            self.rates[name] = _rate(executor, self.client_task, self.client_tasks, self.steps)
        except ConfigError:  # the compiler cannot do this network: then this is no candidate
            self.rates[name] = 0.0
        loser: Executor | None = executor
        if self.best is None or self.rates[name] > clearly * self.rates[self.best[0]]:
            loser, self.best = self.best[1] if self.best else None, (name, executor)
        if loser is not None:
            loser.close()

    @property
    def leader(self) -> str:
        """The best so far."""
        assert self.best is not None
        return self.best[0]

    def seconds(self, rounds: int) -> float:
        """How long the run would take with the best so far."""
        return rounds * self.client_tasks * self.steps / (self.rates[self.leader] or 1.0)

    def won(self) -> Choice:
        """The winner, ready."""
        assert self.best is not None
        return Choice(*self.best, self.rates)


def release() -> None:
    """Give memory that the losers took back to the system, where its C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _rate(executor: Executor, client_task: ClientTask, client_tasks: int, steps: int) -> float:
    """Client steps a second; 0 where the client fails. Two steps tell how many can be afforded, or are enough.

    Of several short measurements the fastest counts: what else the machine does can only make them slower.
    """
    many = min(client_tasks, AT_ONCE)
    with threads(executor.threads):
        _seconds(executor, client_task, many, 1)  # the first time, workers are made and caches filled
        two = min(steps, 2)
        taken = _seconds(executor, client_task, many, two) / two
        if two * taken > ENOUGH:
            return many / taken
        few = int(min(steps, max(4, ENOUGH / TIMES / taken)))
        fastest = min(_seconds(executor, client_task, many, few) for _ in range(TIMES))
    return many * few / fastest


def _seconds(executor: Executor, client_task: ClientTask, many: int, steps: int) -> float:
    """How long so many orders of so many steps take; for ever, where the client fails."""
    begin = time.perf_counter()
    done = list(executor.run([client_task._replace(limit=steps)] * many))
    failed = any(isinstance(d.result, Failure) for d in done)
    return math.inf if failed else time.perf_counter() - begin
