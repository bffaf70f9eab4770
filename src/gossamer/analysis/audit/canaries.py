"""Canaries: clients that send a known direction instead of their update, or nothing.

The directions are uniform on the sphere, so in a large model they are almost orthogonal to each other and to all
updates. A coin decides for each canary whether it is included. One that is not sends an update of 0, which is what
a private server adds for a client that does not take part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import wrong
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as key_of
from gossamer.core.random.noise import draw
from gossamer.core.types import Layout, Params
from gossamer.parts.attacks.base import UpdateAttack


@dataclass(frozen=True)
class Canaries(UpdateAttack):
    """Clients that send a random direction in all rounds.

    Args:
        norm: the norm of their updates, at least the clipping norm of the method
        seed: the seed of their directions and coins
        share: the share of clients that are canaries
    """

    norm: float = 1e3
    seed: int = 0
    share: float = 0.5

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the norm."""
        return [(0 < self.norm < math.inf, wrong(self, "norm", "must be a positive number"))]

    def included(self, client: int) -> bool:
        """Return the coin of a canary."""
        return bool(uniform(fold(self._key, client, "coin"), 1) < 0.5)

    def direction(self, client: int, like: Params) -> Tensor:
        """Return the direction of a canary, a vector of norm 1 with the entries of the tensors in name order."""
        return _direction(fold(self._key, client), Layout.of(like))

    @property
    def _key(self) -> Key:
        return fold(key_of(self.seed), "canaries")

    def update(self, change: Params, key: Key) -> Params:
        """Return the direction of a key as an update."""
        layout = Layout.of(change)
        return layout.unflatten(_direction(key, layout).to(tree.device(change), layout.dtype) * self.norm)

    def update_of(self, client: int, change: Params, key: Key) -> Params:
        """Return the direction of a canary, or 0 if it is not included."""
        if not self.included(client):
            return {name: torch.zeros_like(tensor) for name, tensor in change.items()}
        return self.update(change, fold(self._key, client))


def _direction(key: Key, layout: Layout) -> Tensor:
    drawn = draw("gauss", 1.0, fold(key, "direction"), layout.size).double()
    found: Tensor = drawn / torch.linalg.vector_norm(drawn)
    return found
