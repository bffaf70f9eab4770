"""Servers: what happens to what arrives."""

from gossamer.servers.base import Arrival, Server
from gossamer.servers.mean import Mean, Sum, Weights

__all__ = ["Arrival", "Mean", "Server", "Sum", "Weights"]
