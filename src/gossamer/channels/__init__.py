"""Channels: what a message meets on its way in a simulation. In the field the network is real, so a method has none."""

from gossamer.channels.base import Channel, Receipt
from gossamer.channels.lossy import Lossy
from gossamer.channels.perfect import Perfect

__all__ = ["CHANNELS", "Channel", "Lossy", "Perfect", "Receipt"]

CHANNELS: dict[str, type[Channel]] = {"perfect": Perfect, "lossy": Lossy}
"""Channels by the name that the command line uses."""
