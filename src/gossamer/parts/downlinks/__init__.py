"""Downlinks: how the model of a round reaches the clients.

A codec sends the whole model to every client. ``Delta`` sends what a client has missed since its last download. See
``gossamer.core.downlink``.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.downlink import BoundDownlink as BoundDownlink
    from gossamer.core.downlink import Downlink as Downlink
    from gossamer.parts.downlinks.delta import Delta as Delta
    from gossamer.parts.downlinks.seed_sums import SendSums as SendSums

DOWNLINKS: "Registry[type[Downlink]]" = Registry(__name__, {"delta": "delta.Delta"})
"""Downlinks by the name that the command line uses, in addition to codecs."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, DOWNLINKS)
