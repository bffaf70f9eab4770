"""The magnitude of masked noise, measured from the update: ``MaskedNoise(alpha="auto")``.

Each tensor of an update has its own magnitude. For entries u of one tensor and unit noise n:

    a = spread * sum(u^2) / sum(|u|)    the magnitude of the noise; entries that are 0 do not count
    v = u / a                           the update in units of it, from which the mask is drawn
    g = sum(v^2) / sum(v E[n m])        the gain, from 1 to ``MAX_GAIN``
    s = g a                             the scale of the noise at the receiver: it adds s n m

``E[n m]`` is v clipped to the range of its noise. Clipping shortens an update: over uniform noise, ``E[n m]`` is
``v / 2 - v^2 / 4`` with binary masks, for v from 0 to 1, and ``v - v^2 / 2`` with signed masks. Half of the noise has
the wrong sign for a binary mask. The gain makes up for it: the expectation of ``s n m`` has the same inner product with
the update as the update itself. DRIVE and EDEN choose their scales in this way. So an update moves the model as far as
without masks, whatever the magnitude. A larger ``spread`` clips less and makes binary masks sparser, and a smaller one
makes the masked noise less random.

The sender computes v and s with sums that have the same bits on every device. In training, the surrogate computes the
same from the current update with ordinary sums.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.exact import shift, total, unit
from gossamer.core.random.noise import single
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite

MAX_GAIN = 8.0
"""Bounds the gain of a tensor in which noise of the wrong sign, or few large entries, leave little to send."""
LARGEST = 1e30
"""The largest scale. The sum of many clients' noise must be finite too."""
TINY = 1e-30

Expected = Callable[[Tensor, Tensor], Tensor]
"""Maps an update and its noise to the expectation of the masked noise."""


class Scale(NamedTuple):
    """The scale of one tensor.

    Args:
        entries: the number of entries of the tensor
        value: the factor of its noise, a float32 number
    """

    entries: int
    value: float


def rescaled(u: Tensor, n: Tensor, spread: float, expected: Expected) -> tuple[Tensor, Tensor]:
    """Return a tensor of the update in units of its noise, and its scale. For training: can be compiled and stacked."""
    size = magnitude(u, spread)
    v = u / size
    along = (v * expected(v, n)).sum()
    gain = (v.square().sum() / along.clamp(min=TINY)).clamp(1, MAX_GAIN)
    return v, gain * size


def magnitude(u: Tensor, spread: float) -> Tensor:
    """Return the magnitude of a tensor's noise, by ordinary sums."""
    return (spread * u.square().sum() / u.abs().sum().clamp(min=TINY)).clamp(min=TINY)


def rescaled_exactly(x: Tensor, n: Tensor, layout: Layout, spread: float, expected: Expected) -> tuple[Tensor, Payload]:
    """Return an update in units of its noise, and the array ``scales``. The bits are the same on every device."""
    parts, scales = [x[:0]], []
    for (_, u), (_, own) in zip(layout.cut(x), layout.cut(n), strict=True):
        size = _magnitude(u, spread)
        # A tensor, not a Python number: a GPU divides by a number by multiplying with its inverse.
        v = u / torch.tensor(size or 1.0, dtype=u.dtype, device=u.device)
        parts.append(v)
        scales.append(single(min(size * _gain(v, expected(v, own)), LARGEST)))
    return torch.cat(parts), {"scales": torch.tensor(scales, dtype=torch.float32, device=x.device)}


def _magnitude(u: Tensor, spread: float) -> float:
    """Return the magnitude of the noise as a float32 number; 0 if the tensor did not change."""
    y, exponent = unit(u)  # squares of the update itself may underflow
    whole = float(total(y.abs()))
    own = torch.tensor([float(total(y * y)) / whole if whole else 0.0], dtype=torch.float64)
    found = spread * float(shift(own, exponent.cpu()))
    if found > LARGEST:
        raise PayloadError(f"the change is too large for masked noise: magnitude {found:g}, at most {LARGEST:g}")
    return single(found)


def _gain(v: Tensor, expected: Tensor) -> float:
    along = float(total(v * expected))
    return min(max(float(total(v * v)) / along, 1.0), MAX_GAIN) if along > 0 else 1.0


def expect_scales(payload: Payload, layout: Layout) -> list[Scale]:
    """Return the scale of each tensor in a payload. Raise ``PayloadError`` for scales that no update has."""
    values = finite(expect(payload, "scales", torch.float32, len(layout.shapes)), "scales").tolist()
    if not all(0 <= value <= LARGEST for value in values):
        raise PayloadError(f"'scales' must be from 0 to {LARGEST:g}, got {min(values):g} to {max(values):g}")
    return [Scale(count, value) for count, value in zip(layout.counts, values, strict=True)]


def by_tensor(pieces: Sequence[Tensor], scales: Sequence[Scale]) -> Iterator[tuple[Tensor, int, float]]:
    """Yield the pieces of a vector, cut at the borders of tensors, each with its first entry and its scale."""
    tensors, first = iter(scales), 0
    left, value = 0, 0.0
    for piece in pieces:
        start = 0
        while start < len(piece):
            while not left:
                left, value = next(tensors)
            size = min(left, len(piece) - start)
            yield piece[start : start + size], first, value
            start, first, left = start + size, first + size, left - size
