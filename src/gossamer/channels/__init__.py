"""Channels: what a message meets on its way in a simulation. In the field the network is real, so a method has none."""

from gossamer.channels.base import AnyDevice, Channel, Cost, Receipt
from gossamer.channels.lossy import Lossy
from gossamer.channels.perfect import Perfect
from gossamer.channels.wireless import Wireless

__all__ = ["CHANNELS", "AnyDevice", "Channel", "Cost", "Lossy", "Perfect", "Receipt", "Wireless"]

CHANNELS: dict[str, type[Channel]] = {"perfect": Perfect, "lossy": Lossy, "wireless": Wireless}
"""Channels by the name that the command line uses."""
