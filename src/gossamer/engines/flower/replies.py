"""A node's reply to a task, after it was checked: the upload, and what the record of the round has about it."""

from typing import NamedTuple

from gossamer.core.channel import Receipt
from gossamer.core.delivery import Delivery
from gossamer.core.types import Flops
from gossamer.engines.inbox import ClientReply
from gossamer.engines.metrics import Ledger


class Work(NamedTuple):
    """What a node reports about its training.

    Args:
        loss: the mean loss
        flops: the operations
        figures: the metrics of the codec
        delivery: the earlier uploads that were lost
        kinds: the bytes of the upload by kind; empty without an upload
    """

    loss: float
    flops: Flops
    figures: dict[str, float]
    delivery: Delivery
    kinds: dict[str, int]


class CheckedReply(NamedTuple):
    """A checked reply.

    Args:
        reply: the upload, or the reason why there is none
        work: what the node reports; none if the reply is refused
        refused: the bytes of a refused reply
    """

    reply: ClientReply
    work: Work | None = None
    refused: int = 0

    def note(self, client: int, ledger: Ledger) -> None:
        """Record what the reply cost."""
        if self.refused:
            ledger.up["refused"] += self.refused
        if self.work is None:
            return
        ledger.train(self.work.loss, self.work.flops)
        ledger.report(self.work.figures)
        if self.work.kinds:
            ledger.send(client, self.work.kinds, Receipt(delivered=True), self.work.delivery)
