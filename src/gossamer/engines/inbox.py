"""Arrivals in client order, whatever order they came in.

A sum of floats depends on the order of its terms, so messages are folded in the order of the cohort. One that comes
early waits as its own small bytes; nobody waits for a client that is known not to come.
"""

from collections import deque
from collections.abc import Callable, Iterable

from gossamer.wire import Letter


class Inbox:
    """Hands messages on in client order."""

    def __init__(self, cohort: Iterable[int], deliver: Callable[[int, Letter], None]) -> None:
        self._awaited = deque(cohort)
        self._early: dict[int, Letter | None] = {}
        self._deliver = deliver

    def put(self, client: int, data: Letter | None) -> None:
        """A client's message has come, or (``None``) will never come."""
        self._early[client] = data
        while self._awaited and self._awaited[0] in self._early:
            first = self._awaited.popleft()
            message = self._early.pop(first)
            if message is not None:
                self._deliver(first, message)
