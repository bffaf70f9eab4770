"""Servers: what happens to what arrives."""

from gossamer.servers.average import Average, MaskAverage
from gossamer.servers.base import Arrival, Place, Server, Visit
from gossamer.servers.codes import CodedMean
from gossamer.servers.compare import Compare
from gossamer.servers.mean import Mean, Sum, Weights
from gossamer.servers.shuffle import Shuffle, WarmUp

__all__ = [
    "Arrival",
    "Average",
    "CodedMean",
    "Compare",
    "MaskAverage",
    "Mean",
    "Place",
    "Server",
    "Shuffle",
    "Sum",
    "Visit",
    "WarmUp",
    "Weights",
]
