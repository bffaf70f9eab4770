"""Channels: simulated uplinks and devices. A deployment uses the real network, so a channel is not part of a method."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.channel import AnyDevice as AnyDevice
    from gossamer.core.channel import Channel as Channel
    from gossamer.core.channel import Cost as Cost
    from gossamer.core.channel import Receipt as Receipt
    from gossamer.parts.channels.fleet_links import FleetLinks as FleetLinks
    from gossamer.parts.channels.lossy import Lossy as Lossy
    from gossamer.parts.channels.perfect import Perfect as Perfect
    from gossamer.parts.channels.wireless import Wireless as Wireless

CHANNELS: "Registry[type[Channel]]" = Registry(
    __name__,
    {
        "perfect": "perfect.Perfect",
        "lossy": "lossy.Lossy",
        "wireless": "wireless.Wireless",
        "fleet": "fleet_links.FleetLinks",
    },
)
"""Channels by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, CHANNELS)
