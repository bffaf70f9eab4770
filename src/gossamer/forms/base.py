"""What a form is, and the one that is nothing special."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gossamer.random import Key
from gossamer.types import Params, State


class Form(Protocol):
    """Between what is held and the network's tensors, which have the same names and shapes."""

    def hold(self, built: Params, key: Key) -> Params:
        """What the server holds before the first round, for a network that was built with these tensors."""
        ...

    def aid(self, built: Params, key: Key) -> State:
        """What a client needs in a round's steps to go from one to the other; nothing: both are the same."""
        ...

    def network(self, held: Params, aid: State, taken: Tensor) -> Params:
        """The network's tensors in a step of training, after so many others; pure."""
        ...

    def pull(self, grads: Params, held: Params, aid: State) -> Params:
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

    def aid(self, built: Params, key: Key) -> State:
        """Nothing is needed."""
        return {}

    def network(self, held: Params, aid: State, taken: Tensor) -> Params:
        """They themselves."""
        return held

    def pull(self, grads: Params, held: Params, aid: State) -> Params:
        """Their gradients."""
        return grads

    def deploy(self, held: Params, built: Params) -> Params:
        """They themselves."""
        return held
