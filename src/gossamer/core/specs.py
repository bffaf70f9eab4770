"""Specs of the command line: ``name``, ``name:value`` or ``name:value,field=value``.

``dirichlet:0.3,min_samples=10`` names the dataclass registered as ``dirichlet``, and sets its fields in order, then by
name. Partitions, channels and schedules are written like this. Each value is parsed by the type of its field. A wrong
value is refused with the field's name before anything runs. A piece that contains a comma is put in double quotes:
``wireless:"fleet=a,b.toml",seed=3``. Quotes inside it are doubled.
"""

import csv
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from gossamer.core.errors import ConfigError, Mistake, gather, listed

T = TypeVar("T")

NONE = ("none", "None", "all")


def read(text: str, kind: Any) -> Any:
    """Parse ``text`` as a value of the annotated type ``kind``. Raise ``ValueError`` with what was expected.

    >>> read("0.5", float), read("none", int | None), read("1,2", tuple[int, ...])
    (0.5, None, (1, 2))
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return _read_choice(text, args)
    if origin in (Union, types.UnionType):
        return _read_union(text, args)
    if origin is tuple:
        return tuple(read(piece, args[0]) for piece in pieces(text))
    return _read_plain(text, kind)


def pieces(text: str) -> list[str]:
    """Split a list of values at ``+`` if the text contains one, else at commas."""
    return [piece for piece in text.split("+" if "+" in text else ",") if piece]


def _read_choice(text: str, choices: tuple[Any, ...]) -> Any:
    written = {str(choice): choice for choice in choices}
    if text not in written:
        raise ValueError(f"one of {listed(written)}" if len(written) > 1 else listed(written))
    return written[text]


def _read_union(text: str, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and text in NONE:
        return None
    wanted = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return read(text, kind)
            except ConfigError:  # the kind is right and the value is invalid: other kinds need not be tried
                raise
            except ValueError as error:
                wanted.append(str(error))
    raise ValueError(" or ".join(wanted) + (" or none" if type(None) in kinds else ""))


def _read_plain(text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError("true or false")
        return text.lower() in ("true", "yes", "1")
    if kind is int or kind is float:
        return _read_number(text, kind)
    if hasattr(kind, "of_text"):
        return kind.of_text(text)
    if kind is str:
        return text
    if kind is Any:
        return _guess(text)
    raise ValueError(f"a {getattr(kind, '__name__', kind)}, which cannot be written on the command line")


def _read_number(text: str, kind: Any) -> Any:
    """Parse a number. A float may be written as a fraction, such as 1/3."""
    try:
        over, _, under = text.partition("/")
        return kind(text) if kind is int or not under else int(over) / int(under)
    except (ValueError, ZeroDivisionError):
        raise ValueError("a whole number" if kind is int else "a number") from None


def _guess(text: str) -> Any:
    """Parse a value of unknown type: as a number if possible, else as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse(text: str, choices: Mapping[str, type[T]], what: str, typed: str | None = None) -> T:
    """Build the value of a spec such as ``dirichlet:0.3,min_samples=10``.

    ``what`` names its kind in errors. ``typed`` is what the user wrote, if that differs from the spec.
    """
    name, colon, rest = text.partition(":")
    if name not in choices:
        raise ConfigError(unknown(what, name, choices))
    if colon and not rest:
        raise ConfigError(f"{what} {text!r}: nothing follows the colon: write it as {usage(name, choices[name])}")
    try:
        own = getattr(choices[name], "of_spec", None)  # a class may read the text after the colon itself
        return typing.cast(T, own(rest)) if own else choices[name](**fields_of(rest, name, choices[name]))
    except ConfigError as error:
        spelled = (_by_field(mistake, choices[name]) for mistake in error.mistakes)
        raise ConfigError(*(f"{what} {typed or text!r}: {mistake}" for mistake in spelled)) from error


def _by_field(mistake: Mistake, cls: type) -> str:
    """Return a mistake with the fields of a class as a spec has them: ``share`` in place of ``TopK.share``."""
    return mistake.written(lambda field: str(field._replace(part="") if field.part == cls.__name__ else field))


def fields_of(rest: str, name: str, cls: type) -> dict[str, Any]:
    """Parse the fields after the colon, in order or by name. Raise ``ConfigError`` with all mistakes."""
    hints, fields = typing.get_type_hints(cls), _names(cls)
    values: dict[str, Any] = {}
    mistakes = []
    for field, value in texts(rest, cls):
        if field not in fields or field in values:
            piece = f"{field}={value}" if field else value
            mistakes.append(f"{piece!r} does not fit: write it as {usage(name, cls)}")
            continue
        try:
            values[field] = read(value, hints[field])
        except ConfigError as error:  # the kind is right and the value is invalid
            mistakes += error.mistakes
        except ValueError as error:
            mistakes.append(f"{field} must be {error}, got {value!r}")
    if not mistakes and any(field not in values and _required(cls, field) for field in fields):
        mistakes.append(f"a value is missing: write it as {usage(name, cls)}")
    gather(mistakes)
    return values


def texts(rest: str, cls: type) -> list[tuple[str, str]]:
    """Return field names and texts of a spec. The name is empty for a value beyond the last field."""
    names, found = _names(cls), []
    for number, piece in enumerate(filter(None, next(csv.reader([rest]), []))):
        field, named, value = piece.partition("=")
        found.append((field, value) if named else (names[number] if number < len(names) else "", piece))
    return found


def written(field: str, value: str) -> str:
    """Return the piece of a spec that sets a field.

    >>> print(written("seed", "3"), written("fleet", "a,b.toml"))
    seed=3 "fleet=a,b.toml"
    """
    piece = f"{field}={value}"
    return '"{}"'.format(piece.replace('"', '""')) if any(sign in piece for sign in ',"') else piece


def usage(name: str, cls: type) -> str:
    """Return the usage of a spec: ``dirichlet:ALPHA[,min_samples=1]``. A class with ``of_spec`` has ``spec_usage``."""
    if own := getattr(cls, "spec_usage", ""):
        return str(own)
    needed = ",".join(field.upper() for field in _names(cls) if _required(cls, field))
    extra = ",".join(
        f"{field}={as_text(getattr(cls, field, '...'))}" for field in _names(cls) if not _required(cls, field)
    )
    return name + (f":{needed}" if needed else "") + (f"[{',' if needed else ':'}{extra}]" if extra else "")


def _names(cls: type) -> list[str]:
    """Return the names of the fields in their order; fields that Python takes by name alone come last."""
    fields = [field for field in dataclasses.fields(typing.cast(Any, cls)) if field.init]
    return [field.name for field in sorted(fields, key=lambda field: bool(field.kw_only))]


def as_text(value: Any) -> str:
    """Return a value as text that ``read`` parses."""
    if hasattr(value, "to_text"):
        return str(value.to_text())
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _required(cls: type, name: str) -> bool:
    field = next(f for f in dataclasses.fields(cls) if f.name == name)
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def spec(value: Any, choices: Mapping[str, type]) -> str:
    """Return the spec that ``parse`` turns into this value, or its ``repr`` if its type has no name."""
    name = next((name for name, cls in choices.items() if type(value) is cls), None)
    if name is None:
        return repr(value)
    given = [
        written(field.name, as_text(getattr(value, field.name)))
        for field in sorted(dataclasses.fields(value), key=lambda field: bool(field.kw_only))
        if _required(type(value), field.name) or getattr(value, field.name) != field.default
    ]
    return f"{name}:{','.join(given)}" if given else name


def unknown(what: str, name: str, known: typing.Iterable[str]) -> str:
    """Return the message ``unknown split 'dirchlet': did you mean dirichlet? known: dirichlet, iid, ...``."""
    names = list(known)
    near = nearest(name, names)
    return f"unknown {what} {name!r}: {f'did you mean {near}? ' if near else ''}known: {listed(names)}"


def nearest(name: str, known: typing.Iterable[str]) -> str | None:
    """Return the most similar known name, or ``None``. Leading dashes are ignored.

    >>> nearest("--epoch", ["--epochs", "--rounds"]), nearest("--bogus", ["--epochs", "--rounds"])
    ('--epochs', None)
    """
    bare = {other.lstrip("-"): other for other in known}
    near = difflib.get_close_matches(name.lstrip("-"), bare, n=1)
    return bare[near[0]] if near else None
