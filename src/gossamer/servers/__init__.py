"""Servers: what happens to what arrives."""

from gossamer.servers.average import Average, MaskAverage
from gossamer.servers.base import BoundServer, MeasuredServer, ModelPerClient, Server
from gossamer.servers.codes import CodedMean
from gossamer.servers.compare import Compare
from gossamer.servers.mean import Mean, Sum, Weights
from gossamer.servers.shuffle import Shuffle, WarmUp

__all__ = [
    "Average",
    "BoundServer",
    "CodedMean",
    "Compare",
    "MaskAverage",
    "Mean",
    "MeasuredServer",
    "ModelPerClient",
    "Server",
    "Shuffle",
    "Sum",
    "WarmUp",
    "Weights",
]
