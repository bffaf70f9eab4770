"""Derive the width rule of a network from one forward pass."""

from collections.abc import Mapping

from torch import Tensor, nn

from gossamer.core.errors import ConfigError
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.widths.axes import Axis, Factor
from gossamer.tasks.widths.base import Widths
from gossamer.tasks.widths.dims import Dim, Unit, length, plain
from gossamer.tasks.widths.trace import follow


def derive(module: nn.Module, tensors: Mapping[str, Tensor], x: Nest, streams: bool = True) -> Widths:
    """Derive the rule for the tensors of a module from one forward pass on samples ``x``.

    ``streams`` ties dimensions that are added, so that a residual stream has the same channels everywhere. Without it,
    every layer has its own channels, and sums add up unrelated channels.
    """
    x = nests.concatenate([x, x]) if nests.count(x) == 1 else x  # a batch norm needs two samples for a variance
    try:
        trace, output = follow(module, tensors, x, streams)
    except ConfigError as error:
        raise ConfigError(
            *(f"the width rule cannot be derived: {mistake}; state it by hand" for mistake in error.mistakes)
        ) from None
    names = _Names()
    known = {name: trace.dims(tensor) for name, tensor in tensors.items()}
    axes = {
        name: tuple(names.axis(name, number, dim) for number, dim in enumerate(dims)) for name, dims in known.items()
    }
    last = plain(output[-1]) if output else []
    labels = [(name, number) for name, dims in known.items() for number, dim in enumerate(dims) if plain(dim) == last]
    return Widths(tuple(names.sizes.items()), tuple(axes.items()), tuple(labels))


class _Names:
    """Names each group after its first layer."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.sizes: dict[str, int] = {}

    def axis(self, tensor: str, number: int, dim: Dim) -> Axis:
        if length(dim) == 1:
            return Axis((Factor(1),))
        return Axis(_merged([self.factor(tensor, unit) for unit in plain(dim)]))

    def factor(self, tensor: str, unit: Unit) -> Factor:
        if unit.sum:
            parts = tuple(self.axis(tensor, 0, part) for part in unit.sum)
            return Factor(unit.size, None, parts if any(part.groups for part in parts) else ())
        return Factor(unit.size, None if unit.fixed else self.name(tensor, unit))

    def name(self, tensor: str, unit: Unit) -> str:
        if id(unit) not in self.names:
            layer = tensor.rpartition(".")[0] or tensor
            taken = sum(1 for name in self.sizes if name == layer or name.startswith(f"{layer}#"))
            self.names[id(unit)] = f"{layer}#{taken + 1}" if taken else layer
            self.sizes[self.names[id(unit)]] = unit.size
        return self.names[id(unit)]


def _merged(factors: list[Factor]) -> tuple[Factor, ...]:
    """Merge neighbouring factors without groups."""
    found: list[Factor] = []
    for factor in factors:
        if found and not factor.groups and not found[-1].groups:
            found[-1] = Factor(found[-1].size * factor.size)
        else:
            found.append(factor)
    return tuple(found)
