"""Compares what cases give with what was recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from replay.recorder import Played, Values

TOLERANCE = 1e-9
"""The largest difference of two values, absolute plus relative."""

EQUAL = ("flops", "useful_flops")
"""Metrics that must be equal."""


@dataclass
class Difference:
    """How a case differs from its record.

    Args:
        models: the largest difference of a value of the server or of a client's model there, and its name
        memories: the largest difference of a value that a client remembers, and its name
        messages: the messages that differ, in order, with what differs: header, content, missing or new
        metrics: the metrics that differ, by round and name
        beyond: names of values beyond the tolerance, or of another shape, missing or new
    """

    models: tuple[float, str] = (0.0, "")
    memories: tuple[float, str] = (0.0, "")
    messages: list[tuple[str, str]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.messages or self.metrics or self.beyond)

    @property
    def first(self) -> str:
        """The first message that differs: its round, exchange, client and way, and what differs."""
        return " ".join(self.messages[0]) if self.messages else ""

    def __str__(self) -> str:
        count = f" and {len(self.messages) - 1} more" if len(self.messages) > 1 else ""
        shown = [f"message {self.first}{count}"] if self.messages else []
        far = f"models {self.models[0]:.1e}, memories {self.memories[0]:.1e}"
        shown += [f"values {', '.join(self.beyond[:3])} ({far})"] if self.beyond else []
        return "; ".join([*shown, *(f"metric {name}" for name in self.metrics[:3])]) or "equal"


def compare(new: Played, old: Played) -> Difference:
    """Return how a case differs from its record."""
    found = Difference()
    for name in sorted({*new.values, *old.values}):
        far, well = _distance(new.values.get(name), old.values.get(name))
        if name.startswith("clients/"):
            found.memories = max(found.memories, (far, name), key=lambda each: each[0])
        else:
            found.models = max(found.models, (far, name), key=lambda each: each[0])
        if not well:
            found.beyond.append(name)
    for name in sorted({*new.messages, *old.messages}, key=_place):
        if kind := _changed(new.messages.get(name), old.messages.get(name)):
            found.messages.append((name, kind))
    if len(new.metrics) != len(old.metrics):
        found.metrics.append(f"{len(new.metrics)} rounds instead of {len(old.metrics)}")
    for number, (now, then) in enumerate(zip(new.metrics, old.metrics, strict=False), 1):
        found.metrics += [f"{number}/{name}" for name in then if not _equal(name, now, then)]
    return found


def _distance(new: Values | None, old: Values | None) -> tuple[float, bool]:
    """Return the largest difference, and whether all are within the tolerance."""
    if new is None or old is None or new.shape != old.shape:
        return np.inf, False
    with np.errstate(invalid="ignore"):
        far = np.where((new == old) | (np.isnan(new) & np.isnan(old)), 0.0, np.abs(new - old))
    far = np.where(np.isnan(far), np.inf, far)
    return float(far.max(initial=0.0)), bool(np.isclose(new, old, TOLERANCE, TOLERANCE, equal_nan=True).all())


def _changed(new: tuple[int, str, str] | None, old: tuple[int, str, str] | None) -> str:
    """Return what differs in a message; nothing if it is equal."""
    if new is None or old is None:
        return "missing" if new is None else "new"
    return "" if new == old else "content" if new[2] != old[2] else "header only"


def _place(message: str) -> tuple[int, int, int, str]:
    """Return the place of a message in its run: downloads come first."""
    number, exchange, client, way = message.split(".")
    return int(number), int(exchange), int(client), way


def _equal(name: str, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
    if name not in new:
        return False
    return new[name] == old[name] if name in EQUAL else bool(np.isclose(new[name], old[name], TOLERANCE, TOLERANCE))
