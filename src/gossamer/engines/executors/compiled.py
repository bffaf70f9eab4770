"""The whole step (forward, backward, update) as one compiled program.

On a CPU, small networks spend most of their time between operations. A compiled step is a few loops of machine code.
Each core runs the program for one client at a time, as ``side-by-side`` does. On a GPU the program covers a chunk of
clients. Only the step on a full batch is compiled; the smaller last batch of an epoch runs in eager mode.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.jobs import Job, Trained
from gossamer.core.types import Layout, State
from gossamer.engines.client import Client, ClientTask, Failure, TaskOutcome, at_batch, mean
from gossamer.engines.executors.base import OneByOne
from gossamer.engines.executors.program import Program, kind
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import CHUNK, Stacked, refuse_eager
from gossamer.engines.executors.steps import in_place, tensors
from gossamer.engines.local_step import LocalStep
from gossamer.tasks.random_layers.rules import RULES

PROGRAMS = 64
"""Maximum number of client kinds that a stacked step is compiled for."""


def compiled(client: Client) -> "CompiledSideBySide | CompiledStacked":
    """Return one compiled client per core, or compiled chunks on a GPU."""
    return CompiledStacked(client) if client.objective.device.type == "cuda" else CompiledSideBySide(client)


def compiled_on_actor(client: Client) -> "CompiledOneByOne | CompiledStacked":
    """Return one compiled client in this process, or compiled chunks on a GPU."""
    return CompiledStacked(client) if client.objective.device.type == "cuda" else CompiledOneByOne(client)


class CompiledClient(Client):
    """A client with a compiled step on full batches, from gathering the batch to the update in place."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.method, client.objective, client.exchange, client.adversary)
        refuse_eager(client)
        self.size: int | None = None
        self.programs = dict[Layout, Program]()

    def program(self, job: Job) -> Program:
        """Return the program for clients with tensors like this one's."""
        layout = job.layout.full
        if layout not in self.programs:
            stepped = in_place(torch.enable_grad()(self.local_step(job).eager), self.objective)

            def take(nest: State) -> Tensor:
                return stepped(nest["start"], nest["carry"], nest["context"], nest["feed"], nest["hyperparams"])

            self.programs[layout] = Program(take)
        return self.programs[layout]

    def prepare(self, client_task: ClientTask) -> None:
        """Compile for the batch size of this task's first batch."""
        self.size = len(self.exchange.solver.plan(len(client_task.samples), client_task.key)[0])
        check(self.do(client_task._replace(limit=1)))

    @torch.no_grad()
    def is_kept(self, client_task: ClientTask) -> bool:
        """Return whether the program for the first batch of this task is kept from an earlier run."""
        job, batches = self.read_download(client_task), self.batches(client_task._replace(limit=1))
        nest, feed = self._nest(job, len(batches)), batches.feed(0)
        self.objective.train_mode(alone=batches.sizes[0] == 1)
        return self.program(job).is_kept(self._kind(kind(nest), feed), {**nest, "feed": feed})

    def train(self, client_task: ClientTask, job: Job) -> Trained:
        """Run all local steps, with the program for full batches."""
        objective, batches, losses = self.objective, self.batches(client_task), []
        nest, local = self._nest(job, len(batches)), self.local_step(job)
        program = self.program(job).on(nest)
        with torch.no_grad():
            shapes = kind(nest)
            for size, feed in zip(batches.sizes, batches, strict=True):
                if size == self.size:
                    objective.train_mode(alone=size == 1)
                    losses.append(program(self._kind(shapes, feed), feed))
                else:
                    losses.append(self._odd_step(local, nest, feed))
        return self.finish(client_task, job, batches, nest["carry"], mean(losses))

    def _kind(self, shapes: Any, feed: State) -> Any:
        """Return the kind of a step's arguments, given that of a task's; batches of indices are equal in kind."""
        return (shapes, kind(feed)) if self.objective.samples.lazy else shapes

    def _nest(self, job: Job, steps: int) -> State:
        """Return all tensors of a task but its batches."""
        start, carry, context = self.begin(job, steps)
        hyperparams = tensors(self.exchange.solver.hyperparams(job.clock), self.objective)
        params = carry["params"]  # the program overwrites them, and not the start
        if params.untyped_storage().data_ptr() == start.untyped_storage().data_ptr():
            params = params.clone()
        rest = tree.clone({name: value for name, value in carry.items() if name != "params"})
        return {"start": start, "carry": {"params": params, **rest}, "context": context, "hyperparams": hyperparams}

    def _odd_step(self, local: LocalStep, nest: State, feed: State) -> Tensor:
        context, (x, y) = at_batch(nest["context"], feed), self.objective.open(feed)
        with torch.enable_grad():
            new, loss = local.eager(nest["start"], nest["carry"], context, x, y, nest["hyperparams"])
        tree.put(nest["carry"], ..., new)
        return loss


class WithProgram:
    """An executor of compiled clients."""

    program: CompiledClient

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Compile. If workers are forked, this comes first, so that all share the program."""
        self.program.prepare(client_task)

    def is_kept(self, client_task: ClientTask) -> bool:
        """Return whether the program is kept from an earlier run."""
        return self.program.is_kept(client_task)


class CompiledSideBySide(WithProgram, SideBySide):
    """One compiled client per core."""

    def __init__(self, client: Client) -> None:
        self.program = CompiledClient(client)
        super().__init__(self.program)


class CompiledOneByOne(WithProgram, OneByOne):
    """One compiled client after the other, in this process."""

    def __init__(self, client: Client) -> None:
        self.program = CompiledClient(client)
        super().__init__(self.program)


class CompiledStacked(Stacked):
    """Chunks of clients with one compiled program per step."""

    def __init__(self, client: Client, size: int = CHUNK) -> None:
        super().__init__(client, size)
        reset_compiler()
        self.made = partial(torch.compile, fullgraph=True, dynamic=False, backend=compile_on_gpu)

    def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
        """Compile for chunks of tasks like this one."""
        self.size = min(self.size, client_tasks)
        for done in self.run([client_task._replace(limit=2)] * self.size):
            check(done)


def reset_compiler() -> None:
    """Discard the programs of earlier runs in this process, and raise the limit to one program per client width.

    Recurrent layers are allowed: ``gossamer.tasks.random_layers`` runs them as loops. Its operations are added to those
    that the compiler passes to a mode; some, such as ``torch.rand_like``, would draw from torch's generator instead.
    """
    import torch._dynamo.config as dynamo
    from torch._dynamo.variables.torch import get_overridable_functions

    get_overridable_functions().update(RULES)
    torch.compiler.reset()
    dynamo.allow_rnn = True
    dynamo.recompile_limit = max(dynamo.recompile_limit, PROGRAMS)


def compile_on_gpu(
    module: Any, inputs: Any, options: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., Sequence[Any]]:
    """Compile with inductor, without its advice to enable TF32: the precision of a run is chosen by ``--precision``."""
    from torch._inductor.compile_fx import compile_fx

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores for float32 matrix multiplication available")
        graph: Any = compile_fx(module, inputs, config_patches=dict(options))
    return graph  # type: ignore[no-any-return]


def check(done: TaskOutcome) -> None:
    """Raise if the step could not be compiled."""
    if isinstance(done.result, Failure):
        problem = " ".join(done.result.reason.splitlines()[:2])
        raise ConfigError(f"the step cannot be compiled, use another executor: {problem}") from done.result.cause
