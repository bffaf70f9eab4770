"""Fast Hadamard transform with the same bits on all devices: sums and differences in a fixed order.

In stage s, entries at distance 2**s are paired: their sum replaces the first, their difference the second. After
log2(d) stages, d entries are transformed. The order of the stages determines the rounding, so it is fixed. The order of
memory accesses is free, and determines the speed. A CPU therefore works on blocks that fit into its cache: contiguous
blocks for the first stages, strided slices for the others. The transform is fastest along the columns of a wide matrix,
where sums run over whole rows.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gossamer.core.exact import CACHED

Pair = tuple[Tensor, ...]


def hadamard_(x: Tensor, dim: int = -1) -> Tensor:
    """Transform in place along a dimension whose length d is a power of two. Applied twice, it multiplies by d."""
    d, run = x.shape[dim], math.prod(x.shape[dim:][1:])
    low = _low(d, run)
    _mix(x.view(-1, low, run))
    _mix(x.view(-1, d // low, low * run))
    return x


def _low(d: int, run: int) -> int:
    """Return the block length of the first stages: as large as fits the cache, and at least about sqrt(d)."""
    fits = 1 << max(1, CACHED // run).bit_length() - 1
    return min(d, max(1 << d.bit_length() // 2, fits))


def _mix(x: Tensor) -> None:
    """Transform in place along the second of three dimensions."""
    if x.shape[1] == 1:
        return
    shape, buffers = torch.Size(), list[tuple[Pair, Pair]]()
    for part in _parts(x):
        if part.shape != shape:
            shape, buffers = part.shape, _buffers(part)
        _butterflies(part, buffers)


def _parts(x: Tensor) -> Iterator[Tensor]:
    """Yield the parts to transform one after the other: everything, or on a CPU parts that fit its cache."""
    if x.device.type != "cpu":
        yield x
        return
    width = max(1, min(x.shape[2], CACHED // x.shape[1]))
    for rows in torch.split(x, max(1, CACHED // (x.shape[1] * width))):
        yield from torch.split(rows, width, 2)


def _buffers(like: Tensor) -> list[tuple[Pair, Pair]]:
    """Return views of two alternating buffers: the output of each stage but the last, and the input of the next."""
    spare = [torch.empty_like(like, memory_format=torch.contiguous_format) for _ in range(2)]
    stages = range(like.shape[1].bit_length() - 2)
    return [(_halves(spare[stage % 2], stage), _halves(spare[stage % 2], stage + 1)) for stage in stages]


def _butterflies(x: Tensor, buffers: list[tuple[Pair, Pair]]) -> None:
    """Compute all stages from ``x`` to ``x``. A single stage reads a copy, because it overwrites its input."""
    inputs = _halves(x if buffers else x.clone(), 0)
    for outputs, following in buffers:
        _butterfly(inputs, outputs)
        inputs = following
    _butterfly(inputs, _halves(x, len(buffers)))


def _halves(x: Tensor, stage: int) -> Pair:
    """Return the first and the second entries of all pairs of a stage."""
    rows, d, run = x.shape
    return x.view(rows, d >> stage + 1, 2, 1 << stage, run).unbind(2)


def _butterfly(inputs: Pair, outputs: Pair) -> None:
    if inputs[0].shape[2:] == (2, 1):  # two long loops are faster than many loops over two entries
        for column in (0, 1):
            _butterfly(tuple(x[:, :, column] for x in inputs), tuple(x[:, :, column] for x in outputs))
        return
    torch.add(*inputs, out=outputs[0])
    torch.sub(*inputs, out=outputs[1])
