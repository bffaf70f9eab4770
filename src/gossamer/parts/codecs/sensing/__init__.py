"""One-bit compressive sensing: the signs of a few random projections of a vector, and the vector back from them.

    sensing = Sensing("hadamard", ratio=0.25)           a matrix Phi of S = n / 4 rows, the same wherever the key is
    phi = sensing.matrix(n, key)
    sent = pack_signs(phi.signs(x))                     S bits
    add_signs(total, sent, weight)                      the server sums the signs of many devices
    direction = least_squares(phi, total / weights)     and reconstructs once

What is sent says nothing of a vector's length, so a mean of signs tells of the mean of directions, x / |x|; whoever
wants the mean of the vectors themselves weighs each device's signs by its norm. ``.decode`` says what the mean of
signs is as a measurement, and how far back-projection is off. Masks that all devices share are best applied first: then
``n`` is the number of entries kept, and ``least_squares`` needs no support.
"""

from gossamer.parts.codecs.sensing.amp import amp
from gossamer.parts.codecs.sensing.decode import back_projection, back_projection_error, largest, least_squares, scaled
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
    "niht",
    "pack_signs",
    "scaled",
    "unpack_signs",
]
