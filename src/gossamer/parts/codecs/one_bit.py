"""One-bit compressive sensing: the signs of random measurements of a change, and its norm (Guan, Hou et al.).

All clients of a round measure by one matrix (``gossamer.parts.codecs.sensing``), drawn from a key. So the server can
add up what they send, and reconstruct the mean change once (``gossamer.parts.servers.SumThenDecode``); decoded one
by one, each message gives its own sender's change. Signs do not tell how long a vector is, so its norm is sent along.

A message that was lost may be made up for, once it is known to be lost:

    retain=signs     the lost signs are sent again beside the new ones, two bits a measurement; the server adds both,
                     the lost ones times ``coefficient``. That makes sense only if both rounds measure by one matrix,
                     so it must not be fresh, and if the client holds the same entries in both: where it does not, the
                     lost change is measured anew, as far as it is held still
    retain=change    the lost change itself is kept and added to the new one, times ``coefficient``, and the sum is
                     measured: one bit a measurement as ever, whatever the matrix and whatever is held

Memory is of one round: what was lost in the round before last is forgotten, unless ``accumulate`` keeps all of it.
Tensors that go dense in the same message are retained alike, as sums: these take no more bytes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.bits import expect_bits, plus_minus
from gossamer.core.codec import Codec, CodecMemory, Kept, Summing, memory_of
from gossamer.core.errors import Mistake, PayloadError, Setting, listed, require, wrong
from gossamer.core.exact import norm
from gossamer.core.random import Key, fold
from gossamer.core.random import key as make_key
from gossamer.core.types import Layout, Payload, State
from gossamer.core.wire import finite
from gossamer.parts.codecs.retain import LostChange, Retain
from gossamer.parts.codecs.scale import expect_scale
from gossamer.parts.codecs.sensing import (
    KINDS,
    Kind,
    Matrix,
    Sensing,
    amp,
    back_projection,
    biht,
    least_squares,
    niht,
    pack_signs,
    scaled,
)

Decoder = Literal["least-squares", "amp", "niht", "biht", "back-projection"]
Decode = Callable[[Matrix, Tensor, int], Tensor]

DECODERS: dict[str, Decode] = {
    "least-squares": lambda phi, y, k: least_squares(phi, y),
    "amp": amp,
    "niht": niht,
    "biht": lambda phi, y, k: biht(phi, torch.where(y >= 0, 1.0, -1.0).to(y), k),
    "back-projection": lambda phi, y, k: back_projection(phi, y),
}


@dataclass(frozen=True)
class OneBit(CodecMemory, Summing):
    """The signs of so many random measurements, and the norm.

    Args:
        measurements: how many there are for each entry
        rows: how many there are, however many entries; none takes the share above
        matrix: hadamard, or gaussian, which takes longer
        fresh: whether each round has a matrix of its own; else there is one for all, with the same blind spots
        decoder: least-squares, amp, niht, biht or back-projection; the middle three take few entries to be large
        share: how many entries they take to be large
        length: how long each change counts as; none sends its norm, in 32 bits
        retain: what becomes of a message that is lost: nothing, or its signs or the change are sent with the next
        coefficient: what that is multiplied by
        accumulate: whether a change that was lost twice is kept still
    """

    measurements: float = 0.25
    rows: int | None = None
    matrix: Kind = "hadamard"
    fresh: bool = True
    decoder: Decoder = "least-squares"
    share: float = 0.1
    length: float | None = None
    retain: Literal["nothing", "signs", "change"] = "nothing"
    coefficient: float = 1.0
    accumulate: bool = False

    def __post_init__(self) -> None:
        signs, rows = Setting("OneBit", "retain", "signs"), self.rows
        require(
            (0 < self.measurements < math.inf, wrong(self, "measurements", "must be positive")),
            (rows is None or rows >= 1, wrong(self, "rows", "must be at least 1, or none")),
            (self.matrix in KINDS, wrong(self, "matrix", f"must be one of {listed(KINDS)}")),
            (self.decoder in DECODERS, wrong(self, "decoder", f"must be one of {listed(DECODERS)}")),
            (0 < self.share <= 1, wrong(self, "share", "must be in (0, 1]")),
            (self.length is None or 0 < self.length < 1e30, wrong(self, "length", "must be positive")),
            (self.retain in ("nothing", "signs", "change"), wrong(self, "retain", "must be nothing, signs or change")),
            (0 < self.coefficient < math.inf, wrong(self, "coefficient", "must be positive")),
            (
                self.retain != "signs" or not self.fresh,
                Mistake("needs one matrix for all rounds: {}", signs, Setting("", "fresh", False)),
            ),
            (
                self.retain != "signs" or not self.accumulate,
                Mistake(
                    "keeps one round's signs, so {}; {} keeps more",
                    signs,
                    Setting("", "accumulate", False),
                    Setting("", "retain", "change"),
                ),
            ),
        )

    @property
    def sensing(self) -> Sensing:
        """How vectors are measured."""
        return Sensing(self.matrix, self.measurements, self.rows)

    @property
    def common(self) -> bool:
        """All measure alike."""
        return True

    @property
    def memory(self) -> LostChange:
        """How lost changes are kept."""
        return LostChange(self.accumulate)

    @property
    def retains(self) -> Kept:
        """As the fields say."""
        if self.retain == "nothing":
            return "nothing"
        return "all" if self.accumulate else "last"

    def companion(self, other: Codec) -> Codec:
        """One that adds what was lost to what is new."""
        if self.retains == "nothing" or memory_of(other).retains != "nothing":
            return other
        return Retain(other, self.coefficient, self.accumulate)

    @property
    def exact(self) -> bool:
        """A Gaussian matrix is multiplied in another order on every device."""
        return self.matrix == "hadamard"

    def phi(self, layout: Layout, key: Key, device: torch.device) -> Matrix:
        """The matrix of a round."""
        at = key if self.fresh else make_key(0)
        return self.sensing.matrix(layout.size, fold(at, "one-bit"), device=device, dtype=layout.dtype)

    # At the client.

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The signs, and the norm."""
        signs = self.phi(layout, key, x.device).signs(finite(x, "change"))
        return {"signs": pack_signs(signs), **self._scale("scale", x)}

    def _scale(self, name: str, x: Tensor) -> Payload:
        return {name: finite(norm(x).reshape(1), "norm")} if self.length is None else {}

    def init(self, layout: Layout) -> State:
        """Nothing was lost yet."""
        return {} if self.retain == "nothing" else self.memory.empty(layout)

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """With what was lost the last time."""
        if self.retain == "nothing":
            return self.encode(x, layout, key), state
        lost = self.memory.lost(state, x, layout)
        whole = x + self.coefficient * lost if self.retain == "change" else x
        payload = self.encode(whole, layout, key)
        if self.retain == "signs" and bool(lost.any()):
            phi = self.phi(layout, key, x.device)
            payload["signs"] = pack_signs(phi.signs(x), phi.signs(lost))
            payload |= self._scale("lost", lost)
        return payload, self.memory.after(x, whole, layout)

    def skipped_state(self, state: State) -> State:
        """What is not held was not sent."""
        return self.memory.skipped_state(state) if state else state

    def settle(self, state: State, delivered: bool) -> State:
        """Nothing is lost, or what was just sent."""
        return self.memory.settle(state, delivered)

    # At the server.

    def sum_size(self, layout: Layout) -> int:
        """The measurements, and the norm."""
        return self.sensing.count(layout.size) + 1

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Signs times norms, those of a lost message too; and the norms."""
        signs, count = payload.get("signs"), self.sensing.count(layout.size)
        both = signs is not None and self.retain == "signs" and signs.numel() > -(-count // 8)
        flags = expect_bits(payload, "signs", 2 * count if both else count)
        lengths = [self._length(payload, "scale", layout, flags)]
        if both:
            lengths.append(self.coefficient * self._length(payload, "lost", layout, flags))
        weights = torch.stack(lengths)
        values = plus_minus(flags, layout.dtype).view(count, len(lengths)) @ weights
        return torch.cat((values, weights.sum().view(1)))

    def _length(self, payload: Payload, name: str, layout: Layout, like: Tensor) -> Tensor:
        if self.length is not None:
            return torch.tensor(self.length, dtype=layout.dtype, device=like.device)
        if name not in payload:
            raise PayloadError(f"expected a number named {name!r}")
        return expect_scale({"scale": payload[name]}, layout)[0]

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """The direction that the measurements tell, as long as changes are on average."""
        y, length = mean[:-1], mean[-1]
        most = y.abs().amax() if len(y) else length
        if not bool(most > 0):
            return torch.zeros(layout.size, dtype=mean.dtype, device=mean.device)
        phi = self.phi(layout, key, mean.device)
        found = DECODERS[self.decoder](phi, y / most, max(1, round(self.share * layout.size)))
        return scaled(found) * length

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """The change that one message tells."""
        return self.from_sum(self.to_sum(payload, layout, key), layout, key)
