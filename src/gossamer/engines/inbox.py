"""Arrivals in client order, whatever order they came in.

A sum of floats depends on the order of its terms, so messages are folded in the order of the cohort. One that comes
early waits as its own small bytes; nobody waits for a client that is known not to come.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gossamer.core.types import State
from gossamer.core.wire import Frame
from gossamer.engines.client import Failure


class ClientReply(NamedTuple):
    """What came of a client: its message, or (``None``) none that arrived; what it remembers; why it failed, if so."""

    data: Frame | None = None
    state: State | None = None
    failure: Failure | None = None
    injected: bool = False


class Inbox:
    """Hands replies on in client order."""

    def __init__(self, cohort: Iterable[int], deliver: Callable[[int, ClientReply], None]) -> None:
        self._awaited = deque(cohort)
        self._early: dict[int, ClientReply] = {}
        self._deliver = deliver

    def put(self, client: int, reply: ClientReply) -> None:
        """A client's reply has come, or will never come."""
        self._early[client] = reply
        while self._awaited and self._awaited[0] in self._early:
            first = self._awaited.popleft()
            self._deliver(first, self._early.pop(first))
