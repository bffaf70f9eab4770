"""Traces of other simulators, as files of this one.

``fedscale`` and ``flash`` read availability traces, ``fedscale_capacity`` reads devices and their links.
"""

from gossamer.fleet.converters.base import ConvertedTrace
from gossamer.fleet.converters.fedscale import read_fedscale
from gossamer.fleet.converters.fedscale_capacity import read_fedscale_capacity
from gossamer.fleet.converters.flash import read_flash

__all__ = ["ConvertedTrace", "read_fedscale", "read_fedscale_capacity", "read_flash"]
