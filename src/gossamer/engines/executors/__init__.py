"""Executors train the clients of a round. All compute the same function; they differ in speed and rounding."""

from collections.abc import Callable

from gossamer.engines.client import Client
from gossamer.engines.executors.auto import choose
from gossamer.engines.executors.base import Executor, OneByOne, Threaded, threads
from gossamer.engines.executors.captured import Captured, CapturedPlain
from gossamer.engines.executors.compiled import compiled
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import Stacked

__all__ = [
    "EAGER",
    "EXECUTORS",
    "Captured",
    "CapturedPlain",
    "Executor",
    "OneByOne",
    "SideBySide",
    "Stacked",
    "Threaded",
    "choose",
    "compiled",
    "threads",
]

EXECUTORS: dict[str, Callable[[Client], Executor]] = {
    "one-by-one": OneByOne,
    "side-by-side": SideBySide,
    "threaded": Threaded,
    "stacked": Stacked,
    "compiled": compiled,
    "captured": Captured,
    "captured-plain": CapturedPlain,
}
"""Executors by their name on the command line."""

EAGER = ("one-by-one", "side-by-side", "threaded")
"""Executors that train each client alone, operation by operation: checkpointing saves memory with these."""
