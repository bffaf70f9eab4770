"""One-bit compressive sensing: the signs of random measurements of an update, and its norm.

Guan, Hou et al., "Energy-efficient federated learning: integrating model pruning, compressive sensing, and outage
compensation".

All clients of a round use the same measurement matrix (``gossamer.parts.codecs.sensing``), drawn from a key. So the
server can sum the uploads and reconstruct the mean update once (``gossamer.parts.servers.SumThenDecode``). It can also
decode each message on its own. Signs do not contain the norm of a vector, so the norm is sent too.

The norm of the reconstruction is chosen by ``scaling``:

    scaling=linear   the reconstruction itself. Signs are weighted by norms, so it is an estimate of the mean update. It
                     is short where clients disagree, and also with few measurements, as it has no part outside of the
                     measured space
    scaling=norms    the reconstructed direction, with the mean norm of the updates. Where clients disagree, it is
                     longer than their mean, also at the optimum, where the mean is zero

A lost message can be compensated for by the next one:

    retain=signs     the lost signs are sent again together with the new ones, two bits per measurement. The server adds
                     both, the lost ones times ``coefficient``. Both rounds must use the same matrix, so ``fresh`` must
                     be false. If the client holds other entries now, the lost update is measured again on the entries
                     that it still holds
    retain=change    the lost update is kept, and added to the new one, times ``coefficient``. The sum is measured: one
                     bit per measurement, with any matrix and any held entries

Only the last message is kept: what was lost in an earlier round is forgotten, unless ``accumulate`` is set. Tensors
that are sent dense in the same message are compensated for in the same way, as sums, which take no extra bytes.

With a fixed ``length`` and one sign per measurement, messages contain nothing but signs. The server then sums bits, and
knows the norms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.bits import expect_bits, numbers, plus_minus
from gossamer.core.codec import Codec, Coding, Kept, each_row, rows_of
from gossamer.core.errors import Mistake, PayloadError, Setting, listed, require, wrong
from gossamer.core.exact import norm
from gossamer.core.random import fold
from gossamer.core.random import key as make_key
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload, State
from gossamer.core.wire import finite
from gossamer.parts.codecs.reconstruction import amp, back_projection, biht, least_squares, niht, scaled
from gossamer.parts.codecs.scale import expect_scale
from gossamer.parts.codecs.sensing import KINDS, Kind, Matrix, Sensing, pack_signs
from gossamer.parts.codecs.wrappers import Retain, lost_after, lost_if_skipped, nothing_lost

Decoder = Literal["least-squares", "amp", "niht", "biht", "back-projection"]
Scaling = Literal["linear", "norms"]
Decode = Callable[[Matrix, Tensor, int], Tensor]

DECODERS: dict[str, Decode] = {
    "least-squares": lambda phi, y, k: least_squares(phi, y),
    "amp": amp,
    "niht": niht,
    "biht": lambda phi, y, k: biht(phi, torch.where(y >= 0, 1.0, -1.0).to(y), k),
    "back-projection": lambda phi, y, k: back_projection(phi, y),
}


@dataclass(frozen=True)
class OneBit(Codec):
    """Sends the signs of random measurements of the update, and its norm.

    Args:
        measurements: the number of measurements per entry
        rows: the number of measurements, independent of the number of entries; none uses measurements
        matrix: hadamard, or gaussian, which is slower
        fresh: draw a new matrix in each round; else one matrix is used in all rounds, with the same null space
        decoder: least-squares, amp, niht, biht or back-projection; amp, niht and biht assume a sparse update
        share: the share of nonzero entries that amp, niht and biht assume
        length: a fixed norm of every update; none sends the norm, in 32 bits
        retain: what the next message contains of a lost one: nothing, its signs, or its change (the update)
        coefficient: the factor of the lost signs or the lost update
        accumulate: keep updates that were lost more than once
        scaling: the norm of the reconstruction: linear, that of the decoder, or norms, the mean norm of the updates
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
    scaling: Scaling = "norms"

    def __post_init__(self) -> None:
        signs, nothing = (Setting("OneBit", "retain", kept) for kept in ("signs", "nothing"))
        rows = self.rows
        require(
            (0 < self.measurements < math.inf, wrong(self, "measurements", "must be positive")),
            (rows is None or rows >= 1, wrong(self, "rows", "must be at least 1, or none")),
            (self.matrix in KINDS, wrong(self, "matrix", f"must be one of {listed(KINDS)}")),
            (self.decoder in DECODERS, wrong(self, "decoder", f"must be one of {listed(DECODERS)}")),
            (0 < self.share <= 1, wrong(self, "share", "must be in (0, 1]")),
            (self.length is None or 0 < self.length < 1e30, wrong(self, "length", "must be positive")),
            (self.retain in ("nothing", "signs", "change"), wrong(self, "retain", "must be nothing, signs or change")),
            (0 < self.coefficient < math.inf, wrong(self, "coefficient", "must be positive")),
            (self.scaling in ("linear", "norms"), wrong(self, "scaling", "must be linear or norms")),
            (
                self.scaling != "linear" or self.decoder != "biht",
                Mistake(
                    "needs a decoder that keeps norms, and {} does not: use another one",
                    Setting("OneBit", "scaling", "linear"),
                    Setting("", "decoder", "biht"),
                ),
            ),
            (
                self.retain != "signs" or not self.fresh,
                Mistake("needs one matrix for all rounds: {}", signs, Setting("", "fresh", False)),
            ),
            (
                self.retain != "signs" or not self.accumulate,
                Mistake(
                    "keeps the signs of one round, so use {}, or use {}",
                    signs,
                    Setting("", "accumulate", False),
                    Setting("", "retain", "change"),
                ),
            ),
            (
                self.retain != "nothing" or not self.accumulate,
                Mistake(": nothing is kept, so {} has no effect", nothing, Setting("", "accumulate")),
            ),
        )

    @property
    def sensing(self) -> Sensing:
        """The measurement of vectors."""
        return Sensing(self.matrix, self.measurements, self.rows)

    @property
    def common(self) -> bool:
        """True: all clients of a round use the same matrix."""
        return True

    @property
    def retains(self) -> Kept:
        """Which lost messages are compensated for, from ``retain`` and ``accumulate``."""
        if self.retain == "nothing":
            return "nothing"
        return "all" if self.accumulate else "last"

    def companion(self, other: Codec) -> Codec:
        """Return ``other`` with lost updates added to the next one."""
        if self.retains == "nothing" or other.retains != "nothing":
            return other
        return Retain(other, self.coefficient, self.accumulate)

    @property
    def exact(self) -> bool:
        """Whether the matrix is hadamard: products with a Gaussian matrix are rounded differently on each device."""
        return self.matrix == "hadamard"

    def unreplayable(self) -> str:
        """Return that the matrix is not hadamard, or that the decoder is not linear."""
        if self.matrix != "hadamard":
            return f"OneBit.matrix={self.matrix} gives different bits on different devices: use hadamard"
        linear = self.decoder in ("least-squares", "back-projection")
        advice = "use least-squares or back-projection"
        return "" if linear else f"OneBit.decoder={self.decoder} gives different bits on different devices: {advice}"

    def phi(self, ctx: Coding, device: torch.device) -> Matrix:
        """Return the measurement matrix of a round."""
        at = ctx.key if self.fresh else make_key(0)
        return self.sensing.matrix(ctx.layout.size, fold(at, "one-bit"), device=device, dtype=ctx.layout.dtype)

    # Client side.

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the signs, and the norm."""
        signs = self.phi(ctx, x.device).signs(finite(x, "change"))
        return {"signs": pack_signs(signs), **self._scale("scale", x)}

    def _scale(self, name: str, x: Tensor) -> Payload:
        return {name: finite(norm(x).unsqueeze(-1), "norm")} if self.length is None else {}

    def init(self, layout: Layout) -> State:
        """Return the state without a lost update."""
        return {} if self.retain == "nothing" else nothing_lost(layout)

    def encode_with(self, x: Tensor, memory: State, ctx: Coding) -> tuple[Payload, State]:
        """Return the payload of the update and the lost update, and the new state."""
        if self.retain == "nothing":
            return self.encode(x, ctx), memory
        lost = ctx.layout.flatten(memory["lost"]).to(x.device)
        whole = x + self.coefficient * lost if self.retain == "change" else x
        payload = self.encode(whole, ctx)
        if self.retain == "signs" and bool(lost.any()):
            phi = self.phi(ctx, x.device)
            again = {"signs": pack_signs(phi.signs(x), phi.signs(lost)), **self._scale("lost", lost)}
            payload = self._with_lost(payload, again, lost)
        empty, sent = torch.zeros_like(x), whole if self.accumulate else x
        return payload, {"lost": ctx.layout.unflatten(empty), "sent": ctx.layout.unflatten(sent)}

    def _with_lost(self, payload: Payload, again: Payload, lost: Tensor) -> Payload:
        """Return the payload with the lost signs; of a group a list, as only some clients may have lost some."""
        if lost.dim() == 1:
            return payload | again
        rows = zip(rows_of(payload) or [], rows_of(again) or [], lost.any(-1), strict=True)
        return [one | more if bool(some) else one for one, more, some in rows]  # type: ignore[return-value]

    def skipped(self, memory: State) -> State:
        """Return the state of entries that were not sent."""
        return lost_if_skipped(memory, self.accumulate) if memory else memory

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the state without a lost update, or with the one that was just sent."""
        return lost_after(memory, delivered)

    # Server side.

    @property
    def _bits_only(self) -> bool:
        """Whether messages contain one bit per measurement and nothing else."""
        return self.length is not None and self.retain != "signs"

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1 with a fixed length: a bit per measurement."""
        return (SumSegment(self.sum_size(layout), 1),) if self._bits_only else ()

    def unsummable(self) -> str:
        """Return that messages have norms of their own, or the signs of two updates, if so."""
        if self.length is None:
            return "OneBit() sends the norm of each update: use a fixed one, such as OneBit(length=1.0)"
        return "" if self._bits_only else "OneBit(retain='signs') can send two signs at once: use retain='change'"

    def sum_size(self, layout: Layout) -> int:
        """Return the number of measurements, plus one for the norm unless only bits are summed."""
        return self.sensing.count(layout.size) + (0 if self._bits_only else 1)

    @each_row
    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return signs times norms, including those of a lost message, followed by the sum of the norms.

        With a fixed length, return a bit per measurement, 1 for plus.
        """
        signs, count = payload.get("signs"), self.sensing.count(ctx.layout.size)
        if self._bits_only:
            return numbers(expect_bits(payload, "signs", count), ctx.layout.dtype)
        both = signs is not None and self.retain == "signs" and signs.numel() > -(-count // 8)
        flags = expect_bits(payload, "signs", 2 * count if both else count)
        lengths = [self._length(payload, "scale", ctx.layout, flags)]
        if both:
            lengths.append(self.coefficient * self._length(payload, "lost", ctx.layout, flags))
        weights = torch.stack(lengths)
        values = plus_minus(flags, ctx.layout.dtype).view(count, len(lengths)) @ weights
        return torch.cat((values, weights.sum().view(1)))

    def _length(self, payload: Payload, name: str, layout: Layout, like: Tensor) -> Tensor:
        if self.length is not None:
            return torch.tensor(self.length, dtype=layout.dtype, device=like.device)
        if name not in payload:
            raise PayloadError(f"expected a number named {name!r}")
        return expect_scale({"scale": payload[name]}, layout)[0]

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the reconstruction of the mean update, with the norm that ``scaling`` chooses."""
        mean = mean.to(ctx.layout.dtype)
        if self.length is not None and self._bits_only:
            y, length = (mean * 2 - 1) * self.length, mean.new_tensor(self.length)
        else:
            y, length = mean[:-1], mean[-1]
        most = y.abs().amax() if len(y) else length
        if not bool(most > 0):
            return torch.zeros(ctx.layout.size, dtype=mean.dtype, device=mean.device)
        phi = self.phi(ctx, mean.device)
        found = DECODERS[self.decoder](phi, y / most, max(1, round(self.share * ctx.layout.size)))
        return found * most if self.scaling == "linear" else scaled(found) * length

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Decode a single message."""
        return self.from_sum(self.to_sum(payload, ctx), ctx)
