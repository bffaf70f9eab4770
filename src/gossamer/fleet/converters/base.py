"""What converters of availability traces share: times of a client, and the file that is written."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gossamer.core.errors import ConfigError

Times = list[tuple[float, float]]
"""Starts and ends, in seconds."""


@dataclass
class ConvertedTrace:
    """The times of each client, which repeat after a period.

    Args:
        clients: times and period of each client, by name
        left_out: the number of clients that were left out, by reason
        notes: what else was left out, and how often
    """

    clients: dict[str, tuple[Times, float]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, times: Iterable[tuple[float, float]], period: float) -> None:
        """Add a client; a client without any time is left out."""
        if found := merged(times, period):
            self.clients[name] = (found, period)
        else:
            self.left_out["never available"] += 1

    def csv(self) -> str:
        """Return the content of an availability trace."""
        if not self.clients:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise ConfigError(f"no client of the trace is ever available: {reasons or 'it has no clients'}")
        lines = [
            f"{_quoted(name)},{_plain(start)},{_plain(end)},{_plain(period)}"
            for name, (times, period) in self.clients.items()
            for start, end in times
        ]
        return "\n".join(["client,start,end,repeat", *lines, ""])

    @property
    def share(self) -> float:
        """The mean share of time that a client is available."""
        shares = (sum(end - start for start, end in times) / period for times, period in self.clients.values())
        return sum(shares) / max(len(self.clients), 1)


def merged(times: Iterable[tuple[float, float]], period: float) -> Times:
    """Return times within a period, sorted, without overlaps and without those that end before they start."""
    found: Times = []
    for start, end in sorted((max(start, 0), min(end, period)) for start, end in times):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


def _plain(seconds: float) -> str:
    return str(int(seconds)) if seconds == int(seconds) else repr(float(seconds))


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""')) if any(sign in name for sign in ',"#') else name
