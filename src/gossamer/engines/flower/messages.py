"""The content of Flower messages: one Gossamer message as one byte array, and a few named values.

Flower would send every tensor as an array with its own header. Here a message is the single buffer of
``gossamer.core.wire``. Replies are not trusted: a value that is missing or has another type refuses the reply. Server
and nodes also compare fingerprints of method and model before they work together.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from gossamer.core import files
from gossamer.core.errors import PayloadError
from gossamer.core.method import Method
from gossamer.core.random import Key, Purpose, fold
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
