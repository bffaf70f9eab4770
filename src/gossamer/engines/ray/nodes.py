"""A Ray cluster: connecting to it, how many actors its nodes hold, and what is raised when something is lost."""

import logging
import os
import socket
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.core.chunks import cores
from gossamer.core.errors import ConfigError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else ray.init warns of a future change
import ray  # after the variables that it reads
from ray._private import services
from ray.exceptions import (
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

PROCESS = 500_000_000
"""Bytes of an actor's process beside its training: Python, torch and buffers."""

ANSWER = 5.0
"""Seconds within which a head node must answer."""

LOCAL = "local"

POLL = 5.0
"""Seconds between two looks at the nodes of the cluster."""

PATIENCE = 120.0
"""Seconds after which a run without any actor ends."""


class ShortOfMemoryError(Exception):
    """An actor could not allocate memory for a task."""


class ClusterWarning(UserWarning):
    """Nodes hold fewer actors than they have cores, differ from each other, or an actor ran out of memory."""


MEMORY = (OutOfMemoryError, ShortOfMemoryError)
"""What is raised for an actor that ran out of memory."""

LOST = (*MEMORY, RayActorError, ActorUnschedulableError, NodeDiedError, ObjectLostError, WorkerCrashedError)
"""What is raised for tasks of an actor that died, and for results that were lost with their node."""


class Need(NamedTuple):
    """What the actors of a run need.

    Args:
        gpu: whether they train on a GPU
        actors: the number of actors on each node; none means one per core or GPU
        memory: the bytes of one actor
        samples: the bytes of the samples in each node's object store
    """

    gpu: bool
    actors: int | None
    memory: int
    samples: int


class Node(NamedTuple):
    """A machine of the cluster.

    Args:
        id: Ray's number of it
        host: its address
        cores: its number of cores for Ray
        gpus: its number of GPUs for Ray
        memory: the bytes that its actors can use
        store: the bytes of its object store
    """

    id: str
    host: str
    cores: float
    gpus: float
    memory: float
    store: float

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Node":
        """Return the node of an entry of ``ray.nodes()``."""
        has = entry["Resources"]
        figures = (has.get(name, 0.0) for name in ("CPU", "GPU", "memory", "object_store_memory"))
        return cls(entry["NodeID"], entry["NodeManagerAddress"], *figures)

    def wanted(self, need: Need) -> int:
        """Return the number of actors that its cores or GPUs allow."""
        units = int(self.gpus if need.gpu else self.cores)
        if need.actors is None or not units:
            return units
        return need.actors if need.gpu else min(need.actors, units)

    def seats(self, need: Need) -> int:
        """Return the number of actors that it holds."""
        fitting = int(self.memory // need.memory) if self.store >= need.samples else 0
        return min(self.wanted(need), fitting)

    def share(self, need: Need) -> dict[str, float]:
        """Return the share of the node that an actor reserves."""
        return {"num_cpus": 0, "num_gpus": min(1.0, self.gpus / self.wanted(need))} if need.gpu else {"num_cpus": 1}

    def describe(self) -> str:
        """Return the figures of the node."""
        gpus = f", {self.gpus:g} GPUs" if self.gpus else ""
        memory = f"{size(self.memory)} of memory and {size(self.store)} of object store"
        return f"{self.host} with {self.cores:g} cores{gpus}, {memory}"


def connect(cluster: str) -> bool:
    """Connect to a cluster, or start Ray here; return whether this made the connection, and must end it.

    A process that is connected already keeps its connection.
    """
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR}
    if cluster == LOCAL:
        quiet |= {"num_cpus": cores(), "include_dashboard": False}
    try:
        _reach(cluster)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray leaves files open
            ray.init(address=cluster, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"cluster {cluster}: {_advice(cluster)} ({text})") from error
    return True


def disconnect() -> None:
    """End the connection, and Ray if it was started for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray leaves files open
        ray.shutdown()


def import_from(path: Sequence[str]) -> None:
    """On a node: import modules of user files from the folders of the driver, too."""
    sys.path += [entry for entry in path if entry not in sys.path]


def _reach(cluster: str) -> None:
    """Raise if nothing answers at an address; Ray would wait for minutes."""
    known = services.get_ray_address_from_environment(cluster, None) if cluster == "auto" else cluster
    host, colon, port = (known or "").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()


def _advice(cluster: str) -> str:
    if cluster == LOCAL:
        return "Ray does not start on this machine"
    if cluster == "auto":
        return "this machine belongs to no Ray cluster: run `ray start --head` first, or use the cluster local"
    start = f"run `ray start --head --port {cluster.rpartition(':')[2]}` on its head node"
    return f"no Ray cluster answers there: {start}, and `ray start --address {cluster}` on this machine"


def alive() -> list[Node]:
    """Return the living nodes of the cluster."""
    return [Node.of(entry) for entry in ray.nodes() if entry["Alive"]]


def check(nodes: Sequence[Node], need: Need) -> None:
    """Refuse a cluster whose nodes hold no actor, with the figures."""
    if any(node.seats(need) for node in nodes):
        return
    unit = "a GPU" if need.gpu else "a core"
    one = f"an actor needs {unit}, {size(need.memory)} of memory and {size(need.samples)} of object store"
    found = "; ".join(node.describe() for node in nodes)
    way_out = "add larger nodes, or start Ray with other --num-cpus, --memory or --object-store-memory"
    raise ConfigError(f"the cluster cannot hold the task: {one}, and it has {found}: {way_out}")


def size(number: float) -> str:
    """Return a number of bytes in words."""
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


def get(reference: Any) -> Any:
    """Return the value of a reference; an error that was raised in an actor is raised here."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from error


def warn(text: str) -> None:
    """Show a warning about the cluster."""
    warnings.warn(text, ClusterWarning, stacklevel=2)


def first_line(error: BaseException) -> str:
    """Return the first statement of an error; Ray adds tables to it."""
    return str(error).partition("\n")[0].partition(";")[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an error: that of a traceback names the error."""
    return str(error).strip().rpartition("\n")[2]
