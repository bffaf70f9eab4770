"""Every entry as a float: what plain federated averaging sends."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.codecs.base import Codec
from gossamer.random import Key
from gossamer.types import Layout, Payload
from gossamer.wire import expect


@dataclass(frozen=True)
class Dense(Codec):
    """All entries, at the precision the model is trained in: 4 bytes an entry for float32."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The vector itself."""
        return {"values": x}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """The vector itself."""
        return expect(payload, "values", layout.dtype, layout.size)
