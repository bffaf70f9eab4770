"""Random layers draw from the run's keys instead of torch's generator.

``Layers`` is a mode of torch. While it is active, dropout and the other operations in ``rules.RULES`` take their
numbers from a stream that is the same in every executor and on every device. Other operations run unchanged.

The numbers are uniform float32 values in [0, 1) of 24 bits, from Philox4x64-10. Value ``i`` of a draw is

    key        fold(client key, "layers"); the client key covers run, round, exchange and client
    counter    (1 + i // 8, step, layer, evaluation), one 64-bit word each
    value      the top 24 bits of half ``i % 8`` of the block's four words, low half first

``step`` is the local step in the round. ``evaluation`` counts the gradient evaluations within a step: a solver may take
several, and each draws its own numbers. ``layer`` counts the draws within an evaluation, in the order of the calls. A
layer that is called twice draws twice, and no draw depends on the sizes of others.
"""

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gossamer.core.random import draws
from gossamer.tasks.random_layers.rules import RULES, UNKNOWN

Size = tuple[int, int, int]
"""Number of values of a draw, its layer and its evaluation."""


class Numbers:
    """The random numbers of one local step of one client.

    Args:
        key: the client's key for random layers, from ``gossamer.core.random.tensor``
        step: the index of the local step
    """

    def __init__(self, key: Tensor, step: Tensor) -> None:
        self.root, self.step = key, step
        self.evaluations = 0

    def take(self, n: int, layer: int, evaluation: int) -> Tensor:
        """Return the ``n`` values of a draw."""
        return draws(self.root, self.step, n, layer, evaluation)

    def of_sample(self, number: Tensor) -> "Numbers":
        """Return numbers of one sample of the batch, for its own gradient: its index is the upper half of the step."""
        own = Numbers(self.root, self.step + (number << 32))
        own.evaluations = self.evaluations
        return own


class Recorded(Numbers):
    """The same numbers; the sizes of all draws are recorded."""

    def __init__(self, key: Tensor, step: Tensor) -> None:
        super().__init__(key, step)
        self.sizes: list[Size] = []

    def take(self, n: int, layer: int, evaluation: int) -> Tensor:
        """Return the ``n`` values of a draw, and record it."""
        self.sizes.append((n, layer, evaluation))
        return super().take(n, layer, evaluation)


class Layers(TorchFunctionMode):
    """Random layers draw from ``numbers`` while the mode is active, for one forward pass."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__()
        self.numbers, self.evaluation, self.layer = numbers, numbers.evaluations, 0
        numbers.evaluations += 1

    def from_here(self) -> "Layers":
        """Return a mode that repeats the draws from the current one on, for layers that run twice."""
        return copy.copy(self)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Return the values of the next draw."""
        values = self.numbers.take(math.prod(shape), self.layer, self.evaluation).view(shape)
        self.layer += 1
        return values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, by its rule if it is random."""
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is None or any(kwargs.get(name) is not None for name in UNKNOWN):
            return func(*args, **kwargs)
        return rule(self, func, *args, **kwargs)


def drawing(numbers: Numbers | None) -> AbstractContextManager[object]:
    """Return the mode for one forward pass, or a context without effect if there are no numbers."""
    return nullcontext() if numbers is None else Layers(numbers)
