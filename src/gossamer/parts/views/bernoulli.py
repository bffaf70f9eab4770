"""Sub-models drawn entry by entry: each client trains a fresh random subset of the model in every round."""

from dataclasses import dataclass

from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import BoundView
from gossamer.fleet.capacity import Capacities, capacity, check_shares


@dataclass(frozen=True)
class Bernoulli(BoundView):
    """Every entry is held with a chance that is the client's capacity, independently, and drawn anew each round.

    Args:
        capacities: shares of the model; client c has the one at c modulo their number
        drawn: draw each client's capacity anew in every round instead
        min_dim: tensors of fewer dimensions (norms, biases, with 2) are held whole
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    min_dim: int = 2

    def __post_init__(self) -> None:
        check_shares("Bernoulli", self.capacities)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """A mask for each tensor."""
        share = capacity(self.capacities, self.drawn, clock, key)
        keep = {}
        for name, tensor in like.items():
            if share < 1 and tensor.dim() >= self.min_dim:
                draws = uniform(fold(key, "mask", name), tensor.numel(), device=tensor.device)
                keep[name] = (draws < share).to(tensor.dtype).view(tensor.shape)
        return Part(keep=keep)
