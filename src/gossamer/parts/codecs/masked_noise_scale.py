"""The magnitude of masked noise, measured from the update: ``MaskedNoise(alpha="auto")``.

Each tensor of an update is cut into blocks of consecutive entries, and each block has its own magnitude. For entries u
of a block and unit noise n:

    a = spread * sum(u^2) / sum(|u|)    the magnitude of the noise; entries that are 0 do not count
    v = u / a                           the update in units of it, from which the mask is drawn
    g = sum(u^2) / sum(u a E[n m])      the gain, summed over the whole tensor, from 1 to ``MAX_GAIN``
    s = g a                             the scale of the block's noise at the receiver: it adds s n m

``E[n m]`` is v clipped to the range of its noise. Clipping shortens an update. For v from 0 to 1, ``E[n m]`` is:

    noise        binary masks       signed masks
    bernoulli    v / 2              v
    uniform      v / 2 - v^2 / 4    v - v^2 / 2

Half of the noise has the wrong sign for a binary mask. The gain makes up for it: the expectation of ``s n m`` has the
same inner product with the update as the update itself. DRIVE and EDEN choose their scales in this way. So an update
moves the model as far as without masks, whatever the magnitude. A larger ``spread`` clips less and makes binary masks
sparser, and a smaller one makes the masked noise less random. With signed masks over Bernoulli noise and a small
``spread``, it is the sign of each entry, times one number per block.

The units of a layer change at different rates, so the entries of a whole tensor have heavy tails, and those of a row
or a short block nearly none. With one magnitude per tensor, the small entries would get the noise of the large ones.

The sender computes v and s with sums that have the same bits on every device. In training, the surrogate computes the
same from the current update with ordinary sums.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.exact import shift, total, unit
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.scale import block_length, blocks, ratio

MAX_GAIN = 8.0
"""Bounds the gain of a tensor in which noise of the wrong sign, or few large entries, leave little to send."""
LARGEST = 2.0**99
"""The largest scale. The sum of many clients' noise must be finite too."""
TINY = 1e-30
SENT = torch.bfloat16
"""The type of the scales: the range of float32, and a rounding error of at most 1/512."""
SMALL = 32
"""Entries per block below which a run warns: the scales then take more than half a bit per entry."""

Expected = Callable[[Tensor, Tensor], Tensor]
"""Maps an update and its noise to the expectation of the masked noise."""


class Scale(NamedTuple):
    """The scales of one tensor.

    Args:
        entries: the number of entries of the tensor
        values: the factor of the noise of each block, as float32
        block: the number of entries per block
    """

    entries: int
    values: Tensor
    block: int

    def of(self, start: int, count: int) -> Tensor:
        """Return the factors of entries ``start`` to ``start + count``; one factor if all are in one block."""
        first, skip = divmod(start, self.block)
        blocks = self.values[first : -(-(start + count) // self.block)]
        return blocks if len(blocks) == 1 else blocks.repeat_interleave(self.block)[skip:][:count]


class Slice(NamedTuple):
    """A piece of a vector that lies in one tensor.

    Args:
        values: the piece
        first: its first entry in the vector
        start: its first entry in the tensor
        scale: the scales of the tensor
    """

    values: Tensor
    first: int
    start: int
    scale: Scale


def length(entries: int, block: int | None) -> int:
    """Return the number of entries per block of a tensor. A block is not longer than the tensor."""
    return block_length(entries, None if block is None else min(block, entries))


def small_blocks(block: int | None) -> str | None:
    """Return a warning about blocks whose scales take more than half a bit per entry; ``None`` for larger blocks."""
    if block is None or block >= SMALL:
        return None
    return (
        f"block={block} is small: the scales take {8 * SENT.itemsize / block:.2g} bits per weight, and the mask at "
        f"most 1. Use --block 256 (block=256), or at least {SMALL}"
    )


def rescaled(u: Tensor, n: Tensor, spread: float, block: int | None, expected: Expected) -> tuple[Tensor, Tensor]:
    """Return a tensor of the update in units of its noise, and the scale of each entry.

    For training: can be compiled and stacked.
    """
    each = length(u.numel(), block)
    rows = blocks(u, each)
    size = magnitude(rows, spread)
    v = rows / size
    # The gain is a ratio. In units of a power of two, its squares do not underflow, and no bit of it changes.
    factor = torch.exp2(-size.sum().log2().floor())
    y = rows * factor
    along = (y * (size * factor) * expected(v, blocks(n, each, 1.0))).sum()
    gain = (y.square().sum() / along.clamp(min=TINY)).clamp(1, MAX_GAIN)
    return _shaped(v, u), _shaped((gain * size).expand_as(rows), u)


def _shaped(rows: Tensor, like: Tensor) -> Tensor:
    return rows.reshape(-1)[: like.numel()].view(like.shape)


def magnitude(rows: Tensor, spread: float) -> Tensor:
    """Return the magnitude of each block's noise as a column, by ordinary sums."""
    sums = rows.abs().sum(-1, keepdim=True)
    return (spread * rows.square().sum(-1, keepdim=True) / sums.clamp(min=TINY)).clamp(min=TINY)


def rescaled_exactly(
    x: Tensor, n: Tensor, layout: Layout, spread: float, block: int | None, expected: Expected
) -> tuple[Tensor, Payload]:
    """Return an update in units of its noise, and the array ``scales``. The bits are the same on every device."""
    parts, scales = [x[:0]], [torch.zeros(0, dtype=SENT, device=x.device)]
    for (_, u), (_, own) in zip(layout.cut(x), layout.cut(n), strict=True):
        each = length(len(u), block)
        rows = blocks(u, each)
        size = _magnitude(rows, spread)
        v = ratio(rows, size.to(u.dtype))
        gain = _gain(v, expected(v, blocks(own, each, 1.0)), size)
        parts.append(_shaped(v, u))
        scales.append((size.double() * gain).clamp(max=LARGEST).to(torch.float32).to(SENT).view(-1))
    return torch.cat(parts), {"scales": torch.cat(scales)}


def _magnitude(rows: Tensor, spread: float) -> Tensor:
    """Return the magnitude of each block's noise as a column of float32; 0 if the block did not change."""
    y, exponent = unit(rows)  # squares of the update itself may underflow
    whole = total(y.abs()).double().unsqueeze(-1)
    found = shift(ratio(total(y * y).double().unsqueeze(-1), whole), exponent) * spread
    if found.numel() and float(found.max()) > LARGEST:
        raise PayloadError(f"the change is too large for masked noise: magnitude {found.max():g}, at most {LARGEST:g}")
    return found.to(torch.float32)


def _gain(v: Tensor, expected: Tensor, size: Tensor) -> float:
    """Return the gain of a tensor. Blocks count by the squares of their magnitudes, relative to the largest."""
    share = ratio(size, size.amax(0, keepdim=True)).double().view(-1) if len(size) else size.double().view(-1)
    weight = share * share
    along = float(total(weight * total(v * expected).double()))
    return min(max(float(total(weight * total(v * v).double())) / along, 1.0), MAX_GAIN) if along > 0 else 1.0


def expect_scales(payload: Payload, layout: Layout, block: int | None) -> list[Scale]:
    """Return the scales of each tensor in a payload. Raise ``PayloadError`` for scales that no update has."""
    lengths = [length(count, block) for count in layout.counts]
    counts = [-(-count // size) for count, size in zip(layout.counts, lengths, strict=True)]
    values = finite(expect(payload, "scales", SENT, sum(counts)), "scales").to(torch.float32)
    if len(values) and not (float(values.min()) >= 0 and float(values.max()) <= LARGEST):
        raise PayloadError(f"'scales' must be from 0 to {LARGEST:g}, got {values.min():g} to {values.max():g}")
    return list(map(Scale, layout.counts, values.split(counts), lengths))


def by_tensor(pieces: Sequence[Tensor], scales: Sequence[Scale]) -> Iterator[Slice]:
    """Yield the pieces of a vector, cut at the borders of tensors."""
    tensors, first = iter(scales), 0
    left, scale = 0, Scale(0, torch.zeros(0), 1)
    for piece in pieces:
        start = 0
        while start < len(piece):
            while not left:
                scale = next(tensors)
                left = scale.entries
            size = min(left, len(piece) - start)
            yield Slice(piece[start : start + size], first, scale.entries - left, scale)
            start, first, left = start + size, first + size, left - size
