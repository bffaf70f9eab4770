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

The units of a layer change at different rates, so the entries of a whole tensor have heavy tails, and those of a row or
a short block nearly none. With one magnitude per tensor, the small entries would get the noise of the large ones.

**Clipping** takes from the length of an update: which entries it touches, and how much of their length is lost, is
measured for the record.

For an entry u and noise n, clipping touches the entry if |u| > |n|. Of the update's length along itself, ``sum(u^2)``,
it leaves ``sum(|u| min(|u|, |n|))``. With v = |u| / alpha, the expectations over the noise are:

    noise        P(|n| < |u|)     E[min(|u|, |n|)] / alpha
    uniform      min(v, 1)        v - v^2 / 2, and 1/2 for v > 1
    bernoulli    1 for v > 1      min(v, 1)
    gauss        erf(v / r2)      v erfc(v / r2) + (1 - exp(-v^2 / 2)) r2 / rpi, with r2 and rpi the roots of 2 and pi

The sender computes v and s with sums that have the same bits on every device. In training, the surrogate computes the
same from the current update with ordinary sums.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.exact import shift, total, unit
from gossamer.core.random.noise import Kind
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
MOST = 4096
"""Entries per block that one program of a GPU kernel takes."""
SMALL = 32
"""Entries per block below which a run warns: the scales then take more than half a bit per entry."""

ENTRIES = 1 << 16
"""Entries that suffice for a share with two digits."""

Expected = Callable[[Tensor, Tensor], Tensor]
"""Maps an update and its noise to the expectation of the masked noise."""
Scales = npt.NDArray[np.float32]
"""The scales of one tensor's blocks, before they are rounded."""


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
        blocks = self.values[..., first : -(-(start + count) // self.block)]
        return blocks if blocks.shape[-1] == 1 else blocks.repeat_interleave(self.block, -1)[..., skip:][..., :count]


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


def kernel_length(entries: Sequence[int], block: int | None) -> int | None:
    """Return the number of entries per block if a kernel can take all blocks of these tensors; else ``None``.

    It fills a short block with zeros. This changes no pairwise sum if the block's own length is a power of two.
    """
    lengths = {length(each, block) for each in entries}
    whole = max(lengths, default=0)
    fits = 0 < whole <= MOST and 0 not in entries and all(each & (each - 1) == 0 for each in lengths)
    return whole if fits else None


def small_blocks(block: int | None) -> str | None:
    """Return a warning about blocks whose scales take more than half a bit per entry; ``None`` for larger blocks."""
    if block is None or block >= SMALL:
        return None
    return (
        f"block={block} is small: the scales take {8 * SENT.itemsize / block:.2g} bits per weight, and the mask at "
        f"most 1. Use block=256 (--block 256 with fedmrn), or at least {SMALL}"
    )


class Rows(NamedTuple):
    """Tensors whose blocks have the same length, as one matrix with a row per block.

    One matrix for all of them takes a GPU a few operations, where a matrix per tensor takes a few per tensor.

    Args:
        length: the number of entries per block
        entries: the number of entries of each tensor
    """

    length: int
    entries: tuple[int, ...]

    @property
    def counts(self) -> list[int]:
        """The number of rows of each tensor."""
        return [-(-entries // self.length) for entries in self.entries]

    def join(self, tensors: Iterable[Tensor], fill: float = 0.0) -> Tensor:
        """Return the blocks of all tensors, given as vectors. The last block of each is padded with ``fill``."""
        return torch.cat([blocks(tensor, self.length, fill) for tensor in tensors], -2)

    def part(self, rows: Tensor) -> list[Tensor]:
        """Return the entries of each tensor as a vector, without padding."""
        pieces = rows.split(self.counts, -2)
        return [piece.flatten(-2)[..., :entries] for piece, entries in zip(pieces, self.entries, strict=True)]

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums of a vector with an entry per row, for each tensor."""
        return torch.stack([piece.sum(-1) for piece in rows.split(self.counts, -1)], -1)

    def of_each(self, values: Tensor) -> Tensor:
        """Return the value of each row's tensor."""
        return torch.cat([value.expand(count) for value, count in zip(values.unbind(), self.counts, strict=True)])


def together(sizes: Mapping[str, int], block: int | None) -> dict[Rows, list[str]]:
    """Return the names of the tensors whose blocks have the same length, given their numbers of entries."""
    names: dict[int, list[str]] = {}
    for name, entries in sizes.items():
        names.setdefault(length(entries, block), []).append(name)
    return {Rows(each, tuple(sizes[name] for name in alike)): alike for each, alike in names.items()}


def rescaled(u: Tensor, n: Tensor, rows: Rows, spread: float, expected: Expected) -> tuple[Tensor, Tensor]:
    """Return the blocks of an update in units of their noise, and the scale of each block as a column.

    For training: can be compiled and stacked.
    """
    size = magnitude(u, spread)
    v = u / size
    weight = size.squeeze(-1).double().square()  # in float32 the squares may underflow
    whole, left = (rows.sums(weight * each.sum(-1)) for each in (v * v, v * expected(v, n)))
    gain = (whole / left.clamp(min=TINY * TINY)).clamp(1, MAX_GAIN).to(u.dtype)
    return v, rows.of_each(gain).unsqueeze(-1) * size


def magnitude(rows: Tensor, spread: float) -> Tensor:
    """Return the magnitude of each block's noise as a column, by ordinary sums."""
    sums = rows.abs().sum(-1, keepdim=True)
    return (spread * rows.square().sum(-1, keepdim=True) / sums.clamp(min=TINY)).clamp(min=TINY)


def rescaled_exactly(
    x: Tensor, n: Tensor, layout: Layout, spread: float, block: int | None, expected: Expected
) -> tuple[Tensor, Payload]:
    """Return an update in units of its noise, and the array ``scales``. The bits are the same on every device."""
    update, noise = dict(layout.cut(x)), dict(layout.cut(n))
    found: dict[str, tuple[Tensor, Scales]] = {}
    for rows, names in together({name: u.shape[-1] for name, u in update.items()}, block).items():
        u = rows.join(update[name] for name in names)  # [..., blocks, length]
        size = _magnitude(u, spread)
        v = ratio(u, size.to(u.dtype))
        sums = total(v * v), total(v * expected(v, rows.join((noise[name] for name in names), 1.0)))
        columns = torch.stack([size.squeeze(-1).double(), *(each.double() for each in sums)])
        found |= dict(zip(names, zip(rows.part(v), scales_of(columns, rows.counts), strict=True), strict=True))
    ordered = [found[name] for name, _ in layout.shapes]
    units = torch.cat([x[..., :0], *(units for units, _ in ordered)], -1)
    return units, sent([own for _, own in ordered], x.device)


def scales_of(columns: Tensor, counts: Sequence[int]) -> list[Scales]:
    """Return the scales of each tensor's blocks, given each block's magnitude and two sums: [3, ..., blocks]."""
    values = columns.cpu().double().numpy()
    return [_scales(*values[..., end - count : end]) for end, count in zip(accumulate(counts), counts, strict=True)]


def sent(scales: Sequence[Scales], device: torch.device) -> Payload:
    """Return the scales of all tensors as they are sent."""
    joined = torch.from_numpy(np.concatenate(scales, -1) if scales else np.zeros(0, np.float32))
    return {"scales": joined.to(SENT).to(device)}


def _magnitude(rows: Tensor, spread: float) -> Tensor:
    """Return the magnitude of each block's noise as a column of float32; 0 if the block did not change."""
    y, exponent = unit(rows)  # squares of the update itself may underflow
    whole = total(y.abs()).double().unsqueeze(-1)
    found = shift(ratio(total(y * y).double().unsqueeze(-1), whole), exponent) * spread
    return found.to(torch.float32)


def _scales(size: npt.NDArray[np.float64], squares: npt.NDArray[np.float64], along: npt.NDArray[np.float64]) -> Scales:
    """Return the scales of one tensor's blocks, from the magnitude and the sums of each."""
    largest = size.max(-1, initial=0.0, keepdims=True)
    if (most := largest.max(initial=0.0)) > LARGEST:
        raise PayloadError(f"the change is too large for masked noise: magnitude {most:g}, at most {LARGEST:g}")
    share = (size.astype(np.float32) / np.where(largest > 0, largest, 1).astype(np.float32)).astype(np.float64)
    weight = share * share
    whole, left = (total(torch.from_numpy(weight * each)).unsqueeze(-1).numpy() for each in (squares, along))
    gain = np.where(left > 0, np.clip(whole / np.where(left > 0, left, 1), 1.0, MAX_GAIN), 1.0)
    return np.minimum(size * gain, LARGEST).astype(np.float32)


def expect_scales(payload: Payload, layout: Layout, block: int | None) -> list[Scale]:
    """Return the scales of each tensor in a payload. Raise ``PayloadError`` for scales that no update has."""
    lengths = [length(count, block) for count in layout.counts]
    counts = [-(-count // size) for count, size in zip(layout.counts, lengths, strict=True)]
    values = finite(expect(payload, "scales", SENT, sum(counts)), "scales").to(torch.float32)
    if values.numel() and not (float(values.min()) >= 0 and float(values.max()) <= LARGEST):
        raise PayloadError(f"'scales' must be from 0 to {LARGEST:g}, got {values.min():g} to {values.max():g}")
    return list(map(Scale, layout.counts, values.split(counts, -1), lengths))


def by_tensor(pieces: Sequence[Tensor], scales: Sequence[Scale]) -> Iterator[Slice]:
    """Yield the pieces of a vector, cut at the borders of tensors."""
    tensors, first = iter(scales), 0
    left, scale = 0, Scale(0, torch.zeros(0), 1)
    for piece in pieces:
        start = 0
        while start < piece.shape[-1]:
            while not left:
                scale = next(tensors)
                left = scale.entries
            size = min(left, piece.shape[-1] - start)
            yield Slice(piece[..., start : start + size], first, scale.entries - left, scale)
            start, first, left = start + size, first + size, left - size


def clipping(
    tensors: Sequence[Tensor], noise: Kind, alpha: float | None, spread: float, block: int | None
) -> dict[str, float]:
    """Return the shares of an update's entries and of its length that clipping takes; ``alpha`` of none is auto.

    Of a long update, some blocks are measured, or some entries of the only block.
    """
    step = max(1, sum(map(len, tensors)) // ENTRIES)
    sums = [_sums(*sample, noise) for sample in _samples(tensors, step, alpha, spread, block)]
    touched, changed, left, whole = torch.stack(sums).sum(0).tolist() if sums else (0, 0, 0, 0)
    return {
        "clipped": touched / changed if changed else 0.0,
        "clipped_length": 1 - left / whole if whole else 0.0,
    }


def _sums(rows: Tensor, size: Tensor, noise: Kind) -> Tensor:
    """Return the number of entries that clipping touches, that of changed entries, what is left of length, and length.

    They stay on their device, so that a GPU is waited for once.
    """
    v = rows.double().abs() / size
    some, rest = expected(v, noise)
    along = size**2 * v
    return torch.stack([some.sum(), (v > 0).sum(), (along * rest).sum(), (along * v).sum()])


def _samples(
    tensors: Sequence[Tensor], step: int, alpha: float | None, spread: float, block: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every ``step``-th block of all tensors, or entry of an only block, with the magnitudes of the noise.

    Blocks of the same length are measured together.
    """
    several: dict[int, list[Tensor]] = {}
    for u in tensors:
        rows = blocks(u, length(len(u), block if alpha is None else None))
        if len(rows) > 1:
            several.setdefault(rows.shape[1], []).append(rows[::step])
        else:
            yield rows[:, ::step], _noise_of(rows, alpha, spread)
    for alike in several.values():
        yield (rows := torch.cat(alike)), _noise_of(rows, alpha, spread)


def _noise_of(rows: Tensor, alpha: float | None, spread: float) -> Tensor:
    """Return the magnitude of the noise of each row, in float64."""
    return (magnitude(rows, spread) if alpha is None else torch.full_like(rows[:, :1], alpha)).double()


def expected(v: Tensor, noise: Kind) -> tuple[Tensor, Tensor]:
    """Return for each magnitude the probability that it exceeds the noise, and the expectation of what is left."""
    if noise == "uniform":
        inside = v.clamp(max=1)
        return inside, inside - inside.square() / 2
    if noise == "bernoulli":
        return (v > 1).to(v.dtype), v.clamp(max=1)
    root = math.sqrt(2)
    tail = torch.special.erfc(v / root)
    return 1 - tail, v * tail + math.sqrt(2 / math.pi) * (1 - torch.exp(-v.square() / 2))
