"""Random sub-models: each client trains a random subset of the model's entries, drawn anew in every round.

Algorithm 1 of Deng et al., On the convergence and stability of distributed sub-model training, 2025,
https://arxiv.org/abs/2511.06132, with masks over single entries.
"""

from dataclasses import dataclass

from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import BoundView
from gossamer.fleet.capacity import Capacities, capacity, check_shares


@dataclass(frozen=True)
class Bernoulli(BoundView):
    """Random masks: each entry is held independently, with the client's capacity as its probability.

    Args:
        capacities: fractions of the model that clients hold; client c takes value c modulo their number
        drawn: draw the capacity of each client at random in every round
        min_dim: tensors with fewer dimensions are held whole; with 2, biases and norms
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    min_dim: int = 2

    def __post_init__(self) -> None:
        check_shares("Bernoulli", self.capacities)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return a random mask for each tensor that is not held whole."""
        share = capacity(self.capacities, self.drawn, clock, key)
        keep = {}
        for name, tensor in like.items():
            if share < 1 and tensor.dim() >= self.min_dim:
                draws = uniform(fold(key, "mask", name), tensor.numel(), device=tensor.device)
                keep[name] = (draws < share).to(tensor.dtype).view(tensor.shape)
        return Part(keep=keep)
