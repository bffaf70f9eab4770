"""The times and the energy of one task: download, training and upload on a device and its links."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gossamer.core.availability import nanoseconds
from gossamer.core.channel import Cost, Receipt
from gossamer.engines.client import ClientResult, ClientTask
from gossamer.engines.dispatch import Flight

Worked = Callable[[int, int], int]
"""How long a client works from one time to another."""


class Phase(NamedTuple):
    """A part of a task.

    Args:
        begin: its start, in nanoseconds
        end: its end, if the task lasts until then
        cost: its time and energy, if the task lasts until its end
    """

    begin: int
    end: int
    cost: Cost

    def until(self, time: int, worked: Worked) -> Cost:
        """Return what it has cost until a time, in proportion to the work.

        >>> Phase(0, 4_000_000_000, Cost(4.0, 1.0)).until(2_000_000_000, lambda begin, end: end - begin)
        Cost(seconds=2.0, joules=0.5)
        """
        if time >= self.end:
            return self.cost
        if time <= self.begin:
            return Cost()
        share = worked(self.begin, time) / nanoseconds(self.cost.seconds)
        return Cost(share * self.cost.seconds, share * self.cost.joules)


NO_PHASE = Phase(0, 0, Cost())


@dataclass(eq=False)
class TimedFlight(Flight):
    """A task with virtual times.

    Args:
        download: the download
        work: training; before it is done, as long as it takes at least
        upload: the upload
        leaves: when the client leaves, and loses its work
        trained: whether the result of training is known
        result: the result of training, without message and client state; none if there is none
        receipt: what became of the upload; none if there is none
        event: the number of the next event of the task
        client_task: what the client is to do, as long as it waits for training; none if it is made again
    """

    download: Phase = NO_PHASE
    work: Phase = NO_PHASE
    upload: Phase = NO_PHASE
    leaves: int = 0
    trained: bool = False
    result: ClientResult | None = None
    receipt: Receipt | None = None
    event: int = 0
    client_task: ClientTask | None = None

    @property
    def sent(self) -> Receipt | None:
        """The receipt of an upload that was sent whole; none if there was none, or if it was interrupted."""
        return self.receipt if self.upload.end <= self.end else None

    def close(self, worked: Worked) -> tuple[Cost, Cost, Cost]:
        """Set the other times and the energy of a task whose end is known. Return the costs of its phases."""
        self.received = self.download.end if self.download.end <= self.end else None
        self.computed = self.work.end if self.result is not None and self.work.end <= self.end else None
        download, work, upload = (phase.until(self.end, worked) for phase in (self.download, self.work, self.upload))
        self.joules = download.joules + work.joules + upload.joules
        return download, work, upload
