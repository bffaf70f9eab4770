"""Counts of a client's lost messages: compensated by the next message, or dropped.

The counts are part of the client state, because only the client knows whether it had something to send. They are
recorded when the client's next message is folded in. So they are the same in simulation and deployment.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gossamer.core.codec import Kept
    from gossamer.core.types import State

OVERHEAD = "overhead"
"""The name under which the bytes of header and table are counted; no array of a message may have it."""

LOST = "lost"
"""The name of the counts in a client state."""


class Delivery(NamedTuple):
    """Messages of one client that were lost since its last delivered message.

    Args:
        retained: the number of lost messages that the next message compensates for
        forgotten: the number of lost messages that were dropped, because the codec retains only the last one
    """

    retained: int = 0
    forgotten: int = 0


def delivery(state: "State") -> Delivery:
    """Return the counts in a client state."""
    counts = state.get(LOST, {})
    return Delivery(*(int(counts[name]) for name in Delivery._fields)) if counts else Delivery()


def counted(state: "State", kept: "Kept", delivered: bool) -> "State":
    """Return the client state with updated counts, given whether a message arrived.

    A codec that retains nothing has no counts.
    """
    rest = {name: value for name, value in state.items() if name != LOST}
    if delivered or kept == "nothing":
        return rest
    import torch  # imported here: commands that only read run folders need no torch

    retained, forgotten = delivery(state)
    updated = Delivery(retained + 1, forgotten) if kept == "all" else Delivery(1, forgotten + retained)
    return {**rest, LOST: {name: torch.tensor(number) for name, number in updated._asdict().items()}}
