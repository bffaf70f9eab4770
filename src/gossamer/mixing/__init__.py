"""Who learns from whom, and when: the mathematics of PERM.

``Gallery`` compares clients' gradients, as they are or through a ``Sketch``; ``waterfill`` makes mixing weights of the
distances, and ``nearest`` does both for thousands of clients; ``visits`` says which model is where in a round.
"""

from gossamer.mixing.distances import Gallery
from gossamer.mixing.held import even, looked_up, square, summary
from gossamer.mixing.schedule import visits
from gossamer.mixing.sketch import Sketch
from gossamer.mixing.sparse import dense, nearest
from gossamer.mixing.weights import complexity, descend, simplex, usual_lambda, waterfill

__all__ = [
    "Gallery",
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
