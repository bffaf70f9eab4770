"""Views: which entries of the model a client holds and trains in a round."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach

if TYPE_CHECKING:
    from gossamer.core.view import BoundView as BoundView
    from gossamer.core.view import DescribedView as DescribedView
    from gossamer.core.view import NestedView as NestedView
    from gossamer.core.view import View as View
    from gossamer.core.view import ViewMemory as ViewMemory
    from gossamer.parts.views.bernoulli import Bernoulli as Bernoulli
    from gossamer.parts.views.full import Full as Full
    from gossamer.parts.views.largest_weights import LargestWeights as LargestWeights
    from gossamer.parts.views.magnitude_pruned import MagnitudePruned as MagnitudePruned
    from gossamer.parts.views.personal_mask import PersonalMask as PersonalMask
    from gossamer.parts.views.pruned import Pruned as Pruned
    from gossamer.parts.views.pruned_channels import PrunedChannels as PrunedChannels
    from gossamer.parts.views.rank_slice import RankSlice as RankSlice
    from gossamer.parts.views.width_slice import WidthSlice as WidthSlice
    from gossamer.parts.views.windows import Windows as Windows

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__)
