"""Codecs: what crosses a link.

A codec is two pure functions: ``encode`` makes a payload of a vector, ``decode`` makes the vector of the payload.
Whoever needs no memory writes just these two. A codec that keeps something between rounds (what it could not send,
say) also overrides ``init``, ``encode_with`` and ``settle``.
"""

from gossamer.codecs.base import Codec
from gossamer.codecs.dense import Dense

__all__ = ["Codec", "Dense"]
