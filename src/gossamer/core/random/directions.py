"""Random directions that all machines draw from one key, for methods that send scalars.

Direction ``j`` of a key has one entry per entry of the trained tensors. Tensor ``i``, in name order, draws its entries
on its own, so that no more than one tensor of a direction is in memory:

    rademacher   -1 or 1. A uniform number of ``draws(key, j // 24, n, layer=i)`` has 24 bits, and bit ``j % 24`` is the
                 sign: 24 directions share one draw
    gauss        standard normal, from ``draws(key, j, n, layer=i)`` and the table of ``gossamer.core.random.noise``.
                 The first of the 24 bits is the sign. The largest magnitude is 5.4

The bits are the same on every device and under ``torch.vmap``. Sums of directions are elementwise products and sums, in
the order of the directions, so they have the same bits on every device too.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from gossamer.core import exact
from gossamer.core.random.noise import normal_of
from gossamer.core.random.streams import draws

DirectionKind = Literal["rademacher", "gauss"]
DIRECTION_KINDS: tuple[DirectionKind, ...] = get_args(DirectionKind)

BITS = 24
"""Bits of a uniform number."""


def direction(kind: DirectionKind, key: Tensor, number: Tensor, n: int, layer: int) -> Tensor:
    """Return the ``n`` entries of one tensor in a direction, as float32. It can be stacked and compiled.

    ``key`` is from ``gossamer.core.random.tensor``, ``number`` is an integer tensor with one element.
    """
    if kind == "gauss":
        return _gauss(key, number, n, layer)
    return _signs(_whole(draws(key, number // BITS, n, layer)), (number % BITS).to(torch.int32))


def directions(kind: DirectionKind, key: Tensor, used: list[bool], n: int, layer: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the number and the entries of each used direction, in order. Directions of one draw share it."""
    for first in range(0, len(used), BITS):
        block = [number for number in range(first, min(first + BITS, len(used))) if used[number]]
        if kind == "gauss":
            yield from ((number, _gauss(key, _number(number, key), n, layer)) for number in block)
        elif block:
            bits = _whole(draws(key, _number(first // BITS, key), n, layer))
            yield from ((number, _signs(bits, number - first)) for number in block)


def combine(kind: DirectionKind, key: Tensor, coefficients: Tensor, n: int, layer: int) -> Tensor:
    """Return the sum of the directions, each times its coefficient, for one tensor, in the coefficients' type.

    It is ``(a_0 z_0 + a_1 z_1) + a_2 z_2 + ...`` without the terms whose coefficient is zero.
    """
    total = coefficients.new_zeros(n)
    for number, entries in directions(kind, key, (coefficients != 0).tolist(), n, layer):
        total += entries.to(total.dtype) * coefficients[number]  # two operations: a fused one is rounded once
    return total


def project(kind: DirectionKind, key: Tensor, x: Tensor, count: int, layer: int) -> Tensor:
    """Return the inner products of the entries of one tensor with the first ``count`` directions."""
    found = [exact.total(z.to(x.dtype) * x) for _, z in directions(kind, key, [True] * count, x.numel(), layer)]
    return torch.stack(found) if found else x.new_zeros(0)


def _number(number: int, like: Tensor) -> Tensor:
    return torch.tensor(number, dtype=torch.int64, device=like.device)


def _whole(uniform: Tensor) -> Tensor:
    """Return the 24 bits of uniform numbers as integers."""
    return (uniform * 2.0**BITS).to(torch.int32)


def _signs(bits: Tensor, number: Tensor | int) -> Tensor:
    return ((bits >> number) & 1).to(torch.float32).mul_(2).sub_(1)


def _gauss(key: Tensor, number: Tensor, n: int, layer: int) -> Tensor:
    """Return normal numbers from 24 bits, in the middle of the 2**8 numbers of 32 bits that begin with them."""
    return normal_of((_whole(draws(key, number, n, layer)).to(torch.int64) << 8) + 128)
