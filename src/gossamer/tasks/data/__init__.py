"""Data sets, and the partition of their samples over clients."""

from gossamer.tasks.data.augment import Augment, CropFlip
from gossamer.tasks.data.datasets import DATASETS, Source, load
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.partitioners import (
    SPLITS,
    Dirichlet,
    DirichletClient,
    Iid,
    Labels,
    Natural,
    Quantile,
    Rule,
    Shards,
    Slices,
)
from gossamer.tasks.data.picture import draw, table
from gossamer.tasks.data.samples import Data, Samples
from gossamer.tasks.data.splits import split

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
    "Quantile",
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
