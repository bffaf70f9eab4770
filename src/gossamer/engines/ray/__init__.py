"""Simulation on a Ray cluster: the clients of a round train in Ray actors on several cores, GPUs and machines.

Ray starts the processes, moves the objects and notices what dies. This package is the only one that imports it.

- ``nodes`` connects to a cluster, or starts Ray on this machine, and says how many actors each node holds. An actor has
  one core, or a share of a GPU.
- ``actor`` runs in each actor: it binds the method once and trains its tasks with an inner executor on one thread. Its
  ``Blueprint`` is what an actor needs to build its own ``Client``: method, task, key and samples. It is put into the
  object store once. Each node gets one copy, and its actors read the samples from it without copying them.
- ``cluster`` keeps the actors of a run. It starts one where a place is free, on nodes that join later too, replaces
  actors that died, and gives a node fewer actors if one runs out of memory. ``OnCluster`` is the ``Executor`` of the
  simulator. It sends groups to idle actors and yields outcomes as they come. The engine folds them in client order. The
  common piece of the downloads is put into the object store once.
- ``dealer`` cuts the tasks of a round into groups, the longest first by the seconds that each client took before.
- ``jobs`` runs whole runs of a sweep on the nodes.

The server state, the client states and the run folder stay with the driver, as in a run on one machine. A task holds
its client's state and is a pure function of it, so a task whose actor or node died is repeated elsewhere and gives the
same bytes. A task that was running in ``DEADLY`` actors that died fails its client, with the reason. All actors belong
to the driver's job, so they end with it, however it ends.
"""

from gossamer.engines.ray.cluster import Cluster, OnCluster
from gossamer.engines.ray.nodes import ClusterWarning

__all__ = ["Cluster", "ClusterWarning", "OnCluster"]
