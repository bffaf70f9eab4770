"""Every entry as a float: what plain federated averaging sends, at full precision or half of it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.codec import Codec
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.scale import largest

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Dense(Codec):
    """All entries, each rounded to the nearest value of the type that is sent.

    Args:
        dtype: "model" is the type the model is trained in, 4 bytes an entry for float32, and loses nothing; "float16"
            is
            2 bytes, 11 significant bits and at most 65,504; "bfloat16" is 2 bytes, 8 significant bits and float32's
            range
    """

    dtype: Literal["model", "float16", "bfloat16"] = "model"

    def __post_init__(self) -> None:
        known = ("model", *HALVES)
        require((self.dtype in known, wrong(self, "dtype", f"must be one of {', '.join(known)}")))

    @property
    def unbiased(self) -> bool:
        """Whether nothing is rounded."""
        return self.dtype == "model"

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The vector itself, or rounded."""
        finite(x, "change")
        if self.dtype == "model":
            return {"values": x}
        half = HALVES[self.dtype]
        found, most = largest(x).item(), torch.finfo(half).max
        if found > most:
            advice = "send Dense(), or clip the change" if most > 1e38 else "send Dense('bfloat16') or Dense()"
            raise PayloadError(f"a value has the magnitude {found:.6g}, and {self.dtype} ends at {most:.6g}: {advice}")
        # By way of float32, as a float64 may otherwise be rounded once on one device and twice on another.
        return {"values": x.to(torch.float32).to(half)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """The values, in the model's type."""
        dtype = HALVES.get(self.dtype, layout.dtype)
        return finite(expect(payload, "values", dtype, layout.size), "values").to(layout.dtype)

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Added as they are."""
        acc.add_(self.decode(payload, layout, key).to(acc.dtype), alpha=weight)
