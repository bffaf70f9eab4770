"""Channels: simulated uplinks and devices. A deployment uses the real network, so a channel is not part of a method."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.channel import Channel as Channel
    from gossamer.core.channel import Cost as Cost
    from gossamer.core.channel import Receipt as Receipt
    from gossamer.parts.channels.links import FleetLinks as FleetLinks
    from gossamer.parts.channels.links import Lossy as Lossy
    from gossamer.parts.channels.links import Perfect as Perfect
    from gossamer.parts.channels.links import Wireless as Wireless

CHANNELS: "Registry[type[Channel]]" = Registry(
    __name__,
    {
        "perfect": "links.Perfect",
        "lossy": "links.Lossy",
        "wireless": "links.Wireless",
        "fleet": "links.FleetLinks",
    },
)
"""Channels by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, CHANNELS)
