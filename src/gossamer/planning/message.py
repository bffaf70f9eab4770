"""How long a message is that holds the signs of so many measurements."""

import math
from dataclasses import dataclass

import torch

from gossamer.codecs import Lift, OneBit
from gossamer.errors import require, wrong
from gossamer.random import Key
from gossamer.types import Layout
from gossamer.wire import Body, summed

TRIED = 10
"""A tenth of the model's entries is measured to see what else a message holds."""


@dataclass(frozen=True)
class Message:
    """Bits for the measurements, and what goes with them.

    each: bits a measurement; 2 leave room for retained signs beside the new ones
    overhead: bytes besides: header, table, norms, and what goes dense
    """

    each: int = 1
    overhead: int = 64

    def __post_init__(self) -> None:
        require(
            (self.each >= 1, wrong(self, "each", "must be at least 1 bit")),
            (self.overhead >= 0, wrong(self, "overhead", "must not be negative")),
        )

    @classmethod
    def of(cls, layout: Layout, each: int = 1) -> "Message":
        """Of a model that goes through the codec ``OneBit``, but for its norms and biases, which go dense."""
        codec = Lift(OneBit(rows=max(1, layout.size // TRIED)))
        payload = codec.encode(torch.ones(layout.size, dtype=layout.dtype), layout, Key(0, 0))
        again = {"lost": payload["scale"]} if each > 1 else {}
        sizes = summed(Body.of({**payload, **again}))
        return cls(each, sum(sizes.values()) - sizes["signs"])

    def bits(self, measurements: float) -> int:
        """Of a message, which has whole bytes."""
        return 8 * (self.overhead + math.ceil(self.each * measurements / 8))

    def filled(self, measurements: int) -> int:
        """How many measurements fit into as many bytes."""
        return 8 * math.ceil(self.each * measurements / 8) // self.each
