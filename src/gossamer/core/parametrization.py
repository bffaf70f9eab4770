"""Parametrization interface: which tensors are trained and sent, and how the network's tensors follow from them.

Server and clients hold tensors with the names and shapes of the network's tensors. With ``Weights``, they are the
network's tensors themselves. With another parametrization they can be, for example, scores of masks over frozen
weights: a client trains the scores, and the network gets masked weights.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.types import Params, State


class Parametrization(Protocol):
    """A map from the held tensors, which are trained and sent, to the network's tensors."""

    def hold(self, built: Params, key: Key) -> Params:
        """Return the held tensors before the first round, given the network's initial tensors. Called by the server."""
        ...

    def context(self, built: Params, key: Key) -> State:
        """Return what ``network`` and ``pull`` need in the steps of a round. Called by a client once per round.

        An empty result means that the held tensors are the network's tensors.
        """
        ...

    def network(self, held: Params, context: State, step_index: Tensor) -> Params:
        """Return the network's tensors in a local step. ``step_index`` counts from 0. Must be pure."""
        ...

    def pull(self, grads: Params, held: Params, context: State) -> Params:
        """Return the gradients of the held tensors, given those of the network's tensors. Must be pure."""
        ...

    def deploy(self, held: Params, built: Params) -> Params:
        """Return the network's tensors for evaluation and deployment."""
        ...


@dataclass(frozen=True)
class Weights(CheckedFields):
    """The identity: the network's own tensors are trained and sent."""

    def hold(self, built: Params, key: Key) -> Params:
        """Return the initial tensors."""
        return built

    def context(self, built: Params, key: Key) -> State:
        """Return an empty context."""
        return {}

    def network(self, held: Params, context: State, step_index: Tensor) -> Params:
        """Return the held tensors."""
        return held

    def pull(self, grads: Params, held: Params, context: State) -> Params:
        """Return the gradients unchanged."""
        return grads

    def deploy(self, held: Params, built: Params) -> Params:
        """Return the held tensors."""
        return held
