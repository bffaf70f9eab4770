"""FLASH's state traces, ``state_traces.json`` (Yang et al., 2021, https://arxiv.org/abs/2006.06983).

It is a JSON object. Each device has ``messages``: lines with a time and a change of its state, separated by a tab:

    2020-01-29 23:49:18	battery_charged_on
    2020-01-29 23:51:02	wifi

As in FLASH, a device is available while it is locked, on Wi-Fi and charging, its times count from 2020-01-02, and the
trace repeats from its first to its last message. States that say nothing about this are left out and counted.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gossamer.core.errors import ConfigError
from gossamer.core.files import parse_json
from gossamer.fleet.converters.base import ConvertedTrace
from gossamer.fleet.tables import content

START = datetime(2020, 1, 2)
FORMAT = "%Y-%m-%d %H:%M:%S"

CHANGES = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
"""What a state changes: a condition of being available, and its value."""


def read_flash(path: str | Path) -> ConvertedTrace:
    """Read a trace; devices without valid messages are left out and counted."""
    try:
        found = parse_json(content(path))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(entry, dict) for entry in found.values()):
        raise ConfigError(f"{path}: is not a JSON object of devices, each with messages")
    trace = ConvertedTrace()
    for name, entry in found.items():
        try:
            messages = list(_messages(str(entry.get("messages", ""))))
        except ValueError:
            trace.left_out["with a line that is not a time and a state"] += 1
            continue
        if not messages or messages[0][0] >= messages[-1][0]:
            trace.left_out["without messages at two times"] += 1
            continue
        trace.add(name, _available(messages, trace.notes), messages[-1][0] - messages[0][0])
    return trace


def _messages(text: str) -> Iterator[tuple[float, str]]:
    """Yield seconds from the start, and the state."""
    for line in filter(str.strip, text.split("\n")):
        time, state = line.strip().split("\t")
        yield (datetime.strptime(time.strip(), FORMAT) - START).total_seconds(), state.strip().lower()


def _available(messages: list[tuple[float, str]], notes: Counter[str]) -> Iterator[tuple[float, float]]:
    """Yield the times at which all conditions hold, within a period that begins with a multiple of its length."""
    period, since = messages[-1][0] - messages[0][0], None
    holds = {"charging": False, "wifi": False, "locked": False}
    for time, state in messages:
        if state in CHANGES:
            condition, value = CHANGES[state]
            holds[condition] = value
        elif not (state.endswith("%") or state in ("screen_on", "screen_off")):
            notes[f"state {state[:40]!r}"] += 1
        if all(holds.values()) and since is None:
            since = time
        elif since is not None and not all(holds.values()):
            start, length = since % period, time - since
            yield start, start + length
            yield 0.0, start + length - period  # what reaches into the next period
            since = None
