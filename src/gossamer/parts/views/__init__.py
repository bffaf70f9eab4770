"""Views: which entries of the model a client holds and trains in a round."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach

if TYPE_CHECKING:
    from gossamer.core.view import View as View
    from gossamer.parts.views.entries import Bernoulli as Bernoulli
    from gossamer.parts.views.entries import Full as Full
    from gossamer.parts.views.entries import Windows as Windows
    from gossamer.parts.views.magnitude import LargestWeights as LargestWeights
    from gossamer.parts.views.magnitude import MagnitudePruned as MagnitudePruned
    from gossamer.parts.views.personal_mask import PersonalMask as PersonalMask
    from gossamer.parts.views.pruned import Pruned as Pruned
    from gossamer.parts.views.pruned import PrunedChannels as PrunedChannels
    from gossamer.parts.views.sliced import RankSlice as RankSlice
    from gossamer.parts.views.sliced import WidthSlice as WidthSlice

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__)
