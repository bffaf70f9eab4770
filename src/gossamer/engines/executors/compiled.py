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
from gossamer.engines.client import Client, ClientTask, Failure, TaskOutcome, mean, step
from gossamer.engines.executors.program import Program, compile_on_gpu, reset_compiler
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import CHUNK, Stacked, kind, refuse_random
from gossamer.engines.executors.steps import in_place, pure_step, tensors
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.random_layers import Recorded, Size


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
            return stepped(nest["start"], nest["carry"], nest["context"], nest["feed"], nest["hyperparams"])

        self.program = Program(take)

    def prepare(self, client_task: ClientTask) -> None:
        """Compile for the batch size of this task's first batch."""
        self.size = len(self.exchange.solver.plan(len(client_task.samples), client_task.key)[0])
        check(self.do(client_task._replace(limit=1)))

    def train(self, client_task: ClientTask, job: Job) -> Trained:
        """Run all local steps, with the program for full batches."""
        objective, batches = self.objective, self.batches(client_task)
        start, carry, context = self.begin(job, len(batches))
        carry, losses, shapes = tree.clone(carry), [], kind(job)
        hyperparams = tensors(self.exchange.solver.hyperparams(job.clock), objective)
        nest = {"start": start, "carry": carry, "context": context, "hyperparams": hyperparams}
        with torch.no_grad():
            for size, feed in zip(batches.sizes, batches, strict=True):
                if size == self.size:
                    objective.train_mode(alone=size == 1)
                    kinds = (shapes, tree.shape(feed)) if objective.samples.lazy else shapes  # else equal in size
                    losses.append(self._program_step(kinds, {**nest, "feed": feed}))
                else:
                    losses.append(self._odd_step(start, carry, context, *objective.open(feed), hyperparams))
        return self.finish(client_task, job, batches, carry, mean(losses))

    def _program_step(self, shapes: Any, nest: State) -> Tensor:
        """Run the program. Numbers of random layers are drawn before, because that is faster than in the program.

        A step in eager mode finds how many numbers there are. Its loss must be that of the first compiled step.
        """
        if "random" not in nest["context"]:
            return self.program(shapes, nest)
        key, index = nest["context"]["random"]["key"], nest["carry"]["step_index"]
        wanted = None if shapes in self.draws else self._try(shapes, nest)
        ahead = {"key": key, "ahead": draws_ahead(key, index, self.draws[shapes])}
        loss = self.program(shapes, {**nest, "context": {**nest["context"], "random": ahead}})
        if wanted is not None and not torch.allclose(loss, wanted, rtol=1e-3, equal_nan=True):
            raise ConfigError(f"the network draws other random numbers if compiled: its loss is {loss}, not {wanted}")
        return loss

    def _try(self, shapes: Any, nest: State) -> Tensor:
        """Run a step in eager mode; store the sizes of its draws and return the loss."""
        context, carry = nest["context"], nest["carry"]
        numbers = Recorded(context["random"]["key"], carry["step_index"])
        (x, y), labels = self.objective.open(nest["feed"]), context.get("labels")

        def evaluate(at: Params) -> tuple[Tensor, Params, Params]:
            return self.objective.gradient(at, x, y, labels, numbers=numbers)

        with torch.enable_grad():
            _, loss = step(self, self.objective.trained, evaluate, nest["start"], carry, context, nest["hyperparams"])
        self.draws[shapes] = numbers.sizes
        return loss

    def _odd_step(
        self, start: Params, carry: State, context: State, x: Nest, y: Tensor, hyperparams: Hyperparams
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
        self.step = torch.compile(self.step, fullgraph=True, dynamic=False, backend=compile_on_gpu)

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
