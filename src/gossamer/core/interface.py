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
        "start": "first(client)",
        "personal": "section = CHANGE, of gossamer.core.view",
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
        "codes": "sum_size(layout)",
        "code": "to_sum(payload, ctx)",
        "restore": "from_sum(mean, ctx)",
        "rehearsal": "surrogate_context(ctx, steps, device)",
        "rehearse": "surrogate(change, context, step_index)",
        "adding": "fold_into(payload, ctx, weight, like)",
        "unsent": "skipped(memory)",
        "skipped_state": "skipped(memory)",
        "beside": "companion(other)",
        "sum_limit": "sum_segments(layout)",
        "of_client": "ctx.client, in encode",
        "with_side_information": "ctx.start, in encode and decode",
    },
    "Server": {
        "fit": BIND,
        "notes": "measure(state, acc)",
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

OLD_0_2: dict[str, dict[str, str]] = {
    "Server": {
        "replays": "unreplayable(whole), which returns an empty text if clients can repeat the aggregation",
        "replays_parts": "unreplayable(whole), with whole=False where clients hold parts of the model",
        "folds_sums": "unsummable(exact), which returns an empty text if fold_sum can replace fold",
        "mean_only": "takes_any_mean",
    },
}
"""The same of version 0.2."""

NAMES = {
    "BoundServer": "Server",
    "CohortServer": "Server, which has check_cohort(clients)",
    "MeasuredServer": "Server, which has measure(state, acc)",
    "ModelPerClient": "Server, which has home(client)",
    "ReplayableServer": "Server, which has unreplayable(whole)",
    "SumServer": "Server, which has unsummable(exact) and fold_sum",
    "SummingServer": "Server, which has unsummable(exact) and fold_sum",
    "BoundView": "View",
    "DescribedView": "View, with section = PART of gossamer.core.view",
    "NestedView": "View, which has nested",
    "ViewMemory": "View, with section = CHANGE of gossamer.core.view",
}
"""Base classes of version 0.2 that packages of parts no longer have."""

ABSTRACT_OR_FINAL = ("View", "Server")
"""Kinds whose classes are either abstract or have no subclasses."""

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
    for version, members in (("0.1", old), ("0.2", OLD_0_2.get(kind.__name__, {}))):
        if renamed := _renamed(members, (each for each in members if each in own and each not in known), version):
            raise ConfigError(f"{name} {type(part).__name__}{renamed}")
    mistakes = [*_final(part, kind), *_signatures(part, own)]
    if mistakes:
        raise ConfigError(*(f"{name} {type(part).__name__}: {mistake}" for mistake in mistakes))


def _renamed(old: dict[str, str], members: Iterator[str], version: str = "0.1") -> str:
    found = [f"{member} is now {old[member]}" for member in members]
    return f": it has the interface of version {version}: {'; '.join(found)}" if found else ""


def _library(part: object) -> list[type]:
    """Return the base classes of a part that belong to the library."""
    return [base for base in type(part).__mro__ if base.__module__.partition(".")[0] == "gossamer"]


def _own(part: object) -> Iterator[tuple[str, Any]]:
    """Yield the public members that classes outside of the library define."""
    library = _library(part)
    for base in reversed(type(part).__mro__):
        if base not in library and base is not object:
            yield from ((member, value) for member, value in vars(base).items() if not member.startswith("_"))


def _final(part: object, kind: type) -> Iterator[str]:
    """Yield a message for a subclass of a part of the library that is not abstract.

    It would inherit what the part says of itself, such as that clients can repeat its aggregation.
    """
    base = next(each for each in type(part).__mro__ if each in _library(part) and issubclass(each, kind))
    if kind.__name__ in ABSTRACT_OR_FINAL and base is not type(part) and not inspect.isabstract(base):
        abstract = next(each for each in base.__mro__ if inspect.isabstract(each))
        yield f"{base.__name__} has no subclasses: extend {abstract.__name__}, or hold a {base.__name__} in a field"


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
