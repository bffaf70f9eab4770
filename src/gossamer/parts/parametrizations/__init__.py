"""Parametrizations: which tensors are trained and sent, and how the network's tensors follow from them.

By default (``Weights``), they are the network's own tensors. They can also be other tensors of the same shapes, such as
scores of masks over frozen weights (``Supermask``).
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach

if TYPE_CHECKING:
    from gossamer.core.parametrization import Parametrization as Parametrization
    from gossamer.core.parametrization import Weights as Weights
    from gossamer.parts.parametrizations.supermask import Supermask as Supermask

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__)
