"""Headers of an exchange's messages, and the number of bytes by part and section."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gossamer.core import sections, wire
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import Section
from gossamer.core.jobs import Outgoing
from gossamer.core.types import Clock
from gossamer.core.wire import NOTHING, Body, Head, Kind

FIXED = (("labels", "loss"), ("owner", "server"), ("choice", "solver"))
"""Sections that any exchange may have, each with the part that its bytes are counted for."""


@dataclass(frozen=True)
class Envelope:
    """Writes and checks the headers of an exchange's messages.

    Args:
        number: the number of the exchange in the round
        codecs: the codec id of each direction
        parts: the part that each section belongs to
    """

    number: int
    codecs: Mapping[Kind, int]
    parts: Mapping[str, str]

    @classmethod
    def of(cls, number: int, up: str, down: str, parts: Mapping[str, Iterable[Section]]) -> "Envelope":
        """Return the envelope of an exchange with these descriptions of its codecs and sections of its parts."""
        owners = [(section.name, part) for part, own in parts.items() for section in own] + [*FIXED]
        names = [name for name, _ in owners]
        twice = sorted({name for name in names if names.count(name) > 1})
        require((not twice, f"two parts have a section named {', '.join(twice)}: rename one"))
        return cls(number, {"up": wire.codec_id(up), "down": wire.codec_id(down)}, dict(owners))

    def address(
        self, way: Kind, clock: Clock, version: int, weight: float, own: Body, common: Body = NOTHING
    ) -> Outgoing:
        """Return a message with a header and these pieces, and its number of bytes by part and section."""
        head = Head(way, clock.round, clock.client, self.codecs[way], weight, self.number, version)
        return Outgoing(wire.address(head, own, common), self.kinds(way, wire.summed(own, common)))

    def check(self, head: Head, way: Kind, clock: Clock, version: int) -> None:
        """Raise ``PayloadError`` if a header does not fit this exchange, client, round and model version."""
        wanted = way, clock.round, clock.client, self.codecs[way], self.number, version
        names = ("direction", "round", "client", "codec", "exchange", "model version")
        for name, got, want in zip(names, (*head[:4], head.exchange, head.version), wanted, strict=True):
            if got != want:
                raise PayloadError(f"message is for another {name}: expected {want}, got {got}")

    def kinds(self, way: Kind, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of bytes by part and section, given that by array."""
        found: dict[str, int] = {}
        for name, size in sizes.items():
            kind = sections.kind(name, self.parts, "codec" if way == "up" else "down")
            kind = name if name == wire.OVERHEAD else kind
            found[kind] = found.get(kind, 0) + size
        return found
