"""Which clients of a round sent something that is far from the cohort: the norm, the direction, or the weight.

The server keeps three things of each upload: the norm of the update, the claimed number of samples, and a sketch of the
update, ``SKETCH`` numbers. At the end of the exchange they are compared with robust statistics of the cohort, which
hold as long as less than half of the clients are hostile:

norm       the logarithm of the norm per held entry, against median and median absolute deviation (MAD) of the cohort
direction  the cosine between the update and the centre of all updates, which is the median of the unit sketches;
           updates with different numbers of entries are not compared
weight     the logarithm of the number of samples, against median and MAD

A client is named if it is both many MADs away and away by a factor that matters; see ``LIMITS``. The first rule adapts
to cohorts whose clients differ, the second one to cohorts whose clients are almost equal. Only values above the median
count for norm and weight: small ones do no harm, and clients with few samples have them. Cohorts below ``FEWEST``
clients are too small for a median, and nobody is named.

A sketch is a product with random signs, row by row: the vector as a matrix of ``SKETCH`` rows, times one random sign
per column. Inner products of sketches are unbiased estimates of those of the vectors (N. Alon, Y. Matias and M.
Szegedy, https://doi.org/10.1145/237814.237823); the standard error of a cosine is about 1 / sqrt(SKETCH).
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core.exchange import Arrival
from gossamer.core.random import Key, fold, words
from gossamer.runs.records import ANOMALIES, Record

SKETCH = 1024
"""The numbers that are kept of an update. The standard error of a cosine is then 0.03."""

FEWEST = 5
"""The smallest cohort that is compared."""

CONSISTENT = 1.4826
"""The standard deviation of a normal distribution, divided by its MAD."""


HUGE = 700.0
"""The largest logarithm of a factor in records: e^700 is a float."""

DEPLOYED_EXCLUSION = 3
"""The default of ``exclude_after`` in deployments."""


class Limit(NamedTuple):
    """When a value is far from the cohort's.

    Args:
        deviations: robust standard deviations from the median
        least: the distance that is needed besides
    """

    deviations: float
    least: float


LIMITS = {"norm": Limit(6.0, math.log(5)), "weight": Limit(6.0, math.log(20)), "direction": Limit(5.0, 0.2)}
"""The limits of the logarithms of norm and weight, and of the cosine, which must be below ``-least`` itself."""


class AnomalyWatch:
    """What the server keeps of the uploads of one exchange.

    Args:
        key: the run's key, for the signs of the sketches
    """

    def __init__(self, key: Key) -> None:
        self.key = fold(key, "sketch")
        self.clients: list[int] = []
        self.samples: list[float] = []
        self.entries: list[int] = []
        self.norms: list[Tensor] = []
        self.sketches: list[Tensor] = []
        self.lengths: list[int] = []
        self._signs: dict[int, Tensor] = {}

    def note(self, arrival: Arrival, update: Tensor) -> None:
        """Note one upload that was folded."""
        self.clients.append(arrival.client)
        self.samples.append(arrival.samples)
        self.entries.append(arrival.layout.size)
        self.norms.append(torch.linalg.vector_norm(update))
        self.sketches.append(self.sketch(update))
        self.lengths.append(len(update))

    def sketch(self, vector: Tensor) -> Tensor:
        """Return the sketch of a vector; a short vector is its own sketch."""
        rows = min(SKETCH, len(vector))
        columns = len(vector) // rows if rows else 0
        if columns <= 1 and len(vector) <= SKETCH:
            return vector
        if columns not in self._signs:
            bits = words(self.key, columns) & 1
            self._signs[columns] = (bits * 2 - 1).to(vector)
        sketch = vector[: rows * columns].view(rows, columns) @ self._signs[columns]
        rest = vector[rows * columns :]
        sketch[: len(rest)] += rest
        return sketch

    def report(self) -> list[dict[str, Any]]:
        """Return the clients that are far from the cohort, in client order, with what is far and by how much."""
        found = {client: dict[str, float]() for client in self.clients}
        for name, values in self.measures().items() if len(self.clients) >= FEWEST else ():
            if len(values) >= FEWEST:  # updates of zero have no logarithm
                for client, value in far(values, LIMITS[name], below=name == "direction").items():
                    found[client][name] = value
        return [{"client": client, **reasons} for client, reasons in sorted(found.items()) if reasons]

    def measures(self) -> dict[str, dict[int, float]]:
        """Return the compared values by client: logarithms of norm and weight, and cosines."""
        norms = torch.stack([norm.double() for norm in self.norms]).tolist()
        per_entry = [norm / math.sqrt(max(1, count)) for norm, count in zip(norms, self.entries, strict=True)]
        found = {"norm": logarithms(self.clients, per_entry), "weight": logarithms(self.clients, self.samples)}
        groups: dict[tuple[int, int], list[int]] = {}
        for n, alike in enumerate(zip(self.lengths, self.entries, strict=True)):
            if 0 < norms[n] < math.inf:
                groups.setdefault(alike, []).append(n)
        return found | {"direction": self._cosines(group for group in groups.values() if len(group) >= FEWEST)}

    def _cosines(self, groups: Iterable[Sequence[int]]) -> dict[int, float]:
        """Return the cosine between the update of each client and the centre of its group."""
        found: dict[int, float] = {}
        for group in groups:
            sketches = torch.stack([self.sketches[n] for n in group]).to("cpu", torch.float64)
            found |= zip((self.clients[n] for n in group), to_centre(sketches).tolist(), strict=True)
        return found


class Exclusion:
    """Which clients are no longer sampled: those that were named in ``after`` of their last ``2 * after`` rounds.

    Rounds in which a client did not take part, or in which its upload failed or was lost, do not count. More than half
    of the clients always stay, because the statistics need an honest majority. The result is a function of the records,
    so that a resumed run excludes the same clients.

    Args:
        after: the number of rounds; none excludes nobody
        clients: the number of all clients
    """

    def __init__(self, after: int | None, clients: int) -> None:
        self.after, self.most = after, (clients - 1) // 2
        self.clients: list[int] = []
        self._recent: dict[int, deque[bool]] = {}
        self._read = 0

    def update(self, metrics: Sequence[Record]) -> list[int]:
        """Read the records that are new, and return the excluded clients, in client order."""
        for record in metrics[self._read :] if self.after else ():
            self._note(record)
        self._read = len(metrics)
        return sorted(self.clients)

    def _note(self, record: Record) -> None:
        assert self.after is not None
        named = {each["client"] for each in record.get(ANOMALIES, ())}
        away = {*record["lost"], *(failure["client"] for failure in record["failures"])}
        for client in record["clients"]:
            if client in away or client in self.clients:
                continue
            recent = self._recent.setdefault(client, deque(maxlen=2 * self.after))
            recent.append(client in named)
            if sum(recent) >= self.after and len(self.clients) < self.most:
                self.clients.append(client)


def to_centre(vectors: Tensor) -> Tensor:
    """Return the cosine between each row and the median of all rows of unit length, entry by entry."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    centre = unit.median(dim=0).values  # the lower one of two: a mean of both is not worth the sorting
    return unit @ torch.nn.functional.normalize(centre, dim=0)


def logarithms(clients: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    """Return the logarithms of positive values; infinity stays infinity, and other values are left out."""
    return {client: math.log(value) for client, value in zip(clients, values, strict=True) if value > 0}


def far(values: Mapping[int, float], limit: Limit, below: bool = False) -> dict[int, float]:
    """Return the clients whose value is far above the median of all, and by which factor.

    With ``below``, return those whose value is far below the median and below ``-limit.least``, with the value itself.

    >>> far({0: 0.0, 1: 0.1, 2: -0.1, 3: 0.0, 4: 4.6}, Limit(6, 1))
    {4: 99.5}
    """
    centre = median(values.values())
    if not math.isfinite(centre):
        return {}
    spread = CONSISTENT * median(abs(value - centre) for value in values.values())
    if below:
        least = min(-limit.least, centre - limit.deviations * spread)
        return {client: short(value) for client, value in values.items() if value < least}
    most = centre + max(limit.least, limit.deviations * spread)
    return {client: short(math.exp(min(value - centre, HUGE))) for client, value in values.items() if value > most}


def short(value: float) -> float:
    """Return a number with three digits, as records have it.

    >>> short(99.484)
    99.5
    """
    return float(f"{value:.3g}")
