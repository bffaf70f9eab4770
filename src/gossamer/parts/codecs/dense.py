"""Dense codec: every entry as a float, in full or half precision. FedAvg sends this."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.scale import largest

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Dense(Codec):
    """Sends all entries, rounded to the nearest value of a floating-point type.

    Args:
        dtype: "model" is the type of the model, lossless, 4 bytes per entry for float32; "float16" is 2 bytes, 11
            significant bits, at most 65,504; "bfloat16" is 2 bytes, 8 significant bits, the range of float32
    """

    dtype: Literal["model", "float16", "bfloat16"] = "model"

    def __post_init__(self) -> None:
        known = ("model", *HALVES)
        require((self.dtype in known, wrong(self, "dtype", f"must be one of {', '.join(known)}")))

    @property
    def unbiased(self) -> bool:
        """Whether values are sent without rounding."""
        return self.dtype == "model"

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the vector, rounded if ``dtype`` is not "model"."""
        finite(x, "change")
        if self.dtype == "model":
            return {"values": x}
        half = HALVES[self.dtype]
        found, most = largest(x).max().item(), torch.finfo(half).max
        if found > most:
            advice = "use Dense(), or clip the update" if most > 1e38 else "use Dense('bfloat16') or Dense()"
            raise PayloadError(
                f"a value has the magnitude {found:.6g}, above the maximum {most:.6g} of {self.dtype}: {advice}"
            )
        # Via float32: some devices round a float64 directly, others in two steps.
        return {"values": x.to(torch.float32).to(half)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values in the model's type."""
        dtype = HALVES.get(self.dtype, ctx.layout.dtype)
        return finite(expect(payload, "values", dtype, ctx.layout.size), "values").to(ctx.layout.dtype)

    def fold(self, acc: Tensor, payload: Payload, ctx: Coding, weight: float) -> None:
        """Add ``weight`` times the values to ``acc``, without a temporary product."""
        acc.add_(self.decode(payload, ctx).to(acc.dtype), alpha=weight)

    @property
    def folds_decoded(self) -> bool:
        """False: the product is not rounded before it is added."""
        return False

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Return nothing: the new values are shorter than the updates of several clients."""
        return {}, layout.only(())
