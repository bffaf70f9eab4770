"""Simulated runs in which devices keep their own state, and read the bytes of each download."""

from collections.abc import Iterator
from typing import Any

from gossamer import Method, Options, Task
from gossamer.core import tree
from gossamer.core.exchange import GLOBAL, Sections
from gossamer.core.types import Params, State
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.testing import tiny_task

TASK = tiny_task(6)


class Watched(Simulation):
    """A simulation with devices that keep their own state, as in a deployment, and read the bytes of each download."""

    def __init__(self, method: Method, task: Task, options: Options) -> None:
        super().__init__(method, task, options)
        self.devices: dict[int, State] = {}
        self.starts: list[tuple[Params, Params]] = []
        self.sections: list[tuple[Sections, Sections]] = []

    def client_tasks(self, stage: Stage, *rest: Any) -> Iterator[Any]:
        for client_task in super().client_tasks(stage, *rest):
            client, data = client_task.clock.client, bytes(client_task.data)
            device = self.devices.get(client, {})
            job = stage.exchange.read_download(data, device, client_task.clock, client_task.key)
            self.devices[client] = {"held": job.state["held"]}
            (model,) = stage.exchange.down.models(self.server, (self.server["params"],))
            self.starts.append((job.models[0], model))
            self.sections.append((job.sections, stage.exchange.server.download(self.server, GLOBAL).sections))
            yield client_task


def watched(method: Method, task: Task = TASK, cut: int | None = None, **options: Any) -> Watched:
    """Run a method. Before round ``cut``, the run is resumed from its checkpoint."""
    asked = Options(**{"rounds": 5, "eval_every": 99, "executor": "one-by-one", **options})
    run = Watched(method, task, asked)
    for number in range(asked.rounds):
        if number == cut:
            before, run = run, Watched(method, task, asked)
            run.recall(tree.unflatten(tree.clone(tree.flatten(before.checkpoint()))))
            run.metrics, run.clients = before.metrics, before.clients
            run.devices, run.starts, run.sections = before.devices, before.starts, before.sections
        run.round(number, None)
    run.close()
    return run
