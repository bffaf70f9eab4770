"""Choose an executor by measuring a few steps of each on one client of the first round.

On a CPU, runs of a few seconds use ``one-by-one`` or ``side-by-side``, whichever is faster. Both give the same bits, so
the result does not depend on the measurement. Longer runs may also use executors whose results differ in rounding:

- ``compiled``, if it is clearly faster. If the program is kept from an earlier run, it is ready at once; otherwise the
  compiler runs only if the run is long enough.
- ``threaded``, for long steps and for fewer clients than cores. It is measured in turns with the best of the others.
  Where it takes part, any gain above the noise of the measurement counts.
- ``stacked`` saves the overhead of each operation, but needs more memory. So it is tried only in long runs with short
  steps if compilation does not win.

An actor of a cluster has one core, so it compares ``one-by-one``, ``compiled`` and ``stacked`` by the same rules.

On a GPU short runs use ``one-by-one`` or ``stacked``, longer ones ``captured``. The run folder records the choice.
"""

import ctypes
import gc
import math
import time
import warnings
from collections.abc import Callable, Iterable
from statistics import median
from typing import NamedTuple

from gossamer.core.chunks import cores
from gossamer.core.errors import ConfigError
from gossamer.engines.client import Client, ClientTask, Failure
from gossamer.engines.executors.base import Compiling, Executor, OnCores, OneByOne, Threaded, threads
from gossamer.engines.executors.captured import Captured
from gossamer.engines.executors.compiled import CompiledOneByOne, CompiledSideBySide
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import Stacked, TrainedAloneWarning, refuse_eager

ENOUGH = 0.4
"""Approximate seconds per measured executor."""
PATIENCE = 0.6
"""Seconds after which no measurement of an executor is repeated: other processes may use the cores."""
TIMES = 4
"""Number of measurements."""
SHORT = 5.0
"""Seconds above which a run may change its rounding to be faster, with a program that is kept."""
LONG = 30.0
"""Seconds above which a run may wait for a compiler: 12 s for a small network, once."""
LONG_ON_GPU = 60.0
SHORT_STEP = 0.02
"""Seconds per step above which stacking gains nothing, and several threads may."""
CLEARLY = 1.2
"""Speed-up that justifies different rounding."""
BARELY = 1.05
"""Speed-up above the noise of a measurement."""
HOPELESS = 2.0
"""Ratio of times of a first step above which no more steps are compared."""


class Choice(NamedTuple):
    """A prepared executor, with the client steps per second of each candidate.

    Args:
        name: its name
        executor: the executor
        rates: client steps per second of each candidate
        left_out: executors that cannot train the network, and the reasons
    """

    name: str
    executor: Executor
    rates: dict[str, float]
    left_out: dict[str, str]


def choose(client: Client, client_task: ClientTask, client_tasks: int, rounds: int) -> Choice:
    """Return the fastest executor for ``rounds`` rounds of ``client_tasks`` tasks like ``client_task``."""
    return _raced(Race(client, client_task, client_tasks), rounds, _enter_on_cpu)


def choose_on_actor(client: Client, client_task: ClientTask, client_tasks: int, rounds: int) -> Choice:
    """Return the fastest executor for a process with one thread, or with a share of a GPU."""
    return _raced(Race(client, client_task, client_tasks), rounds, _enter_on_one_core)


def _raced(race: "Race", rounds: int, enter_on_cpu: "Callable[[Race, int], None]") -> Choice:
    enter = _enter_on_gpu if race.client.objective.device.type == "cuda" else enter_on_cpu
    enter(race, rounds)
    return race.won()


def _enter_on_gpu(race: "Race", rounds: int) -> None:
    stackable = race.allows(("stacked", "captured")) and race.client_tasks > 1
    race.enter("one-by-one", OneByOne)
    if stackable:
        race.enter("stacked", Stacked)
    if stackable and race.seconds(rounds) > LONG_ON_GPU:
        race.enter("captured", Captured)


def _enter_on_cpu(race: "Race", rounds: int) -> None:
    compilable, several = race.allows(("stacked", "compiled")), race.client_tasks > 1
    race.enter("one-by-one", OneByOne)
    if several:
        race.enter("side-by-side", SideBySide, clearly=1.0)
    seconds = race.seconds(rounds)
    if seconds <= SHORT:
        return
    long, short_steps = seconds > LONG, race.rates["one-by-one"] * SHORT_STEP > 1
    threaded = cores() > 1 and (not short_steps or race.client_tasks < cores())
    if compilable:
        race.enter("compiled", CompiledSideBySide, clearly=BARELY if threaded else CLEARLY, only_kept=not long)
    if threaded:
        race.challenge("threaded", Threaded)
    if long and several and compilable and short_steps and race.leader != "compiled":
        race.enter("stacked", Stacked)


def _enter_on_one_core(race: "Race", rounds: int) -> None:
    race.enter("one-by-one", OneByOne)
    seconds, short_steps = race.seconds(rounds), race.rates["one-by-one"] * SHORT_STEP > 1
    if seconds > SHORT and race.allows(("stacked", "compiled")):
        race.enter("compiled", CompiledOneByOne, only_kept=seconds <= LONG)
        if seconds > LONG and race.client_tasks > 1 and short_steps and race.leader != "compiled":
            race.enter("stacked", Stacked)


class Race:
    """Measures candidates one after the other; the fastest so far stays prepared."""

    def __init__(self, client: Client, client_task: ClientTask, client_tasks: int) -> None:
        self.client, self.client_task, self.client_tasks = client, client_task, client_tasks
        self.steps = len(client.exchange.solver.plan(len(client_task.samples), client_task.key))
        objective = client.objective
        self.by_processor = objective.device.type == "cpu" and not objective.samples.lazy
        self.rates: dict[str, float] = {}
        self.left_out: dict[str, str] = {}
        self.best: tuple[str, Executor] | None = None

    def allows(self, names: Iterable[str]) -> bool:
        """Return whether these executors can run the steps; if not, note the reason."""
        try:
            refuse_eager(self.client)
        except ConfigError as error:
            self.left_out |= dict.fromkeys(names, str(error))
        return not self.left_out

    def enter(
        self, name: str, make: Callable[[Client], Executor], clearly: float = CLEARLY, only_kept: bool = False
    ) -> None:
        """Measure one more executor; it wins if it is ``clearly`` times faster than the best so far.

        With ``only_kept`` it takes part only if its program is kept from an earlier run.
        """
        executor = make(self.client)
        try:
            with threads(executor.threads), warnings.catch_warnings():
                warnings.simplefilter("error", TrainedAloneWarning)
                if only_kept and not (isinstance(executor, Compiling) and executor.is_kept(self.client_task)):
                    return
                self._rest()
                executor.prepare(self.client_task, self.client_tasks)
                self.rates[name] = self._watch(executor).rate(self.steps, self.by_processor)
        except (ConfigError, TrainedAloneWarning) as error:  # the network cannot be compiled or stacked
            self.rates[name], self.left_out[name] = 0.0, str(error).partition(". ")[0]
        self._rank(name, executor, clearly)

    def challenge(self, name: str, make: Callable[[Client], Executor]) -> None:
        """Measure one more executor in turns with the best so far; it wins if it is faster by more than noise.

        This is for executors whose processor time says nothing about their speed. Both are compared by wall-clock time.
        The new rate is the best so far times the speed-up, so that all rates are those of a machine without other load.
        """
        assert self.best is not None
        leader, known, executor = *self.best, make(self.client)
        self.rates[name] = self.rates[leader] * speed_up(self._watch(executor), self._watch(known), self.steps)
        self._rank(name, executor, BARELY)
        if self.leader == name:
            known.close()

    def _watch(self, executor: Executor) -> "Stopwatch":
        return Stopwatch(executor, self.client_task, self.client_tasks)

    def _rank(self, name: str, executor: Executor, clearly: float) -> None:
        """Keep the executor if it is ``clearly`` times faster than the best so far; otherwise close it."""
        if self.best is None or self.rates[name] > clearly * self.rates[self.leader]:
            self.best = name, executor
        else:
            executor.close()

    def _rest(self) -> None:
        """Stop the workers of the best executor so far, which are started again on demand."""
        if self.best is not None:
            self.best[1].close()
            self.client.objective.samples.close()
            release()  # what is not in use now would be copied to the workers of the next executor

    @property
    def leader(self) -> str:
        """Name of the fastest executor so far."""
        assert self.best is not None
        return self.best[0]

    def seconds(self, rounds: int) -> float:
        """Return the estimated duration of the run with the fastest executor so far."""
        return rounds * self.client_tasks * self.steps / (self.rates[self.leader] or 1.0)

    def won(self) -> Choice:
        """Return the fastest executor."""
        assert self.best is not None
        if self.leader != list(self.rates)[-1]:  # else its workers are running, and share the memory of this process
            release()
        return Choice(*self.best, self.rates, self.left_out)


def release() -> None:
    """Return memory of the slower executors to the system, if the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def speed_up(new: "Stopwatch", known: "Stopwatch", steps: int) -> float:
    """Return how many times as fast the first of two executors is, by wall-clock time; 0 if a client fails.

    They take turns, so that other processes slow both of them. The medians count, not the fastest turns: several
    threads that wait for each other are slow on a busy machine, and would be so during the run.
    """
    begin, first = time.perf_counter(), (known.turn(1), new.turn(1))  # starts workers and fills caches
    few, found = int(min(steps, max(2, ENOUGH / TIMES / max(first)))), list[float]()
    worthwhile = max(first) < ENOUGH and first[1] < HOPELESS * first[0]
    while worthwhile and len(found) < TIMES and (not found or time.perf_counter() - begin < PATIENCE):
        found.append(known.turn(few) / new.turn(few))
    gain = median(found or [first[0] / first[1]])
    return gain if math.isfinite(gain) else 0.0


class Stopwatch(NamedTuple):
    """Measures an executor on tasks like one.

    Executors with one thread per core are compared by processor time, which other processes of the machine hardly
    change. Others, and those that wait for a GPU or for files, are compared by wall-clock time.

    Args:
        executor: the executor
        client_task: the task
        client_tasks: the number of tasks of a round
    """

    executor: Executor
    client_task: ClientTask
    client_tasks: int

    @property
    def at_once(self) -> int:
        """The number of clients that are measured at the same time."""
        return min(self.client_tasks, self.executor.size)

    @property
    def clients(self) -> float:
        """The number of clients that train at the same time, on average: the last ones of a round leave cores idle."""
        if not isinstance(self.executor, OnCores):
            return self.at_once
        return self.client_tasks / math.ceil(self.client_tasks / self.at_once)

    def rate(self, steps: int, by_processor: bool) -> float:
        """Return client steps per second; 0 if the client fails.

        A few steps determine how many more to measure. The fastest of several short measurements counts, because other
        processes can only slow them down.
        """
        begin = time.perf_counter()
        first = self.seconds(1, by_processor)  # starts workers and fills caches
        two = 1 if first > ENOUGH else min(steps, 2)
        taken = self.seconds(two, by_processor) / two
        if two * taken > ENOUGH / 2:
            return self.clients / taken
        few = int(min(steps, max(2, ENOUGH / TIMES / taken)))
        found = [few * taken]
        while len(found) < TIMES and time.perf_counter() - begin < PATIENCE:
            found.append(self.seconds(few, by_processor))
        return self.clients * few / min(found)

    def turn(self, steps: int) -> float:
        """Return the wall-clock time of a client step, from this number of steps of all clients."""
        with threads(self.executor.threads):
            return self.seconds(steps, by_processor=False) / (steps * self.clients)

    def seconds(self, steps: int, by_processor: bool) -> float:
        """Return the time of this number of steps of all clients; infinity if one fails."""
        executor = self.executor
        if not (by_processor and isinstance(executor, OnCores)):
            return self._timed(time.perf_counter, steps)
        begin = time.process_time()
        whole = self._timed(executor.processor_seconds, steps) / self.at_once
        return max(whole, time.process_time() - begin)  # this process serves all workers

    def _timed(self, clock: Callable[[], float], steps: int) -> float:
        begin = clock()
        done = list(self.executor.run([self.client_task._replace(limit=steps)] * self.at_once))
        failed = any(isinstance(d.result, Failure) for d in done)
        return math.inf if failed else clock() - begin
