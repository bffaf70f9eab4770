"""Views: which entries of the model a client holds in a round."""

from typing import ClassVar, Protocol

from gossamer.random import Key
from gossamer.types import Clock, Params, Part
from gossamer.views.bernoulli import Bernoulli
from gossamer.views.full import Full
from gossamer.views.windows import Windows

__all__ = ["Bernoulli", "Full", "View", "Windows"]


class View(Protocol):
    """Says which part of the model a client holds: a pure function of the model's shapes, the clock and the key.

    common: whether it is the same for all clients of a round, whose messages then share one body
    """

    common: ClassVar[bool]

    def part(self, like: Params, clock: Clock, key: Key) -> Part:
        """The part that ``clock.client`` holds in ``clock.round``; server and client both work it out."""
        ...
