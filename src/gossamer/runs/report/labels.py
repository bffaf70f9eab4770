"""Labels that tell runs apart: the method's name, and the settings in which the compared runs differ.

The parts of a method are recorded as text. Runs of one method are compared field by field, so that a label holds
``lr=0.05`` and not the whole solver. A setting with its default value is left out.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from gossamer.parts.adapters import ADAPTERS
from gossamer.parts.channels import CHANNELS
from gossamer.parts.codecs import CODECS
from gossamer.parts.downlinks import DOWNLINKS
from gossamer.parts.samplers import SAMPLERS
from gossamer.parts.servers.robust import RULES
from gossamer.runs.report.summary import ROBUST, method_name, parsed

REGISTRIES = (ADAPTERS, CODECS, DOWNLINKS, CHANNELS, SAMPLERS, RULES)
NAMES = {attribute: name for registry in REGISTRIES for name, (_, attribute) in registry.where.items()}
"""Names of parts on the command line, by their class."""

TASK = ("data", "model", "split", "clients", "statistics")
TRAINING = ("per_round", "seed", "device", "executor", "precision", "checkpointing")
OPTIONS = (*TRAINING, "channel", "schedule", "failure_rate", "attack", "exclude_after", "validate")
"""Settings of the task and of the run that labels show."""

DEFAULTS = {
    **dict.fromkeys(("adapter", "per_round", "schedule", "attack", "exclude_after", "validate"), "None"),
    **{"codec": "dense", "down": "dense", "server": "Mean", "sampler": "uniform", "statistics": "batch"},
    **{"seed": "0", "device": "cpu", "executor": "auto", "precision": "float32", "checkpointing": "False"},
    **{"channel": "perfect", "failure_rate": "0.0"},
}
"""Values that labels leave out."""

PLAIN = "Dense(dtype='model')"
WRAPPERS = {"OnWeights": "codec", ROBUST: "rule"}
"""Parts that apply another one, in this field: the label shows the other one."""


def labels(abouts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each run, from the contents of their ``run.json``."""
    names = [method_name(about).rpartition("/")[2] for about in abouts]
    rows: list[dict[str, str]] = [{} for _ in abouts]
    for part, settings in (("task", TASK), ("options", OPTIONS)):
        for name in settings:
            usual = DEFAULTS.get(name, "") if part == "options" else ""
            _note(rows, name, [str(about[part].get(name, usual)) for about in abouts], [True] * len(rows))
    for method in dict.fromkeys(names):
        alike = [number for number, name in enumerate(names) if name == method]
        given = [set((abouts[number].get("recipe") or {}).get("given", ())) for number in alike]
        recorded = [abouts[number]["method"] for number in alike]
        for part in dict.fromkeys(part for parts in recorded for part in parts):
            for name, texts in _differing(part, [parsed(parts.get(part, "None")) for parts in recorded]):
                own = [name.rpartition(".")[2] in asked for asked in given]
                _note([rows[number] for number in alike], name, texts, own)
    return [" ".join([name, *_written(row)]) for name, row in zip(names, rows, strict=True)]


def _note(rows: Sequence[dict[str, str]], name: str, texts: Sequence[str], given: Sequence[bool]) -> None:
    """Add a setting to the labels in which it is not the default: of the library, or of the method."""
    if len(set(texts)) == 1:
        return
    own = {text for text, asked in zip(texts, given, strict=True) if not asked}
    usual = own.pop() if len(own) == 1 else DEFAULTS.get(name)
    for row, text in zip(rows, texts, strict=True):
        if text not in (usual, DEFAULTS.get(name)):
            row[name] = text


def _written(row: Mapping[str, str]) -> list[str]:
    """Return settings as text; a field is named without its part if no other field has the same name."""
    tails = Counter(name.rpartition(".")[2] for name in row)
    short = {name: tail if tails[tail := name.rpartition(".")[2]] == 1 else name for name in row}
    return [f"{short[name]}={text.rpartition('/')[2]}" for name, text in row.items()]


def _differing(path: str, nodes: Sequence[ast.expr]) -> Iterator[tuple[str, list[str]]]:
    """Yield what differs: the fields of parts of one class, or else the parts."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if len(calls) == len(nodes) and len({(_name(call), *(k.arg for k in call.keywords)) for call in calls}) == 1:
        for number, field in enumerate(calls[0].keywords):
            yield from _differing(f"{path}.{field.arg}", [call.keywords[number].value for call in calls])
    elif len({ast.dump(node) for node in nodes}) > 1:
        texts = [_short(node) for node in nodes]
        exact = len(set(texts)) == len({ast.dump(node) for node in nodes})
        yield path, texts if exact else [ast.unparse(node) for node in nodes]


def _short(node: ast.expr) -> str:
    """Return a part as it is typed on the command line, or by the name of its class."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return ast.unparse(node).strip("'")
    if inner := [field.value for field in node.keywords if field.arg == WRAPPERS.get(node.func.id)]:
        return _short(inner[0])
    if node.func.id not in NAMES or ast.unparse(node) == PLAIN:
        return _name(node)
    usual, given = _defaults(node.func.id), list(node.keywords)
    while given and ast.unparse(given[-1].value) == usual.get(str(given[-1].arg)):
        given.pop()  # as on the command line, where the last fields can be left out
    return ":".join([_name(node), *filter(None, [",".join(_short(field.value) for field in given)])])


@functools.cache
def _defaults(kind: str) -> dict[str, str]:
    """Return the default values of a class of parts that has a name on the command line, as text."""
    registry = next(registry for registry in REGISTRIES if NAMES[kind] in registry)
    made: Any = registry[NAMES[kind]]
    return {field.name: repr(field.default) for field in fields(made) if field.default is not MISSING}


def _name(call: ast.Call) -> str:
    name = ast.unparse(call.func)
    return NAMES.get(name, name)
