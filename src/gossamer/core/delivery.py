"""What became of messages that were lost: made up for by a later one, or given up.

A client keeps count beside what its codec remembers, as only it knows whether there was anything to send. It tells the
counts with its next message, and they are booked when that is folded in: so they are the same wherever clients are.
"""

from typing import NamedTuple

import torch

from gossamer.core.codec import Kept
from gossamer.core.types import State

LOST = "lost"
"""What a client's memory calls the counts."""


class Delivery(NamedTuple):
    """Of messages of one client that were lost since one arrived.

    Args:
        retained: how many its next one makes up for
        forgotten: how many were given up, because memory is of the last alone
    """

    retained: int = 0
    forgotten: int = 0


def delivery(state: State) -> Delivery:
    """What a client's memory says."""
    said = state.get(LOST, {})
    return Delivery(*(int(said[name]) for name in Delivery._fields)) if said else Delivery()


def counted(state: State, kept: Kept, delivered: bool) -> State:
    """The same memory, now that it is known whether a message arrived; where nothing is retained nothing is counted."""
    rest = {name: value for name, value in state.items() if name != LOST}
    if delivered or kept == "nothing":
        return rest
    waiting, forgotten = delivery(state)
    now = Delivery(waiting + 1, forgotten) if kept == "all" else Delivery(1, forgotten + waiting)
    return {**rest, LOST: {name: torch.tensor(number) for name, number in now._asdict().items()}}
