"""Data sets, and the partition of their samples over clients."""

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
from gossamer.tasks.data.samples import Augment, CropFlip, Data, Samples
from gossamer.tasks.data.splits import draw, split, table

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
