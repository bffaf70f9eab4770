"""Jobs on a Ray cluster: whole runs, each in a process of its own on its share of one node's cores and GPUs.

The runs of a sweep do not depend on each other, so a node trains each of them alone, as on one machine. A job writes to
its own folder. So the folder of the sweep must be on a disk that all nodes share, under the same path: nodes that do
not see it are named. A job whose node or process dies is started again elsewhere, and continues from its folder.

Each node has places, with numbered cores. A job runs as a Ray task on a free place, in a process that is kept to these
cores. Ray gives it its GPUs. The task ends with the driver, and the process with the task.
"""

import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayTaskError, TaskCancelledError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gossamer.core import files
from gossamer.core.errors import ConfigError, RunError
from gossamer.engines.ray import nodes
from gossamer.engines.ray.nodes import LOST, PATIENCE, POLL, Node, first_line, import_from, warn
from gossamer.runs.jobs import GRACE, Ended, Job, Local

DEADLY = 3
"""Number of processes or nodes that may die with a job; then it has failed."""


class Place(NamedTuple):
    """Where a job runs: a node, and the number of its share of the node."""

    node: Node
    number: int


class OnNodes:
    """Runs jobs on the nodes of a cluster.

    Args:
        cluster: local, auto, or the address of a cluster
        seen: a file that every node must see, with the same content
        jobs: the number of jobs at once; none means one per core, or one per GPU
        on_gpu: whether jobs train on a GPU
    """

    def __init__(self, cluster: str, seen: Path, jobs: int | None = None, on_gpu: bool = False) -> None:
        self._owns = nodes.connect(cluster)
        try:
            self._seen, self._digest = str(seen.resolve()), files.digest_of(seen.read_bytes())
            self._nodes, self._refused, self._looked = list[Node](), set[str](), 0.0
            self._look()
            if not self._nodes:
                raise ConfigError(f"no node of the cluster sees {seen}: put it on a disk that all nodes share")
            cores, gpus = (int(sum(amounts)) for amounts in zip(*((n.cores, n.gpus) for n in self._nodes), strict=True))
            if on_gpu and not gpus:
                raise ConfigError("device cuda: no node of the cluster has a GPU: use cpu")
            self.jobs = jobs or (gpus if on_gpu else cores)
            widest = int(max(node.cores for node in self._nodes))
            self.cores = max(1, min(cores // self.jobs, widest))
            self.gpus = min(1.0, gpus / self.jobs) if on_gpu else 0.0
        except BaseException:
            self._disconnect()
            raise
        self._busy: dict[Any, tuple[Place, Job]] = {}
        self._again: list[Job] = []
        self._deaths: Counter[str] = Counter()
        self._idle_since = time.monotonic()

    def __enter__(self) -> "OnNodes":
        return self

    def __exit__(self, *error: object) -> None:
        """Interrupt the running jobs, wait for them a while, and leave the cluster."""
        self._again.clear()
        for reference in self._busy:
            ray.cancel(reference)
        until = time.monotonic() + GRACE + POLL
        while self._busy and time.monotonic() < until:
            self.wait(until - time.monotonic())
        for reference in self._busy:
            ray.cancel(reference, force=True)
        self._busy.clear()
        self._disconnect()

    @property
    def running(self) -> int:
        """The number of jobs that run, or wait because their node died."""
        return len(self._busy) + len(self._again)

    def accepts(self, job: Job) -> bool:
        """Return whether a place is free."""
        return self.running < self.jobs and self._free(job) is not None

    def submit(self, job: Job) -> None:
        """Start a job."""
        place = self._free(job)
        assert place is not None
        where = NodeAffinitySchedulingStrategy(place.node.id, soft=False)
        task = ray.remote(_run).options(num_cpus=job.cores, num_gpus=job.gpus, scheduling_strategy=where, max_retries=0)
        numbers = range(place.number * job.cores, (place.number + 1) * job.cores)
        self._busy[task.remote(list(sys.path), pickle.dumps(job), list(numbers))] = place, job

    def wait(self, seconds: float) -> list[Ended]:
        """Return the jobs that have ended; start those again whose node died."""
        while self._again and self._free(self._again[0]) is not None:
            self.submit(self._again.pop(0))
        if not self._busy:
            if time.monotonic() - self._idle_since > PATIENCE:
                raise RunError(f"the cluster has had no place for a run for {PATIENCE:.0f} s")
            time.sleep(min(seconds, POLL))
            return []
        self._idle_since = time.monotonic()
        done, _ = ray.wait(list(self._busy), num_returns=1, timeout=seconds)
        return [ended for reference in done for ended in self._collect(reference)]

    def _collect(self, reference: Any) -> Sequence[Ended]:
        place, job = self._busy.pop(reference)
        try:
            return [Ended(job, *ray.get(reference))]
        except TaskCancelledError:
            return [Ended(job, error="it was interrupted")]
        except RayTaskError as error:
            return [Ended(job, error=repr(error.cause))]
        except TaskUnschedulableError:  # the node died, and the job has not started
            self._refused.add(place.node.id)
            self._looked = 0.0
            self._again.append(job)
            return []
        except LOST as error:
            self._looked = 0.0
            self._deaths[job.name] += 1
            if self._deaths[job.name] < DEADLY:
                warn(f"{job.name} was lost on {place.node.host} and is started again: {first_line(error)}")
                self._again.append(job)
                return []
            return [Ended(job, error=f"{DEADLY} processes died with it; the last one: {first_line(error)}")]

    def _free(self, job: Job) -> Place | None:
        """Return a free place for a job, on the node that has the fewest jobs."""
        self._look()
        taken: dict[str, set[int]] = {node.id: set() for node in self._nodes}
        for place, _ in self._busy.values():
            taken.get(place.node.id, set()).add(place.number)
        for node in sorted(self._nodes, key=lambda node: len(taken[node.id])):
            held = int(node.cores // job.cores)
            held = min(held, int(node.gpus / job.gpus + 1e-9)) if job.gpus else held
            if free := set(range(held)) - taken[node.id]:
                return Place(node, min(free))
        return None

    def _look(self) -> None:
        """Note which nodes there are, if the last look was some time ago; nodes without the file are named once."""
        if time.monotonic() - self._looked < POLL:
            return
        self._looked = time.monotonic()
        known = {node.id for node in self._nodes}
        found = [node for node in nodes.alive() if node.cores and node.id not in self._refused]
        asked = {}
        for node in found:
            if node.id not in known:
                where = NodeAffinitySchedulingStrategy(node.id, soft=False)
                task = ray.remote(_sees).options(num_cpus=0, scheduling_strategy=where, max_retries=0)
                asked[node.id] = task.remote(list(sys.path), self._seen, self._digest)
        for node in found:
            if node.id in asked and not _answer(asked[node.id]):
                self._refused.add(node.id)
                warn(f"{node.host} does not see {self._seen} and is not used: put it on a disk that all nodes share")
        self._nodes = [node for node in found if node.id not in self._refused]

    def _disconnect(self) -> None:
        if self._owns:
            self._owns = False
            nodes.disconnect()


def _answer(reference: Any) -> bool:
    """Return what a node says; a node that died says no."""
    try:
        return bool(ray.get(reference))
    except LOST:
        return False


def _sees(path: Sequence[str], file: str, digest: str) -> bool:
    """On a node: return whether a file is there, with this content."""
    import_from(path)
    return Path(file).is_file() and files.digest_of(Path(file).read_bytes()) == digest


def _run(path: Sequence[str], pickled: bytes, numbers: Sequence[int]) -> tuple[Any, str | None]:
    """On a node: run a job in a process on some of the cores; return its value, and why it failed."""
    import_from(path)
    job: Job = pickle.loads(pickled)  # its function may be one of a module on this path
    mine = sorted(os.sched_getaffinity(0))
    with Local(1, cores=[mine[number % len(mine)] for number in numbers]) as launcher:
        launcher.submit(job)
        while not (ended := launcher.wait(1.0)):
            pass
    return ended[0].value, ended[0].error
