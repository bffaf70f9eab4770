"""Forms: what server and clients hold, and the network's tensors that follow from it.

Mostly they hold the network's own tensors. But they may hold something else of the same shapes, such as scores from
which masks over frozen weights are drawn, and train that.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach

if TYPE_CHECKING:
    from gossamer.core.parametrization import Parametrization as Parametrization
    from gossamer.core.parametrization import Weights as Weights
    from gossamer.parts.parametrizations.supermask import Supermask as Supermask

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__)
