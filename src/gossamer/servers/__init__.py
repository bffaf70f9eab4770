"""Servers: what happens to what arrives."""

from gossamer.servers.average import Average, MaskAverage
from gossamer.servers.base import Arrival, Server
from gossamer.servers.mean import Mean, Sum, Weights

__all__ = ["Arrival", "Average", "MaskAverage", "Mean", "Server", "Sum", "Weights"]
