"""Which updates of an exchange are far too large, compared with the model and with the other updates.

A finite update can still ruin a model or make a sum overflow. Three rules name its client; with v the largest magnitude
of its update, m the largest magnitude of the model that it received, at least 1, and c the median of v over the cohort:

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

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.exchange import Arrival
from gossamer.core.untrusted import largest
from gossamer.runs.records import Record

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
        sent = [*([] if update is None else [update]), *_tensors(arrival.sections)]
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


def _tensors(sections: Any) -> Iterator[Tensor]:
    for value in sections.values():
        if isinstance(value, dict):
            yield from value.values()
