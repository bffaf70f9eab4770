"""FedScale's availability trace, ``client_behave_trace`` (Lai et al., 2022, https://arxiv.org/abs/2105.11367).

It is a pickle of a dictionary. Each client has the lists ``active`` and ``inactive``, the seconds at which it comes and
leaves, and ``finish_time``, after which they repeat.
"""

from pathlib import Path
from typing import Any

from gossamer.core.errors import ConfigError
from gossamer.fleet.converters.base import ConvertedTrace
from gossamer.fleet.converters.pickles import read_pickle
from gossamer.fleet.tables import content


def read_fedscale(path: str | Path) -> ConvertedTrace:
    """Read a trace; clients without valid times are left out and counted."""
    trace = ConvertedTrace()
    for name, entry in entries(path, ("active", "inactive", "finish_time")).items():
        come, leave, period = entry["active"], entry["inactive"], entry["finish_time"]
        if not (_numbers(come) and _numbers(leave) and _numbers([period]) and period > 0):
            trace.left_out["without valid times"] += 1
            continue
        trace.add(name, zip(come, leave, strict=False), period)
    return trace


def entries(path: str | Path, keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the entries of a pickle of FedScale by client; refuse a pickle whose entries lack a key."""
    try:
        found = read_pickle(content(path))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {text}" for text in error.mistakes)) from error
    plain = isinstance(found, dict) and all(isinstance(name, int | str) for name in found)
    fits = plain and all(isinstance(entry, dict) and {*keys} <= entry.keys() for entry in found.values())
    if not fits or not found:
        raise ConfigError(f"{path}: is not a dictionary of clients, each with {', '.join(keys)}")
    return {str(name): entry for name, entry in found.items()}


def _numbers(values: object) -> bool:
    return isinstance(values, list | tuple) and all(map(_number, values))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
