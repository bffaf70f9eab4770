"""Secure aggregation: protocols with which the server learns the sum of the uploads, and no single upload.

``SecAgg`` is SecAgg+, with the complete graph as the simple case. See ``gossamer.core.secure``.
"""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.secure import SecureAggregation as SecureAggregation
    from gossamer.parts.secure.secagg import SecAgg as SecAgg

PROTOCOLS: "Registry[type[SecureAggregation]]" = Registry(__name__, {"secagg": "secagg.SecAgg"})
"""Protocols of secure aggregation by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, PROTOCOLS)
