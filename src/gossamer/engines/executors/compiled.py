"""The whole step, forward, backward and update, as one compiled program.

On a CPU small networks spend their time between operations; compiled, a step is a few loops of machine code. Each core
runs such a program for one client at a time, as side by side does. On a GPU the program is that of a whole chunk. What
is compiled is the step on a full batch; the last, smaller batch of an epoch goes operation by operation.
"""

import torch
from torch import Tensor

from gossamer.engines.client import Client, Done, Mask, Order
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import CHUNK, Stacked
from gossamer.engines.executors.steps import Step, pure_step, tensors
from gossamer.errors import ConfigError
from gossamer.method import Method
from gossamer.objective import Objective
from gossamer.solvers import Now
from gossamer.types import Params, State

STEPS = 5
"""So many steps of an order get a chunk ready: enough for a graph to be captured."""


def compiled(client: Client) -> "CompiledSideBySide | CompiledStacked":
    """One compiled client a core, or on a GPU compiled chunks."""
    return CompiledStacked(client) if client.objective.device.type == "cuda" else CompiledSideBySide(client)


class CompiledClient(Client):
    """A client whose step on a full batch is compiled."""

    def __init__(self, method: Method, objective: Objective) -> None:
        super().__init__(method, objective)
        self.size: int | None = None
        torch.compiler.reset()  # or the programs of earlier runs in this process would count against this one's
        self.program: Step = torch.compile(pure_step(method.solver, objective), fullgraph=True, dynamic=False)

    def prepare(self, order: Order) -> None:
        """Compile for batches as large as the first of this order."""
        self.size = len(self.method.solver.plan(len(order.samples), order.key)[0])
        check(self.do(order._replace(limit=2)))  # twice, because what comes out of a step goes into the next

    def step(self, start: Params, carry: State, keep: Mask, x: Tensor, y: Tensor, now: Now) -> tuple[State, Tensor]:
        """One step, by the program where it fits."""
        if len(x) != self.size:
            return super().step(start, carry, keep, x, y, now)
        self.objective.train_mode(alone=len(x) == 1)
        with torch.no_grad():
            return self.program(start, carry, dict(keep), x, y, tensors(now, self.objective))


class CompiledSideBySide(SideBySide):
    """One compiled client a core."""

    def __init__(self, client: Client) -> None:
        self.program = CompiledClient(client.method, client.objective)
        super().__init__(self.program)

    def prepare(self, order: Order, orders: int) -> None:
        """Compile before the workers are made, so that each of them has the program."""
        self.program.prepare(order)


class CompiledStacked(Stacked):
    """Chunks of clients, each step one compiled program."""

    def __init__(self, client: Client, chunk: int = CHUNK) -> None:
        super().__init__(client, chunk)
        torch.compiler.reset()
        self.plain = self.step
        self.step = torch.compile(self.step, fullgraph=True, dynamic=False)

    def prepare(self, order: Order, orders: int) -> None:
        """Compile for chunks of orders like this one."""
        self.size = min(self.size, orders)
        for done in self.run([order._replace(limit=STEPS)] * self.size):
            check(done)


def check(done: Done) -> None:
    """Say so when the compiler could not do it."""
    if isinstance(done.result, str):
        said = " ".join(done.result.splitlines()[:2])
        raise ConfigError(f"the step cannot be compiled, use another executor: {said}")
