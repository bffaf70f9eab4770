"""The Hadamard transform, made of sums and differences in one order, so that bits agree on all devices.

In stage s each entry meets the one 2**s places on: their sum takes the first place, their difference the second. After
log2(d) stages d entries are transformed. The order of the stages decides how results are rounded, and is kept. The way
through memory is free, and decides how long it takes. A CPU therefore takes few enough entries at a time to stay in its
cache: the first stages by stretches of neighbours, the others by slices across all stretches. It is fastest along the
columns of a wide matrix, whose sums run over whole rows.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

CACHED = 2**17  # how many entries a CPU transforms at a time

Pair = tuple[Tensor, ...]


def hadamard_(x: Tensor, dim: int = -1) -> Tensor:
    """The transform along a dimension, whose length d is a power of two, in place; twice makes d times as much."""
    d, run = x.shape[dim], math.prod(x.shape[dim:][1:])
    low = _low(d, run)
    _mix(x.view(-1, low, run))
    _mix(x.view(-1, d // low, low * run))
    return x


def _low(d: int, run: int) -> int:
    """How many neighbours meet in the first stages: all that fit a cache, but no less than about the root of d."""
    fits = 1 << max(1, CACHED // run).bit_length() - 1
    return min(d, max(1 << d.bit_length() // 2, fits))


def _mix(x: Tensor) -> None:
    """The transform along the middle one of three dimensions, in place."""
    if x.shape[1] == 1:
        return
    shape, between = torch.Size(), list[tuple[Pair, Pair]]()
    for part in _parts(x):
        if part.shape != shape:
            shape, between = part.shape, _between(part)
        _butterflies(part, between)


def _parts(x: Tensor) -> Iterator[Tensor]:
    """What is transformed at a time: all, or on a CPU as much as fits its cache."""
    if x.device.type != "cpu":
        yield x
        return
    width = max(1, min(x.shape[2], CACHED // x.shape[1]))
    for rows in torch.split(x, max(1, CACHED // (x.shape[1] * width))):
        yield from torch.split(rows, width, 2)


def _between(like: Tensor) -> list[tuple[Pair, Pair]]:
    """Where each stage but the last puts its results, by turns in two places, and where the next finds them."""
    spare = [torch.empty_like(like, memory_format=torch.contiguous_format) for _ in range(2)]
    stages = range(like.shape[1].bit_length() - 2)
    return [(_halves(spare[stage % 2], stage), _halves(spare[stage % 2], stage + 1)) for stage in stages]


def _butterflies(x: Tensor, between: list[tuple[Pair, Pair]]) -> None:
    """All stages, from ``x`` back to ``x``; a single one must not overwrite what it reads."""
    found = _halves(x if between else x.clone(), 0)
    for results, following in between:
        _meet(found, results)
        found = following
    _meet(found, _halves(x, len(between)))


def _halves(x: Tensor, stage: int) -> Pair:
    """The first and the second of all that meet in a stage."""
    rows, d, run = x.shape
    return x.view(rows, d >> stage + 1, 2, 1 << stage, run).unbind(2)


def _meet(found: Pair, results: Pair) -> None:
    torch.add(*found, out=results[0])
    torch.sub(*found, out=results[1])
