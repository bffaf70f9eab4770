"""The whole step (forward, backward, update) as one compiled program.

On a CPU, small networks spend most of their time between operations. A compiled step is a few loops of machine code.
Each core runs the program for one client at a time, as ``side-by-side`` does. On a GPU the program covers a chunk of
clients. Only the step on a full batch is compiled; the smaller last batch of an epoch runs in eager mode.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.jobs import Job, Trained
from gossamer.core.random import draws_ahead
from gossamer.core.solver import Hyperparams
from gossamer.core.types import Params, State
from gossamer.engines.client import BatchSchedule, Client, ClientTask, Failure, TaskOutcome, mean, step
from gossamer.engines.executors.program import Program, reset_compiler
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import CHUNK, Stacked, kind, refuse_random
from gossamer.engines.executors.steps import in_place, pure_step, tensors
from gossamer.tasks.random_layers import Recorded, Size, drawing


def compiled(client: Client) -> "CompiledSideBySide | CompiledStacked":
    """Return one compiled client per core, or compiled chunks on a GPU."""
    return CompiledStacked(client) if client.objective.device.type == "cuda" else CompiledSideBySide(client)


class CompiledClient(Client):
    """A client with a compiled step on full batches, from gathering the batch to the update in place."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.method, client.objective, client.exchange)
        objective = self.objective
        refuse_random(objective)
        self.size: int | None = None
        self.draws: dict[Any, list[Size]] = {}
        reset_compiler()
        stepped = in_place(pure_step(self), objective)

        def take(nest: State) -> Tensor:
            return stepped(
                nest["start"], nest["carry"], nest["context"], nest["rows"], nest.get("draws"), nest["hyperparams"]
            )

        self.program = Program(take)

    def prepare(self, client_task: ClientTask) -> None:
        """Compile for the batch size of this task's first batch."""
        self.size = len(self.exchange.solver.plan(len(client_task.samples), client_task.key)[0])
        check(self.do(client_task._replace(limit=1)))

    def train(self, client_task: ClientTask, job: Job) -> Trained:
        """Run all local steps, with the program for full batches."""
        objective, batches = self.objective, BatchSchedule(self, client_task, job)
        start, carry, context = self.begin(job, len(batches))
        carry, losses, shapes = tree.clone(carry), [], kind(job)
        hyperparams = tensors(self.exchange.solver.hyperparams(job.clock), objective)
        nest = {"start": start, "carry": carry, "context": context, "hyperparams": hyperparams}
        with torch.no_grad():
            for rows, draws in batches:
                if len(rows) == self.size:
                    objective.train_mode(alone=len(rows) == 1)
                    batch = {"rows": rows} if draws is None else {"rows": rows, "draws": draws}
                    losses.append(self.program(shapes, self._with_numbers(shapes, {**nest, **batch})))
                else:
                    losses.append(self._odd_step(start, carry, context, *objective.batch(rows, draws), hyperparams))
        return self.finish(client_task, job, batches, carry, mean(losses))

    def _with_numbers(self, shapes: Any, nest: State) -> State:
        """Add the numbers of random layers: to draw them in the program would take several times as long."""
        if "random" not in nest["context"]:
            return nest
        if shapes not in self.draws:
            self.draws[shapes] = self._recorded(nest)
        key, step = nest["context"]["random"]["key"], nest["carry"]["step_index"]
        ahead = {"key": key, "ahead": draws_ahead(key, step, self.draws[shapes])}
        return {**nest, "context": {**nest["context"], "random": ahead}}

    def _recorded(self, nest: State) -> list[Size]:
        """Run a step to find out how many numbers its layers draw; its result is not used."""
        context, carry = nest["context"], nest["carry"]
        numbers = Recorded(context["random"]["key"], carry["step_index"])
        (x, y), labels = self.objective.batch(nest["rows"], nest.get("draws")), context.get("labels")
        with torch.enable_grad():
            evaluate = drawing(lambda at: self.objective.gradient(at, x, y, labels), numbers)
            step(self, self.objective.trained, evaluate, nest["start"], carry, context, nest["hyperparams"])
        return numbers.sizes

    def _odd_step(
        self, start: Params, carry: State, context: State, x: Tensor, y: Tensor, hyperparams: Hyperparams
    ) -> Tensor:
        with torch.enable_grad():
            new, loss = self.step(start, carry, context, x, y, hyperparams)
        tree.put(carry, ..., new)
        return loss


class CompiledSideBySide(SideBySide):
    """One compiled client per core."""

    def __init__(self, client: Client) -> None:
        self.program = CompiledClient(client)
        super().__init__(self.program)

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Compile before the workers are forked, so that all share the program."""
        self.program.prepare(client_task)


class CompiledStacked(Stacked):
    """Chunks of clients with one compiled program per step."""

    def __init__(self, client: Client, size: int = CHUNK) -> None:
        super().__init__(client, size)
        reset_compiler()
        self.step = torch.compile(self.step, fullgraph=True, dynamic=False)

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Compile for chunks of tasks like this one."""
        self.size = min(self.size, client_tasks)
        for done in self.run([client_task._replace(limit=2)] * self.size):
            check(done)


def check(done: TaskOutcome) -> None:
    """Raise if the step could not be compiled."""
    if isinstance(done.result, Failure):
        problem = " ".join(done.result.reason.splitlines()[:2])
        raise ConfigError(f"the step cannot be compiled, use another executor: {problem}") from done.result.cause
