"""The same methods across real machines, on Flower: the only place that imports it.

A SuperLink is the meeting point, SuperNodes are the clients' machines; Flower brings them together, with TLS and a key
for each node, and starts what ``server_app`` and ``client_app`` make. Messages are the same bytes as in the
simulator, and so is what the server does with them.
"""

from gossamer.engines.flower.node import client_app
from gossamer.engines.flower.server import server_app
from gossamer.engines.flower.settings import Settings

__all__ = ["Settings", "client_app", "server_app"]
