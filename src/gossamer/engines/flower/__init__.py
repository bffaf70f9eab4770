"""Deployment on Flower: the same methods across real machines. Only this package imports Flower.

A SuperLink connects the server with SuperNodes, one on each client machine, with TLS and one key per node. Flower
starts the apps that ``server_app`` and ``client_app`` return. Messages are the same bytes as in the simulator, and the
server aggregates them with the same code.
"""

from gossamer.engines.flower.node import client_app
from gossamer.engines.flower.server import server_app
from gossamer.engines.flower.settings import Settings

__all__ = ["Settings", "client_app", "server_app"]
