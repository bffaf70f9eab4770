"""Replies in client order, whatever their order of arrival.

A sum of floats depends on the order of its terms, so uploads are aggregated in client order. Early replies wait as
encoded bytes. Failed clients are put into the inbox too, so that later replies do not wait for them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from gossamer.core.types import State
from gossamer.core.wire import Frame
from gossamer.engines.client import Failure


class ClientReply(NamedTuple):
    """The reply of a client, or its absence.

    Args:
        data: the upload; none if it did not arrive
        state: the new client state; none if the server does not keep it
        failure: why the client failed; none if it did not
        injected: whether the failure is a simulated one
        silent: whether the failure is that the client did not answer
        version: the version of the model that the client trained; none is that of the round
    """

    data: Frame | None = None
    state: State | None = None
    failure: Failure | None = None
    injected: bool = False
    silent: bool = False
    version: int | None = None


INJECTED = "simulated failure (failure_rate)"

FAILED_ON_PURPOSE = ClientReply(failure=Failure(INJECTED), injected=True, silent=True)
"""The reply of a client that fails by ``failure_rate``."""


class Replies(Protocol):
    """Takes the replies of clients."""

    def put(self, client: int, reply: ClientReply) -> None:
        """Add a client's reply, or its failure."""
        ...


class Immediate:
    """Delivers replies in the order in which they are put."""

    def __init__(self, deliver: Callable[[int, ClientReply], None]) -> None:
        self._deliver = deliver

    def put(self, client: int, reply: ClientReply) -> None:
        """Deliver a client's reply."""
        self._deliver(client, reply)


class Inbox:
    """Delivers replies in client order."""

    def __init__(self, cohort: Iterable[int], deliver: Callable[[int, ClientReply], None]) -> None:
        self._awaited = deque(cohort)
        self._early: dict[int, ClientReply] = {}
        self._deliver = deliver

    def put(self, client: int, reply: ClientReply) -> None:
        """Add a client's reply, or its failure, and deliver all replies that are next in order."""
        self._early[client] = reply
        while self._awaited and self._awaited[0] in self._early:
            first = self._awaited.popleft()
            self._deliver(first, self._early.pop(first))
