"""Dimensions of tensors as products of units, and ties between units: tied units keep the same channels.

A dimension is a product of units, the outermost first. For example, the flattened output of a convolution is channels
times height times width. An operation ties units of two dimensions. Tying a product to a single unit splits the unit in
the same way. A concatenation makes a unit a sum of dimensions. A ``fixed`` unit keeps all its channels: units of the
input, of the output, of image positions, or numbers written in code.
"""

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

Dim = tuple["Unit", ...]


class MismatchError(Exception):
    """Two dimensions that cannot be tied."""


class Unit:
    """A factor of a dimension: a plain unit, one tied to another (``same``), a product, or a sum of dimensions."""

    def __init__(self, size: int, fixed: bool = False) -> None:
        self.size, self.fixed = size, fixed
        self.same: Unit | None = None
        self.product: Dim = ()
        self.sum: tuple[Dim, ...] = ()
        self.met = False
        """Whether a layer has already used it as input."""

    def root(self) -> "Unit":
        """Return the representative of all units tied to this one."""
        found = self
        while found.same is not None:
            found = found.same
        return found


def plain(dim: Iterable[Unit]) -> list[Unit]:
    """Return the plain units of a dimension, without units of size 1."""
    found: list[Unit] = []
    for unit in dim:
        root = unit.root()
        found += plain(root.product) if root.product else [root] if root.size > 1 else []
    return found


def length(dim: Iterable[Unit]) -> int:
    """Return the number of entries of a dimension."""
    return math.prod(unit.size for unit in dim)


def fix(dim: Iterable[Unit]) -> None:
    """Fix a dimension: all its channels are kept."""
    for unit in plain(dim):
        unit.fixed = True
        for part in unit.sum:
            fix(part)


def split(unit: Unit, outer: int, literal: bool = True) -> Dim:
    """Split a plain unit into a product of two; the outer one is fixed if code states it and the inner one is not 1."""
    if unit.size % outer or unit.sum:
        raise MismatchError(f"a dimension of {unit.size} cannot be cut into {outer}")
    inner = unit.size // outer
    unit.product = (Unit(outer, unit.fixed or (literal and inner > 1)), Unit(inner, unit.fixed))
    for factor in unit.product:
        factor.met = unit.met
    return unit.product


def tie(a: Dim, b: Dim) -> None:
    """Tie two dimensions."""
    if length(a) != length(b):
        raise MismatchError(f"dimensions of {length(a)} and {length(b)} meet")
    left, right = plain(a)[::-1], plain(b)[::-1]
    while left and right:
        one, other = left.pop().root(), right.pop().root()
        if one.product or other.product:  # a repeated unit that was split or tied before
            left += plain((one,))[::-1]
            right += plain((other,))[::-1]
        elif one.size < other.size:
            right += reversed(split(other, one.size, literal=False))
            left.append(one)
        elif other.size < one.size:
            left += reversed(split(one, other.size, literal=False))
            right.append(other)
        else:
            _join(one, other)


def tie_all(a: Sequence[Dim], b: Sequence[Dim]) -> None:
    """Tie the dimensions of two lists, one by one."""
    for one, other in zip(a, b, strict=True):
        tie(one, other)


def _join(one: Unit, other: Unit) -> None:
    if one is other:
        return
    if one.sum and other.sum:
        if [length(part) for part in one.sum] != [length(part) for part in other.sum]:
            raise MismatchError("two concatenations with other lengths meet")
        tie_all(one.sum, other.sum)
    elif other.sum:
        one, other = other, one
    fixed = one.fixed or other.fixed
    other.same, one.met = one, one.met or other.met
    if fixed:
        fix((one,))


def regroup(dims: Sequence[Dim], sizes: Sequence[int]) -> list[Dim]:
    """Return the same entries in other dimensions, as ``view`` does."""
    left = [unit for dim in dims for unit in plain(dim)][::-1]
    found: list[Dim] = []
    for size in sizes:
        taken: list[Unit] = []
        while (wanted := size // length(taken)) > 1:
            unit = left.pop()
            if wanted % unit.size:
                outer, inner = split(unit, wanted)
                left.append(inner)
                unit = outer
            taken += plain((unit,))
        found.append(tuple(taken))
    return found


def fresh(size: int, fixed: bool = False) -> Dim:
    """Return a new dimension without ties."""
    return (Unit(size, fixed),)


def concatenated(dims: Sequence[Dim]) -> Dim:
    """Return the concatenation of dimensions."""
    unit = Unit(sum(map(length, dims)))
    unit.sum = tuple(dims)
    return (unit,)


class Tracked:
    """The dimensions of the tensors that a trace has seen.

    With ``streams`` added dimensions are tied. Without it, a sum takes the channels of the newest layer: each layer
    then draws its own channels, as in published code for random sub-models.
    """

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        self._known: dict[int, tuple[Tensor, list[Dim]]] = {}

    def dims(self, tensor: Tensor) -> list[Dim]:
        """Return the dimensions of a tensor; an unknown tensor gets new ones."""
        if id(tensor) not in self._known:
            self.put(tensor, [fresh(size) for size in tensor.shape])
        return self._known[id(tensor)][1]

    def put(self, tensor: Tensor, dims: list[Dim]) -> None:
        """Store the dimensions of a tensor, and keep the tensor so that its id is not reused."""
        self._known[id(tensor)] = tensor, dims
