"""Schedules: when clients start, and when the server aggregates. Devices and links then decide the time."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.schedule import Schedule as Schedule
    from gossamer.parts.schedules.timing import Asynchronous as Asynchronous
    from gossamer.parts.schedules.timing import Deadline as Deadline
    from gossamer.parts.schedules.timing import FedAsync as FedAsync
    from gossamer.parts.schedules.timing import FedBuff as FedBuff
    from gossamer.parts.schedules.timing import Staleness as Staleness
    from gossamer.parts.schedules.timing import Synchronous as Synchronous

SCHEDULES: "Registry[type[Schedule]]" = Registry(
    __name__,
    {
        "sync": "timing.Synchronous",
        "deadline": "timing.Deadline",
        "fedbuff": "timing.FedBuff",
        "fedasync": "timing.FedAsync",
    },
)
"""Schedules by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, SCHEDULES)
