"""One-bit compressive sensing: the signs of random projections of a vector, and reconstruction from them.

    sensing = Sensing("hadamard", ratio=0.25)           a matrix Phi of S = n / 4 rows, drawn from a shared key
    phi = sensing.matrix(n, key)
    sent = pack_signs(phi.signs(x))                     S bits
    add_signs(total, sent, weight)                      the server sums the signs of many clients
    direction = least_squares(phi, total / weights)     and reconstructs once

Signs do not contain the norm of a vector. So a mean of signs measures the mean of the directions x / |x|. For the mean
of the vectors, weight the signs of each client by its norm. ``gossamer.parts.codecs.sensing.decode`` describes the mean
of signs as a measurement, and the error of back-projection. Apply masks that all clients share before the measurement:
``n`` is then the number of kept entries, and ``least_squares`` needs no support.
"""

from gossamer.parts.codecs.sensing.amp import amp
from gossamer.parts.codecs.sensing.decode import (
    back_projection,
    back_projection_error,
    largest,
    least_squares,
    least_squares_error,
    scaled,
)
from gossamer.parts.codecs.sensing.matrix import KINDS, Kind, Matrix, Sensing
from gossamer.parts.codecs.sensing.signs import add_signs, pack_signs, unpack_signs
from gossamer.parts.codecs.sensing.sparse import biht, niht

__all__ = [
    "KINDS",
    "Kind",
    "Matrix",
    "Sensing",
    "add_signs",
    "amp",
    "back_projection",
    "back_projection_error",
    "biht",
    "largest",
    "least_squares",
    "least_squares_error",
    "niht",
    "pack_signs",
    "scaled",
    "unpack_signs",
]
