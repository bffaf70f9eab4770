"""Federated learning for thin devices and thin links."""

__version__ = "0.1.0"

from gossamer.channels import Lossy, Perfect, Receipt
from gossamer.codecs import (
    Codec,
    Dense,
    Drive,
    Eden,
    Feedback,
    Lift,
    MaskedNoise,
    SampledMask,
    Sparse,
    StochasticSign,
    Subsample,
    Ternary,
    TopK,
)
from gossamer.data import Data, Samples, Split
from gossamer.engines import Options, Result, simulate
from gossamer.errors import ConfigError, GossamerError, PayloadError, RunError
from gossamer.forms import Supermask, Weights
from gossamer.method import Method
from gossamer.methods import (
    METHODS,
    centralised,
    drive,
    eden,
    fedavg,
    fedmrn,
    fedmrns,
    fedpm,
    fedprox,
    fedsgd,
    fedsparsify,
    local,
    signsgd,
    subsample,
    terngrad,
    topk,
)
from gossamer.servers import Average, MaskAverage, Mean
from gossamer.solvers import SGD, Adam, Constant, Cosine, Exponential, PruningSGD, Steps
from gossamer.tasks import Task
from gossamer.types import Clock, Layout, Params, Part, Payload, State
from gossamer.views import Full

__all__ = [
    "METHODS",
    "SGD",
    "Adam",
    "Average",
    "Clock",
    "Codec",
    "ConfigError",
    "Constant",
    "Cosine",
    "Data",
    "Dense",
    "Drive",
    "Eden",
    "Exponential",
    "Feedback",
    "Full",
    "GossamerError",
    "Layout",
    "Lift",
    "Lossy",
    "MaskAverage",
    "MaskedNoise",
    "Mean",
    "Method",
    "Options",
    "Params",
    "Part",
    "Payload",
    "PayloadError",
    "Perfect",
    "PruningSGD",
    "Receipt",
    "Result",
    "RunError",
    "SampledMask",
    "Samples",
    "Sparse",
    "Split",
    "State",
    "Steps",
    "StochasticSign",
    "Subsample",
    "Supermask",
    "Task",
    "Ternary",
    "TopK",
    "Weights",
    "centralised",
    "drive",
    "eden",
    "fedavg",
    "fedmrn",
    "fedmrns",
    "fedpm",
    "fedprox",
    "fedsgd",
    "fedsparsify",
    "local",
    "signsgd",
    "simulate",
    "subsample",
    "terngrad",
    "topk",
]
