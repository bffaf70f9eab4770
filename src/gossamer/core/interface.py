"""Check that a value is a part of the right kind, with the members that its kind requires."""

import inspect
from collections.abc import Iterator
from typing import Any

from gossamer.core.errors import ConfigError

KINDS = ("View", "Solver", "Codec", "Server", "Sampler", "Channel")

BIND = "bind(context)"
ASSIGN = "assign(state, cohort, clock, key)"
OLD: dict[str, dict[str, str]] = {
    "View": {
        "fit": BIND,
        "start": "ViewMemory.first(client)",
        "personal": "a base class: ViewMemory",
        "by_value": "sent(like, clock, key, memory), which is the whole model",
    },
    "Solver": {
        "fit": BIND,
        "tells": "sections",
        "now": "hyperparams(clock)",
        "unsent": "skipped(memory)",
        "notes": "end(carry, info) -> memory, sections",
        "whole": "bind(context), which may refuse",
        "from_first": "init(context)",
        "personal": "deploy(memory)",
        "skipped_state": "skipped(memory)",
        "advance": "step(loss, start, carry, hyperparams), which finds its keys as loss.keys",
        "fixed": "span, which gives Span(..., fixed=True)",
    },
    "Codec": {
        "fit": BIND,
        "codes": "Summing.sum_size(layout)",
        "code": "Summing.to_sum(payload, layout, key)",
        "restore": "Summing.from_sum(mean, layout, key)",
        "rehearsal": "StraightThrough.surrogate_context(layout, steps, key, device)",
        "rehearse": "StraightThrough.surrogate(change, context, step_index)",
        "adding": "fold_into(payload, layout, key, weight, like)",
        "unsent": "CodecMemory.skipped_state(state)",
        "beside": "CodecMemory.companion(other)",
    },
    "Server": {
        "fit": BIND,
        "notes": "MeasuredServer.measure(state, acc)",
        "empty": "begin(state, assigned)",
        "weigh": "fold(acc, arrival), which has arrival.samples",
        "due": f"{ASSIGN}, which gives None",
        "asks": ASSIGN,
        "places": ASSIGN,
        "moved": "Context.models",
        "model": "download(state, assignment)",
    },
}
"""Members of parts in version 0.1, and their replacements."""

BASES = {
    "encode_with": "CodecMemory",
    "from_sum": "Summing",
    "surrogate": "StraightThrough",
    "figures": "MeasuredCodec",
    "measure": "MeasuredServer",
    "check_cohort": "CohortServer",
    "replayed": "Replayable",
    "replays": "ReplayableServer",
}
"""Members that are called only if the part extends the base class that defines them."""


EXAMPLES = {"View": "Full()", "Solver": "SGD()", "Codec": "Eden()", "Server": "Mean()", "Sampler": "Uniform()"}
"""A part of each kind, for messages."""


WRAPPED = {"Rule": "Robust({}(...), method.server)"}
"""What is given to a part, and is none."""


def check_part(part: object, kind: type, name: str) -> None:
    """Raise ``ConfigError`` for a value that is not a part of this kind, or has the interface of version 0.1."""
    if isinstance(part, type):
        raise ConfigError(f"{name}: {part.__name__} is a class: write {part.__name__}()")
    old = OLD.get(kind.__name__, {})
    if not isinstance(part, kind):
        other = next((base.__name__ for base in type(part).__mro__ if base.__name__ in KINDS), None)
        hint = f", which is a {other}" if other else _renamed(old, (member for member in old if hasattr(part, member)))
        if wrapped := [WRAPPED[base.__name__] for base in type(part).__mro__ if base.__name__ in WRAPPED]:
            hint = f": write {wrapped[0].format(type(part).__name__)}"
        if isinstance(part, str):
            hint = f" {part!r}: write the part itself, such as {EXAMPLES[kind.__name__]}"
        raise ConfigError(f"{name} must be a gossamer {kind.__name__}, got {type(part).__name__}{hint}")
    own = dict(_own(part))
    known = {member for base in _library(part) for member in vars(base)}
    if renamed := _renamed(old, (member for member in old if member in own and member not in known)):
        raise ConfigError(f"{name} {type(part).__name__}{renamed}")
    mistakes = [*_bases(part, own), *_signatures(part, own)]
    if mistakes:
        raise ConfigError(*(f"{name} {type(part).__name__}: {mistake}" for mistake in mistakes))


def _renamed(old: dict[str, str], members: Iterator[str]) -> str:
    found = [f"{member} is now {old[member]}" for member in members]
    return f": it has the interface of version 0.1: {'; '.join(found)}" if found else ""


def _library(part: object) -> list[type]:
    """Return the base classes of a part that belong to the library."""
    return [base for base in type(part).__mro__ if base.__module__.partition(".")[0] == "gossamer"]


def _own(part: object) -> Iterator[tuple[str, Any]]:
    """Yield the public members that classes outside of the library define."""
    library = _library(part)
    for base in reversed(type(part).__mro__):
        if base not in library and base is not object:
            yield from ((member, value) for member, value in vars(base).items() if not member.startswith("_"))


def _bases(part: object, own: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each member that is never called because its base class is missing."""
    names = {base.__name__ for base in type(part).__mro__}
    for member, base in BASES.items():
        if member in own and base not in names and not any(hasattr(each, member) for each in _library(part)):
            yield f"{member} is called only if the class extends {base}: add this base class"


def _signatures(part: object, own: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each method whose parameters do not match those of the base class."""
    for member, value in own.items():
        base = next((vars(each)[member] for each in _library(part) if member in vars(each)), None)
        if not (inspect.isfunction(value) and inspect.isfunction(base)):
            continue
        wanted = [*inspect.signature(base).parameters.values()]
        if any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in wanted):
            continue
        try:
            inspect.signature(value).bind(*wanted)
        except TypeError:
            called, takes = (", ".join([*inspect.signature(f).parameters][1:]) for f in (base, value))
            yield f"{member} is called with ({called}), but takes ({takes})"
