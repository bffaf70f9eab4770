"""Data sets, and how their samples are split over clients."""

from gossamer.data.augment import Augment, CropFlip
from gossamer.data.datasets import DATASETS, Source, load
from gossamer.data.partition import Split
from gossamer.data.picture import draw, table
from gossamer.data.rules import (
    SPLITS,
    Dirichlet,
    DirichletClient,
    Iid,
    Labels,
    Natural,
    Rule,
    Shards,
    Slices,
)
from gossamer.data.samples import Data, Samples
from gossamer.data.splits import split

__all__ = [
    "DATASETS",
    "SPLITS",
    "Augment",
    "CropFlip",
    "Data",
    "Dirichlet",
    "DirichletClient",
    "Iid",
    "Labels",
    "Natural",
    "Rule",
    "Samples",
    "Shards",
    "Slices",
    "Source",
    "Split",
    "draw",
    "load",
    "split",
    "table",
]
