"""A run on a Ray cluster: here all cores of this machine, with the bytes of a run without Ray.

    python examples/on_a_cluster.py [--cluster local|auto|HOST:PORT] [--actors N]

Needs the extra ``ray``. On a machine of a cluster, ``--cluster auto`` uses all nodes of it; see docs/cluster.md.
"""

import argparse
from collections.abc import Sequence

import torch

from gossamer import Task, fedavg, simulate


def main(words: Sequence[str] | None = None) -> None:
    """Train on a cluster and on this machine alone, and compare the models."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--actors", type=int)
    asked = parser.parse_args(words)
    method, task = fedavg(epochs=2), Task.named("digits", clients=20)
    result = simulate(method, task, rounds=3, cluster=asked.cluster, actors=asked.actors)
    for record in result.metrics:
        print(f"round {record['round']}: accuracy {record['accuracy']:.3f}, {record['cluster']}")
    alone = simulate(method, task, rounds=3).model.state_dict()
    same = all(torch.equal(alone[name], tensor) for name, tensor in result.model.state_dict().items())
    print("the same bits as on one machine:", same)


if __name__ == "__main__":
    main()
