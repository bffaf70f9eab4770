"""Servers: the aggregation of client updates."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import attach

if TYPE_CHECKING:
    from gossamer.core.server import Server as Server
    from gossamer.parts.servers.average import Average as Average
    from gossamer.parts.servers.average import MajorityAverage as MajorityAverage
    from gossamer.parts.servers.average import MaskAverage as MaskAverage
    from gossamer.parts.servers.average import PrunedAverage as PrunedAverage
    from gossamer.parts.servers.gradient_similarity import GradientSimilarity as GradientSimilarity
    from gossamer.parts.servers.low_rank import AdapterMean as AdapterMean
    from gossamer.parts.servers.low_rank import Stacking as Stacking
    from gossamer.parts.servers.mean import Mean as Mean
    from gossamer.parts.servers.mean import Sum as Sum
    from gossamer.parts.servers.mean import WeightedMean as WeightedMean
    from gossamer.parts.servers.mean import Weighting as Weighting
    from gossamer.parts.servers.model_rotation import ModelRotation as ModelRotation
    from gossamer.parts.servers.model_rotation import WarmUp as WarmUp
    from gossamer.parts.servers.private import AdaptiveClip as AdaptiveClip
    from gossamer.parts.servers.private import PrivateMean as PrivateMean
    from gossamer.parts.servers.private_tree import TreeMean as TreeMean
    from gossamer.parts.servers.robust.krum import Krum as Krum
    from gossamer.parts.servers.robust.krum import MultiKrum as MultiKrum
    from gossamer.parts.servers.robust.rules import Bucketing as Bucketing
    from gossamer.parts.servers.robust.rules import CenteredClipping as CenteredClipping
    from gossamer.parts.servers.robust.rules import Clip as Clip
    from gossamer.parts.servers.robust.rules import GeometricMedian as GeometricMedian
    from gossamer.parts.servers.robust.rules import Median as Median
    from gossamer.parts.servers.robust.rules import TrimmedMean as TrimmedMean
    from gossamer.parts.servers.robust.server import Robust as Robust
    from gossamer.parts.servers.robust.server import Rule as Rule
    from gossamer.parts.servers.sums import Hiso as Hiso
    from gossamer.parts.servers.sums import SeedSums as SeedSums
    from gossamer.parts.servers.sums import SumThenDecode as SumThenDecode

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__)
