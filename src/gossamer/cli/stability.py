"""The command ``stability``."""

import json
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from gossamer.analysis.stability import REPEATS, Growth, Newcomer, Stability, Swap, growth, stability
from gossamer.cli.build import OPTIONS, assemble
from gossamer.cli.build_method import find_recipe, make_method
from gossamer.cli.common import say
from gossamer.cli.flags import Flag, flags, takes, value
from gossamer.cli.request import Request
from gossamer.cli.run import Asked, read_words
from gossamer.cli.run_args import CAPACITIES, RUN, Verb, fleet_heeded
from gossamer.core.errors import ConfigError, Mistakes
from gossamer.core.method import Method
from gossamer.core.specs import pieces
from gossamer.fleet.fleet import AIR
from gossamer.runs.report.text import count

OWN = [
    Flag("repeats", int, REPEATS, "number of samples to replace, one run each", "N"),
    Flag(
        "replaced",
        str,
        "drawn",
        "clients, or samples and the test samples that replace them",
        "CLIENT[:SAMPLE:TEST]+...",
    ),
    Flag(
        "newcomer",
        Newcomer,
        "own",
        "where new samples are drawn: the client's own test samples, or all",
        takes(Newcomer),
    ),
    Flag("each", bool, False, "measure with each of --capacities alone, and the growth with capacity", ""),
    Flag("json", bool, False, "print one JSON object", ""),
]
NOT_MEASURED = ("out", "track", "validate")
"""Flags of ``run`` that have no meaning here: nothing is kept, and a held-out sample has no effect."""

VERB = Verb("gossamer stability METHOD", [*OWN, *(flag for flag in RUN if flag.name not in NOT_MEASURED)])


class Terms(NamedTuple):
    """The checked arguments of the measurement."""

    replaced: tuple[int | Swap, ...]
    repeats: int | None
    newcomer: Newcomer
    each: bool
    json: bool


def measure(words: list[str]) -> int:
    """``gossamer stability METHOD [flags]``."""
    asked = read_words(words, VERB)
    return _start(asked) if asked else 0


def _start(asked: Asked) -> int:
    """Check all arguments, then measure."""
    mistakes, given = asked.mistakes, asked.take(flag.name for flag in OWN)
    terms = mistakes.attempt(_terms, given)
    options, request = asked.take(OPTIONS), asked.request()
    capacities = mistakes.attempt(_capacities, request) if terms and terms.each else None
    simulation = mistakes.attempt(assemble, request, options)
    mistakes.settle()
    assert simulation is not None  # or there were mistakes
    assert terms is not None
    how: dict[str, Any] = {"replaced": terms.replaced, "repeats": terms.repeats, "newcomer": terms.newcomer, "say": say}
    how |= vars(simulation.options)
    found: Growth | Stability
    if capacities is not None:
        found = growth(partial(_with_capacity, request), capacities, simulation.task, **how)
        what, swaps = "after the last round, ", found.found[0][1].swaps
    else:
        found = stability(make_method(request), simulation.task, **how)
        what, swaps = "", found.swaps
    told = f"{what}mean over {count(len(swaps), 'replaced sample')}\n\n{found}"
    print(json.dumps(found.plain(), indent=1, allow_nan=False) if terms.json else told)
    return 0


def _terms(given: dict[str, Any]) -> Terms:
    mistakes = Mistakes()
    repeats = mistakes.attempt(value, "--repeats", given.get("repeats"), int)
    if repeats is not None and repeats < 1:
        mistakes.note(f"--repeats must be at least 1, got {repeats}")
    pieces = [piece for piece in given.get("replaced", "").split("+") if piece]
    replaced = tuple(wanted for piece in pieces if (wanted := mistakes.attempt(_wanted, piece)) is not None)
    if repeats is not None and 1 <= repeats < len(pieces):
        mistakes.note(f"--repeats is {repeats}, but --replaced names {len(pieces)}")
    newcomer = mistakes.attempt(value, "--newcomer", given.get("newcomer", "own"), Newcomer)
    mistakes.settle()
    assert newcomer is not None  # or there were mistakes
    return Terms(replaced, repeats, newcomer, given.get("each", False), given.get("json", False))


def _wanted(piece: str) -> int | Swap:
    """Read ``3``, a client, or ``3:0:17``, the first sample of client 3 replaced by test sample 17."""
    numbers = piece.split(":")
    if len(numbers) not in (1, 3) or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--replaced must be CLIENT or CLIENT:SAMPLE:TEST, whole numbers >= 0, got {piece!r}")
    first, *more = map(int, numbers)
    return Swap(first, *more) if more else first


def _capacities(request: Request) -> tuple[Any, ...]:
    """Return the given capacities, as typed, or those of the method."""
    recipe = find_recipe(request.method)
    known = [flag for flag in flags(recipe, request.method) if flag.name == CAPACITIES]
    if not known:
        raise ConfigError(f"--each: {request.method} has no flag --capacities")
    if fleet_heeded(request.given):
        raise ConfigError(f"--each needs --capacities, which --fleet sets by memory: leave one out; {AIR}")
    if CAPACITIES in request.given:
        return tuple(pieces(request.given[CAPACITIES]))
    return tuple(known[0].default) if isinstance(known[0].default, tuple) else ()


def _with_capacity(request: Request, capacity: Any) -> Method:
    one = capacity if isinstance(capacity, str) else (capacity,)
    return make_method(replace(request, given={**request.given, CAPACITIES: one}))
