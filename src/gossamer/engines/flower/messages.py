"""What crosses Flower: one Gossamer message as one array of bytes, beside a few plain words.

Flower would make an array of every tensor, each with a header of its own; here a message is the one buffer that
``gossamer.core.wire`` made. Nothing that comes back is trusted: a word that is missing or of another type is a
refusal.

What server and nodes must agree on before they work together.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from gossamer.core.errors import PayloadError
from gossamer.core.method import Method
from gossamer.tasks.objective import Objective


def fingerprint(method: Method, objective: Objective) -> dict[str, str]:
    """The method, and the names and shapes of the model's tensors, each as a digest."""
    layout = objective.layout
    return {"method": _digest(method.describe()), "model": _digest((layout.shapes, layout.dtype))}


def _digest(thing: object) -> str:
    return hashlib.sha256(repr(thing).encode()).hexdigest()


WORDS, BYTES, ARRAY = "gossamer", "message", "bytes"
"""Names of the two records and of the array."""

LIMIT = 2**31 - 1
"""Bytes that one message may have; Flower's protocol has room for no more."""

T = TypeVar("T", int, float, str, bool)


def content(words: Mapping[str, Any], data: bytes = b"") -> RecordDict:
    """Words and a message's bytes, as Flower sends them."""
    check_size(len(data))
    records = RecordDict({WORDS: ConfigRecord(dict(words))})
    if data:
        records[BYTES] = ArrayRecord({ARRAY: Array("uint8", (len(data),), "gossamer", data)})
    return records


def check_size(nbytes: int) -> None:
    """Refuse a message that Flower could not carry."""
    if nbytes > LIMIT:
        raise PayloadError(
            f"the message has {nbytes:,} bytes, and Flower carries at most {LIMIT:,}: "
            "use a smaller model, or a codec that sends less"
        )


def word(message: Message, name: str, kind: type[T]) -> T:
    """One of the words that came with a message."""
    records = message.content.config_records
    found = records[WORDS].get(name) if WORDS in records else None
    if type(found) is not kind:
        raise PayloadError(f"the reply has no {kind.__name__} called {name!r}")
    return found


def data(message: Message) -> bytes:
    """The bytes that came with a message; none, if it has none."""
    records = message.content.array_records
    if BYTES not in records:
        return b""
    if list(records[BYTES]) != [ARRAY]:
        raise PayloadError("the reply must hold one array")
    return records[BYTES][ARRAY].data


def carried(message: Message) -> int:
    """All bytes that Flower moves for a message, short of HTTP and TLS."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
