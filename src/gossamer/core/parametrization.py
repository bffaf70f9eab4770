"""What a form is, and the one that is nothing special."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gossamer.core.random import Key
from gossamer.core.types import Params, State


class Parametrization(Protocol):
    """Between what is held and the network's tensors, which have the same names and shapes."""

    def hold(self, built: Params, key: Key) -> Params:
        """What the server holds before the first round, for a network that was built with these tensors."""
        ...

    def context(self, built: Params, key: Key) -> State:
        """What a client needs in a round's steps to go from one to the other; nothing: both are the same."""
        ...

    def network(self, held: Params, context: State, step_index: Tensor) -> Params:
        """The network's tensors in a step of training, after so many others; pure."""
        ...

    def pull(self, grads: Params, held: Params, context: State) -> Params:
        """Gradients of what is held, from those of the network's tensors; pure."""
        ...

    def deploy(self, held: Params, built: Params) -> Params:
        """The network's tensors to evaluate and use."""
        ...


@dataclass(frozen=True)
class Weights:
    """The network's own tensors."""

    def hold(self, built: Params, key: Key) -> Params:
        """They themselves."""
        return built

    def context(self, built: Params, key: Key) -> State:
        """Nothing is needed."""
        return {}

    def network(self, held: Params, context: State, step_index: Tensor) -> Params:
        """They themselves."""
        return held

    def pull(self, grads: Params, held: Params, context: State) -> Params:
        """Their gradients."""
        return grads

    def deploy(self, held: Params, built: Params) -> Params:
        """They themselves."""
        return held
