"""Width rules: which dimensions of a network's tensors are channels, and which are tied."""

from gossamer.widths.axes import Axis, Factor
from gossamer.widths.base import Ties, Widths, ties
from gossamer.widths.derive import derive

__all__ = ["Axis", "Factor", "Ties", "Widths", "derive", "ties"]
