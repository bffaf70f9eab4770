"""Schedules: when clients start, and when the server aggregates. Devices and links then decide the time."""

from typing import TYPE_CHECKING

from gossamer.core.lazy import Registry, attach

if TYPE_CHECKING:
    from gossamer.core.schedule import Schedule as Schedule
    from gossamer.parts.schedules.asynchronous import Asynchronous as Asynchronous
    from gossamer.parts.schedules.deadline import Deadline as Deadline
    from gossamer.parts.schedules.fedasync import FedAsync as FedAsync
    from gossamer.parts.schedules.fedbuff import FedBuff as FedBuff
    from gossamer.parts.schedules.staleness import Staleness as Staleness
    from gossamer.parts.schedules.synchronous import Synchronous as Synchronous

SCHEDULES: "Registry[type[Schedule]]" = Registry(
    __name__,
    {
        "sync": "synchronous.Synchronous",
        "deadline": "deadline.Deadline",
        "fedbuff": "fedbuff.FedBuff",
        "fedasync": "fedasync.FedAsync",
    },
)
"""Schedules by the name that the command line uses."""

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(__name__, SCHEDULES)
