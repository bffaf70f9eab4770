"""Federated learning for thin devices and thin links."""

__version__ = "0.1.0"

from gossamer.channels import Lossy, Perfect, Receipt
from gossamer.codecs import Codec, Dense
from gossamer.data import Data, Samples, Split
from gossamer.engines import Options, Result, simulate
from gossamer.errors import ConfigError, GossamerError, PayloadError, RunError
from gossamer.method import Method
from gossamer.methods import METHODS, centralised, fedavg, fedprox, fedsgd, local
from gossamer.servers import Mean
from gossamer.solvers import SGD, Constant, Cosine, Exponential, Steps
from gossamer.tasks import Task
from gossamer.types import Clock, Layout, Params, Part, Payload, State
from gossamer.views import Full

__all__ = [
    "METHODS",
    "SGD",
    "Clock",
    "Codec",
    "ConfigError",
    "Constant",
    "Cosine",
    "Data",
    "Dense",
    "Exponential",
    "Full",
    "GossamerError",
    "Layout",
    "Lossy",
    "Mean",
    "Method",
    "Options",
    "Params",
    "Part",
    "Payload",
    "PayloadError",
    "Perfect",
    "Receipt",
    "Result",
    "RunError",
    "Samples",
    "Split",
    "State",
    "Steps",
    "Task",
    "centralised",
    "fedavg",
    "fedprox",
    "fedsgd",
    "local",
    "simulate",
]
