"""What a server is: a running sum over arrivals, and what becomes of it at the end of the round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.types import Clock, Layout, Params, Part, State


@dataclass(frozen=True, eq=False)
class Arrival:
    """One client's change on the part that it holds, still in its message, and how much it weighs.

    ``add(vector, weight)`` adds ``weight`` times the change, laid out by ``layout``, to a vector: a codec can do that
    in one pass. Whoever needs the change itself asks for it.
    """

    client: int
    part: Part
    layout: Layout
    weight: float
    add: Callable[[Tensor, float], None]

    @classmethod
    def of(cls, client: int, part: Part, change: Params, weight: float) -> "Arrival":
        """An arrival of which the change is known."""
        layout = Layout.of(change)
        vector = layout.flatten(change)

        def add(acc: Tensor, times: float) -> None:
            acc.add_(vector * times)

        return cls(client, part, layout, weight, add)

    def change(self, device: torch.device) -> Params:
        """The change, decoded."""
        vector = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=device)
        self.add(vector, 1.0)
        return self.layout.unflatten(vector)


class Server(Protocol):
    """Folds arrivals into one accumulator, in client order, and makes the next model of it."""

    def init(self, params: Params) -> State:
        """What the server holds before the first round."""
        ...

    def model(self, state: State) -> Params:
        """The global model."""
        ...

    def weigh(self, samples: int, batches: int) -> float:
        """How much a client with so many samples counts; worked out by the client and sent along."""
        ...

    def empty(self, state: State) -> Any:
        """The accumulator before the first arrival."""
        ...

    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """The accumulator with one more arrival in it; may reuse ``acc``."""
        ...

    def finish(self, state: State, acc: Any, clock: Clock) -> State:
        """What the server holds after the round; with no arrivals, what it held before."""
        ...
