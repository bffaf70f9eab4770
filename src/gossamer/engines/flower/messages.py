"""The content of Flower messages, and what a server accepts of them.

Flower would send every tensor as an array with its own header. Here a message is the single buffer of
``gossamer.core.wire`` as one byte array, and a few named values. Server and nodes also compare fingerprints of method
and model before they work together. Replies are not trusted: a value that is missing or has another type refuses the
reply, and so does an upload of a wrong size or weight.

A finite update can still ruin a model or make a sum overflow. Three rules of ``Scales`` name its client; with v the
largest magnitude of its update, m the largest magnitude of the model that it received, at least 1, and c the median of
v over the cohort:

    v > 2**30 m             refused before it is folded, whatever the others send
    v > 1000 c and v > m    the round is repeated without it, if most updates of the cohort are not so
    v is the largest        the round is repeated without it, if the aggregation fails or its result is not finite

No rule holds for a client whose training converges: an honest update that is larger than all weights together with 1,
and 1000 times as large as what most clients send, would ruin the model too. Servers that resist smaller attacks are
parts of the method.

Under a schedule that aggregates updates of several versions, a round cannot be repeated with the same clients. The
second rule then compares an update with the last ones of the other clients, and refuses it before it is folded.

Clients that a round was repeated without are left out of the rest of the run. The record of the round names them, so
that a restarted server leaves out the same clients.
"""

import hashlib
import json
import math
import statistics
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import Tensor

from gossamer.core import files, untrusted, wire
from gossamer.core.channel import Receipt
from gossamer.core.delivery import Delivery
from gossamer.core.errors import PayloadError, listed
from gossamer.core.exchange import Arrival
from gossamer.core.method import Method
from gossamer.core.random import Key, Purpose, fold
from gossamer.core.types import Flops
from gossamer.core.untrusted import largest
from gossamer.core.wire import Frame
from gossamer.engines.inbox import ClientReply
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage
from gossamer.runs.records import Record
from gossamer.tasks.objective import Objective

WORDS, BYTES, ARRAY = "gossamer", "message", "bytes"
"""Names of the record of values, the record of arrays, and the array."""

FIGURE = "figure."
"""The prefix of the names of a codec's metrics."""

PHASE = "train.secure"
"""The type of messages in a phase of secure aggregation."""

EVALUATING, REQUEST, ARRAYS, LIMIT = "evaluating", "request", "arrays", "limit"
"""Names of values of a protected evaluation: whether a phase belongs to one, the request of its phase of training as
bytes, the number of arrays in it, and the steps of a metric."""

LARGEST = 2**31 - 1
"""Maximum bytes per message in Flower's protocol."""

T = TypeVar("T", int, float, str, bool, bytes)

FROZEN = "frozen"
"""The name of the fingerprint of frozen parameters, which are not exchanged."""


def fingerprint(method: Method, objective: Objective) -> dict[str, str]:
    """Return digests of the method, of the model's names, shapes and type, and of the values of frozen parameters."""
    layout, parameters = objective.layout, objective.build().named_parameters()
    frozen = {name: tensor.detach().cpu() for name, tensor in parameters if not tensor.requires_grad}
    return {
        "method": _digest(method.describe()),
        "model": _digest((layout.shapes, layout.dtype)),
        FROZEN: files.digest_of(files.to_tensors(frozen)),
    }


def _digest(thing: object) -> str:
    return hashlib.sha256(repr(thing).encode()).hexdigest()


def content(words: Mapping[str, Any], data: bytes = b"") -> RecordDict:
    """Build the content of a Flower message from named values and a message's bytes."""
    check_size(len(data))
    records = RecordDict({WORDS: ConfigRecord(dict(words))})
    if data:
        records[BYTES] = ArrayRecord({ARRAY: Array("uint8", (len(data),), "gossamer", data)})
    return records


def keys_text(key: Key, purposes: Iterable[Purpose]) -> str:
    """Return the keys of some purposes as a text, given the run's key."""
    return json.dumps([[*purpose, struct.pack("<QQ", *fold(key, *purpose)).hex()] for purpose in purposes])


def read_keys(text: str) -> dict[Purpose, Key]:
    """Return the keys in a text. Raise ``PayloadError`` for any other text."""
    try:
        rows = json.loads(text)
        found = {tuple(purpose): Key(*struct.unpack("<QQ", bytes.fromhex(digits))) for *purpose, digits in rows}
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise PayloadError(f"the keys of a message cannot be read: {error}") from None
    if not all(type(label) in (str, int) for purpose in found for label in purpose):
        raise PayloadError("the keys of a message must have texts and whole numbers as labels")
    return found


def told(words: Mapping[str, Any], keys: Mapping[Purpose, Key]) -> str:
    """Return a digest of what a message tells all clients of a round alike, beside the models.

    These are the number of rounds, on which learning rates depend, how clients compute, and the keys that they share.
    With secure aggregation, it is part of what clients sign: what one client alone was told would show in the sum.
    """
    shared = sorted(
        (repr(purpose), *key)
        for purpose, key in keys.items()
        if "client" not in purpose
        and (purpose[0] != "round" or purpose[1] == words["round"])
        and purpose[-1] != "delta"
    )
    alike = [words[name] for name in ("rounds", "precision", "checkpointing")]
    return _digest([alike, shared])[:32]


def check_size(nbytes: int) -> None:
    """Refuse a message that is too large for Flower."""
    if nbytes > LARGEST:
        raise PayloadError(
            f"the message has {nbytes:,} bytes, and Flower carries at most {LARGEST:,}: "
            "use a smaller model, or a codec that sends less"
        )


def metric_words(metrics: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the named values of an evaluation: of a client's own test samples, and of all its test samples."""
    first, *others = metrics
    return ["own_loss", "own", *(f"own_{name}" for name in others)], ["loss", first, *others]


def word(message: Message, name: str, kind: type[T]) -> T:
    """Return a named value of a message, and check its type."""
    records = message.content.config_records
    found = records[WORDS].get(name) if WORDS in records else None
    if type(found) is not kind:
        raise PayloadError(f"the reply has no {kind.__name__} called {name!r}")
    return found


def data(message: Message) -> bytes:
    """Return the bytes of a message; empty if it has none."""
    records = message.content.array_records
    if BYTES not in records:
        return b""
    if list(records[BYTES]) != [ARRAY]:
        raise PayloadError("the reply must hold one array")
    return records[BYTES][ARRAY].data


def carried(message: Message) -> int:
    """Return all bytes that Flower transfers for a message, without HTTP and TLS."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


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
    frame = None
    if stage.exchange.shared:
        sent, room = data(message), ROOM * parameters + 2**16
        if len(sent) > room:
            raise PayloadError(f"refused: the reply holds {len(sent):,} bytes, more than {room:,}")
        frame = Frame.of(sent)
        stated = wire.read_head(frame)[0].weight
        if stated != samples:
            raise PayloadError(f"refused: the reply was trained on {stated:g} samples, but the client has {samples:,}")
    kinds = stage.exchange.envelope.kinds("up", wire.read_sizes(frame)) if frame else {}
    flops = Flops(*(max(0, word(message, name, int)) for name in ("flops", "useful")))
    delivery = Delivery(*(word(message, name, int) for name in Delivery._fields))
    if min(delivery) < 0 or sum(delivery) > stage.number:
        raise PayloadError(f"refused: the reply reports {sum(delivery)} lost messages in {stage.number} rounds")
    names = () if stage.exchange.hides else stage.exchange.codec.figure_names
    figures = {name: word(message, f"{FIGURE}{name}", float) for name in names}
    if not all(map(math.isfinite, figures.values())):
        raise PayloadError(f"refused: the reply reports metrics that are not finite: {listed(figures)}")
    loss = word(message, "loss", float)
    work = Work(loss if abs(loss) <= untrusted.LARGEST else math.nan, flops, figures, delivery, kinds)
    return CheckedReply(ClientReply(frame), work)


def answer_of(message: Message) -> Frame:
    """Return the answer in a reply of a phase of secure aggregation; refuse it if its size is wrong."""
    sent = data(message)
    if len(sent) > LONGEST_ANSWER:
        raise PayloadError(f"refused: the answer holds {len(sent):,} bytes, more than {LONGEST_ANSWER:,}")
    return Frame.of(sent)


BEYOND = 2.0**30
"""An update may exceed the model by this factor."""

FAR = 1000.0
"""An update may exceed the median of the cohort by this factor, unless it is smaller than the model."""

ENOUGH = 3
"""Minimum number of updates that are compared."""

LEFT_OUT = "left_out"
"""Entry of a void attempt in a record: the clients that are left out of the rest of the run, with the reasons."""


class Scales:
    """The largest magnitudes of the updates of one exchange."""

    def __init__(self) -> None:
        self._sizes: dict[int, float] = {}
        self._models: dict[int, float] = {}

    def note(self, arrival: Arrival, update: Tensor | None) -> None:
        """Note the size of an update, if there is one. Raise ``PayloadError`` if it is far too large for its model."""
        within = (value.values() for value in arrival.sections.values() if isinstance(value, dict))
        sent = [*([] if update is None else [update]), *(tensor for tensors in within for tensor in tensors)]
        size, model = largest(sent), max(1.0, largest(arrival.model.values()))
        if not size <= BEYOND * model:
            raise PayloadError(
                f"the update holds a value of magnitude {size:.3g}, and the model's largest is {model:.3g}"
            )
        self._sizes[arrival.client], self._models[arrival.client] = size, model

    def refuse_far(self, client: int) -> None:
        """Raise ``PayloadError`` if the update of a client is far from the last ones of the others, and forget it."""
        if why := self.far().get(client):
            del self._sizes[client], self._models[client]
            raise PayloadError(f"it {why}")

    def far(self) -> dict[int, str]:
        """Return the clients whose updates are far from the cohort's, each with the reason."""
        if len(self._sizes) < ENOUGH:
            return {}
        usual = statistics.median(self._sizes.values())
        found = [client for client, size in self._sizes.items() if size > max(FAR * usual, self._models[client])]
        return {client: f"sent values up to {self._sizes[client]:.3g}, the median is {usual:.3g}" for client in found}

    def largest(self) -> dict[int, str]:
        """Return the client with the largest update, and its size; nobody without updates."""
        if not self._sizes:
            return {}
        client = max(self._sizes, key=lambda each: self._sizes[each])
        return {client: f"sent the largest values, up to {self._sizes[client]:.3g}"}


def named(clients: Mapping[int, str]) -> list[Record]:
    """Return clients and the reasons to leave them out, as records have them."""
    return [{"client": client, "reason": reason} for client, reason in clients.items()]


def left_out_of(records: Iterable[Record]) -> dict[int, str]:
    """Return the clients that were left out of the rest of a run, each with the reason."""
    attempts = [attempt for record in records for attempt in record["void"]]
    return {each["client"]: each["reason"] for attempt in attempts for each in attempt.get(LEFT_OUT, ())}
