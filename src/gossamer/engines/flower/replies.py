"""Checks of a node's reply to a task: the upload, and what the record of the round has about it."""

import math
from typing import NamedTuple

from flwr.app import Message

from gossamer.core import wire
from gossamer.core.channel import Receipt
from gossamer.core.delivery import Delivery
from gossamer.core.errors import PayloadError, listed
from gossamer.core.types import Flops
from gossamer.core.untrusted import LARGEST
from gossamer.core.wire import Frame
from gossamer.engines.flower.messages import FIGURE, data, word
from gossamer.engines.inbox import ClientReply
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage

ROOM = 16
"""Maximum bytes per parameter of a reply, for any codec; larger replies are refused unread."""

LONGEST_ANSWER = 2**24
"""Maximum bytes of an answer in a phase of secure aggregation: enough for shares to 100,000 clients."""


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


def checked(stage: Stage, message: Message, samples: int, parameters: int) -> CheckedReply:
    """Return the upload in the message of a client, and what the client reports; raise to refuse it.

    ``samples`` is the client's number of samples, ``parameters`` that of the model's entries.
    """
    frame = _frame(message, samples, parameters) if stage.exchange.shared else None
    kinds = stage.exchange.envelope.kinds("up", wire.read_sizes(frame)) if frame else {}
    flops = Flops(*(max(0, word(message, name, int)) for name in ("flops", "useful")))
    delivery, figures = _delivery(stage.number, message), _figures(stage, message)
    loss = word(message, "loss", float)
    work = Work(loss if abs(loss) <= LARGEST else math.nan, flops, figures, delivery, kinds)
    return CheckedReply(ClientReply(frame), work)


def answer_of(message: Message) -> Frame:
    """Return the answer in a reply of a phase of secure aggregation; refuse it if its size is wrong."""
    sent = data(message)
    if len(sent) > LONGEST_ANSWER:
        raise PayloadError(f"refused: the answer holds {len(sent):,} bytes, more than {LONGEST_ANSWER:,}")
    return Frame.of(sent)


def _figures(stage: Stage, message: Message) -> dict[str, float]:
    """Return the metrics of the codec in a reply; refuse a reply without them."""
    names = () if stage.exchange.hides else stage.exchange.codec.figure_names
    found = {name: word(message, f"{FIGURE}{name}", float) for name in names}
    if not all(map(math.isfinite, found.values())):
        raise PayloadError(f"refused: the reply reports metrics that are not finite: {listed(found)}")
    return found


def _delivery(number: int, message: Message) -> Delivery:
    """Return the delivery counts of a reply; refuse impossible ones."""
    counts = Delivery(*(word(message, name, int) for name in Delivery._fields))
    if min(counts) < 0 or sum(counts) > number:
        raise PayloadError(f"refused: the reply reports {sum(counts)} lost messages in {number} rounds")
    return counts


def _frame(message: Message, samples: int, parameters: int) -> Frame:
    """Return the upload in a reply; refuse it if its size or number of samples is wrong."""
    sent, room = data(message), ROOM * parameters + 2**16
    if len(sent) > room:
        raise PayloadError(f"refused: the reply holds {len(sent):,} bytes, more than {room:,}")
    frame = Frame.of(sent)
    stated = wire.read_head(frame)[0].weight
    if stated != samples:
        raise PayloadError(f"refused: the reply was trained on {stated:g} samples, but the client has {samples:,}")
    return frame
