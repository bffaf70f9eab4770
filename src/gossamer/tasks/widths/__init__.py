"""Width rules: which dimensions of a network's tensors are channels, and which of them are tied."""

from gossamer.tasks.widths.base import Axis, Factor, Ties, Widths, ties
from gossamer.tasks.widths.derive import derive

__all__ = ["Axis", "Factor", "Ties", "Widths", "derive", "ties"]
