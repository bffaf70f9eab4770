"""Random directions that all machines draw from one key, for methods that send scalars.

Direction ``j`` of a key has one entry per entry of the trained tensors. Tensor ``i``, in name order, draws its entries
on its own, so that no more than one tensor of a direction is in memory:

    rademacher   -1 or 1. A uniform number of ``draws(key, j // 24, n, layer=i)`` has 24 bits, and bit ``j % 24`` is the
                 sign: 24 directions share one draw
    gauss        standard normal, from ``draws(key, j, n, layer=i)`` and the table of ``gossamer.core.random.noise``.
                 The first of the 24 bits is the sign. The largest magnitude is 5.4

The bits are the same on every device and under ``torch.vmap``. Sums of directions are elementwise products and sums, in
the order of the directions, so they have the same bits on every device too.

Of ``[K, 2]`` keys, a direction has a row per key, ``[K, n]``. Coefficients are then ``[K, count]``.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from gossamer.core import exact
from gossamer.core.random.noise import normal_of
from gossamer.core.random.streams import draw_bits

DirectionKind = Literal["rademacher", "gauss"]
DIRECTION_KINDS: tuple[DirectionKind, ...] = get_args(DirectionKind)

Number = Tensor | int
"""The number of a direction: an integer tensor with one element where it depends on the step, or ``[K]`` of rows."""

Piece = tuple[int, int]
"""The number of a tensor, and the number of its entries."""

BITS = 24
"""Bits of a uniform number."""
TOGETHER = 2**18
"""Entries of small tensors that are drawn and added together: 1 MB of float32."""


def direction(kind: DirectionKind, key: Tensor, number: Number, n: int, layer: int) -> Tensor:
    """Return the ``n`` entries of one tensor in a direction, as float32. It can be stacked and compiled.

    ``key`` is from ``gossamer.core.random.tensor``.
    """
    return taken(kind, drawn(kind, key, draw_number(kind, number), [(layer, n)]), place(number))


def draw_number(kind: DirectionKind, number: Number) -> Number:
    """Return the number of the draw that a direction is taken from."""
    return number if kind == "gauss" else number // BITS


def drawn(kind: DirectionKind, key: Tensor, number: Number, pieces: Sequence[Piece]) -> Tensor:
    """Return one draw for some tensors, one after the other: 24 bits per entry as integers, or normal numbers."""
    at = torch.full((), number, dtype=torch.int64, device=key.device) if isinstance(number, int) else number
    bits = torch.cat([draw_bits(key, at, n, layer) for layer, n in pieces], -1)
    # In the middle of the 2**8 numbers of 32 bits that begin with these bits.
    return normal_of((bits.to(torch.int64) << 8) + 128) if kind == "gauss" else bits


def place(number: Number) -> Number:
    """Return the bit of a direction in its draw, as an integer with this bit set."""
    bit = 1 << number % BITS
    return bit.to(torch.int32) if isinstance(bit, Tensor) else bit


def taken(kind: DirectionKind, draw: Tensor, bit: Number) -> Tensor:
    """Return the entries of a direction, given its draw and its ``place`` there."""
    if kind == "gauss":
        return draw
    own = bit.unsqueeze(-1) if isinstance(bit, Tensor) and draw.dim() > 1 else bit
    return torch.where((draw & own) != 0, 1.0, -1.0)


def directions(
    kind: DirectionKind, key: Tensor, used: Sequence[bool], pieces: Sequence[Piece]
) -> Iterator[tuple[int, Tensor]]:
    """Yield the number and the entries of each used direction, in order. Directions of one draw share it."""
    last, draw = -1, key
    for number in (number for number, wanted in enumerate(used) if wanted):
        if (at := int(draw_number(kind, number))) != last:
            last, draw = at, drawn(kind, key, at, pieces)
        yield number, taken(kind, draw, place(number))


def together(sizes: Sequence[int]) -> list[slice]:
    """Return which tensors, given their numbers of entries, are drawn together: as many in a row as have room.

    >>> together([150_000, 100_000, 50_000, 800_000])
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    first, room, groups = 0, TOGETHER, []
    for number, size in enumerate(sizes):
        if size > room and number > first:
            groups.append(slice(first, number))
            first, room = number, TOGETHER
        room -= size
    return [*groups, slice(first, len(sizes))] if sizes else []


def combine(kind: DirectionKind, key: Tensor, coefficients: Tensor, pieces: Sequence[Piece]) -> list[Tensor]:
    """Return the sum of the directions, each times its coefficient, for each tensor, in the coefficients' type.

    It is ``(a_0 z_0 + a_1 z_1) + a_2 z_2 + ...`` without the terms whose coefficient is zero.
    """
    used, sums = (coefficients != 0).view(-1, max(1, coefficients.shape[-1])).any(0).tolist(), list[Tensor]()
    for group in together([n for _, n in pieces]):
        sizes = [n for _, n in pieces[group]]
        total = coefficients.new_zeros(*coefficients.shape[:-1], sum(sizes))
        for number, entries in directions(kind, key, used, pieces[group]):
            # Two operations: a fused one is rounded once. A row without this direction adds zeros, which change no bit.
            total += entries.to(total.dtype) * coefficients[..., number : number + 1]
        sums += total.split(sizes, -1)
    return sums


def project(kind: DirectionKind, key: Tensor, x: Tensor, count: int, layer: int) -> Tensor:
    """Return the inner products of the entries of one tensor with the first ``count`` directions."""
    every = directions(kind, key, [True] * count, [(layer, x.shape[-1])])
    found = [exact.total(z.to(x.dtype) * x) for _, z in every]
    return torch.stack(found, -1) if found else x.new_zeros(*x.shape[:-1], 0)
