"""Who learns from whom, and when: the mathematics of PERM.

``GradientTable`` compares clients' gradients, as they are or through a ``Sketch``; ``waterfill`` makes mixing weights
of the distances, and ``nearest`` does both for thousands of clients; ``visits`` says which model is where in a round.
"""

from gossamer.parts.servers.mixing.distances import GradientTable
from gossamer.parts.servers.mixing.schedule import visits
from gossamer.parts.servers.mixing.sketch import Sketch
from gossamer.parts.servers.mixing.weights import (
    complexity,
    dense,
    descend,
    even,
    looked_up,
    nearest,
    simplex,
    square,
    summary,
    usual_lambda,
    waterfill,
)

__all__ = [
    "GradientTable",
    "Sketch",
    "complexity",
    "dense",
    "descend",
    "even",
    "looked_up",
    "nearest",
    "simplex",
    "square",
    "summary",
    "usual_lambda",
    "visits",
    "waterfill",
]
