"""What a server is: a running sum over arrivals, and what becomes of it at the end of the round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from gossamer.random import Key
from gossamer.types import Clock, Layout, Params, Part, State

T = TypeVar("T")


class Place(NamedTuple):
    """Whose model a client trains, and what its loss is multiplied by; with 0 there is nothing to train.

    ``capped`` says that it would have been multiplied by more.
    """

    slot: int
    scale: float
    capped: bool = False


class Visit(NamedTuple):
    """A place, and the model that is trained there."""

    slot: int
    scale: float
    model: Params


class Crowd(Protocol):
    """What a server is fitted to."""

    trained: list[str]

    @property
    def clients(self) -> int:
        """How many clients there are."""
        ...


@dataclass(frozen=True, eq=False)
class Arrival:
    """One client's change on the part that it holds, still in its message, and how much it weighs.

    ``add(vector, weight)`` adds ``weight`` times the change, laid out by ``layout``, to a vector: a codec can do that
    in one pass. Whoever needs the change itself asks for it. ``code()`` is the message as a vector of which means make
    sense, and ``restore(mean)`` the change behind such a mean. ``notes`` are what the client's solver tells, ``model``
    is what its change is a change of.
    """

    client: int
    part: Part
    layout: Layout
    weight: float
    add: Callable[[Tensor, float], None]
    notes: Mapping[str, float] = field(default_factory=dict)
    model: Params = field(default_factory=dict)
    code: Callable[[], Tensor] | None = None
    restore: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, client: int, part: Part, change: Params, weight: float) -> "Arrival":
        """An arrival of which the change is known."""
        layout = Layout.of(change)
        return cls.laid(client, part, layout, layout.flatten(change), weight)

    @classmethod
    def laid(cls, client: int, part: Part, layout: Layout, vector: Tensor, weight: float) -> "Arrival":
        """An arrival of which the change is known as a vector."""

        def add(acc: Tensor, times: float) -> None:
            acc.add_(vector * times)

        return cls(client, part, layout, weight, add)

    def vector(self, device: torch.device) -> Tensor:
        """The change, decoded, laid out by ``layout``."""
        vector = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=device)
        self.add(vector, 1.0)
        return vector

    def change(self, device: torch.device) -> Params:
        """The change, decoded."""
        return self.layout.unflatten(self.vector(device))


class Server(Protocol):
    """Folds arrivals into one accumulator, in client order, and makes the next model of it.

    own: whether each client has a model of its own there, beside the one of all, and trains that of another
    """

    own: ClassVar[bool]

    def fit(self: T, crowd: Crowd) -> T:
        """The server for so many clients; done once, before the first round."""
        ...

    def due(self, state: State, clock: Clock) -> bool:
        """Whether it has anything to do in a round."""
        ...

    def asks(self, state: State, cohort: Sequence[int]) -> Sequence[int]:
        """Whom of a cohort it wants to hear from, in client order."""
        ...

    def places(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> dict[int, Place]:
        """Where the clients of a cohort stand, if each trains another's model; the key is the run's."""
        ...

    def moved(self, acc: Any) -> Iterator[tuple[int, Params]]:
        """Whose models have moved in a round, and what they are now."""
        ...

    def notes(self, state: State, acc: Any) -> dict[str, Any]:
        """What goes into the round's record, by name."""
        ...

    def init(self, params: Params) -> State:
        """What the server holds before the first round."""
        ...

    def model(self, state: State) -> Params:
        """The global model."""
        ...

    def weigh(self, samples: int, batches: int) -> float:
        """How much a client with so many samples counts; worked out by the client and sent along."""
        ...

    def empty(self, state: State, places: Mapping[int, Place] | None = None) -> Any:
        """The accumulator before the first arrival; ``places`` are where clients stand, if they train many models."""
        ...

    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """The accumulator with one more arrival in it; may reuse ``acc``."""
        ...

    def finish(self, state: State, acc: Any, clock: Clock) -> State:
        """What the server holds after the round; with no arrivals, what it held before."""
        ...


class OneModel:
    """A server with one model for all, in every round."""

    own: ClassVar[bool] = False

    def init(self, params: Params) -> State:
        """The model, and nothing else."""
        return {"params": params}

    def model(self, state: State) -> Params:
        """The model."""
        params: Params = state["params"]
        return params

    def fit(self: T, crowd: Crowd) -> T:
        """The server as it is."""
        return self

    def due(self, state: State, clock: Clock) -> bool:
        """Always."""
        return True

    def asks(self, state: State, cohort: Sequence[int]) -> Sequence[int]:
        """All of it."""
        return cohort

    def places(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> dict[int, Place]:
        """Nobody trains the model of another."""
        return {}

    def moved(self, acc: Any) -> Iterator[tuple[int, Params]]:
        """None."""
        return iter(())

    def notes(self, state: State, acc: Any) -> dict[str, Any]:
        """Nothing."""
        return {}
