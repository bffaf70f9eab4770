"""The values of a part's fields are checked against their types, before the part is made.

A text in place of a number, a class in place of an instance, or a wrong name would otherwise fail much later, or with a
message about Python. The base classes of parts extend ``CheckedFields``, so that a user's own parts are checked too.
Only fields with numbers, texts and parts are checked here. All others are left to the part.
"""

import copy
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, Union

from gossamer.core.errors import ConfigError, Mistake, Setting, gather
from gossamer.core.specs import nearest, read

P = ParamSpec("P")
T = TypeVar("T")

NOUNS = {float: "a number", int: "a whole number", bool: "True or False", str: "a text", types.NoneType: "none"}
"""The plain types that are checked, in words."""


class CheckedFields:
    """Base of parts whose fields are checked: ``SGD(lr="0.1")`` and ``Feedback(TopK)`` are refused."""

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Check the given fields, then make the object."""
        if args or fields:
            check_fields(cls, args, fields)
        return super().__new__(cls)

    def filled(self, **found: Any) -> Self:
        """Return a copy with values that follow from the network, for ``bind``. Their fields are not configuration.

        Such a field is declared with ``field(default=None, init=False, repr=False, compare=False)``: the part prints,
        compares and pickles as it was configured.
        """
        made = copy.copy(self)
        for name, value in found.items():
            if not hasattr(self, name):
                raise TypeError(f"{type(self).__name__} has no field {name}")
            object.__setattr__(made, name, value)  # the dataclass is frozen, but the copy is not in use yet
        return made


class _Fields(NamedTuple):
    names: list[str]
    kinds: dict[str, Any]


@functools.cache
def _fields(cls: Any) -> _Fields | None:
    """Return the names and types of a class's fields; ``None`` if they cannot be known."""
    try:
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        hints = typing.get_type_hints(cls)
    except (TypeError, ValueError, NameError):  # a type may be imported for type checkers alone
        return None
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return None
    names = [parameter.name for parameter in parameters]
    return _Fields(names, {name: hints[name] for name in names if name in hints})


def check_fields(cls: type, args: tuple[Any, ...], fields: dict[str, Any], part: str | None = None) -> None:
    """Raise ``ConfigError`` for unknown fields of a class and values of a wrong type; Python finds missing ones.

    ``part`` is the name of the class in messages.
    """
    if (known := _fields(cls)) is not None:
        gather(list(_mistakes(cls.__name__ if part is None else part, known, args, fields)))


def stray(owner: str, kind: str, name: str, known: Sequence[str]) -> str:
    """Return the message on an unknown name: ``SGD has no field 'momentun': did you mean momentum?``."""
    near, has = nearest(name, known), "has" if kind == "field" else "takes"
    hint = f"did you mean {near}?" if near else f"it {has} {', '.join(known) or 'none'}"
    return f"{owner} has no {kind} {name!r}: {hint}"


def known_arguments(owner: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Refuse unknown arguments of a function by name; ``owner`` is the function in messages."""

    def checked(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters
        # A parameter that can only be none was removed, and has a message of its own.
        known = [name for name, each in parameters.items() if name != "cls" and each.annotation is not None]

        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> T:
            gather([stray(owner, "argument", name, known) for name in given if name not in parameters])
            return function(*args, **given)

        return call

    return checked


def _mistakes(part: str, known: _Fields, args: tuple[Any, ...], fields: dict[str, Any]) -> Iterator[Mistake]:
    for name in fields:
        if name not in known.names:
            yield Mistake(stray(part, "field", name, known.names))
    for name, value in (dict(zip(known.names, args, strict=False)) | fields).items():
        if name in known.kinds and (text := problem(name, value, known.kinds[name])):
            yield Mistake(text, Setting(part, name))


def problem(name: str, value: Any, kind: Any) -> str:
    """Return what is wrong with a value of an annotated type, as the end of a message; empty if nothing is.

    >>> problem("lr", "0.1", float), problem("batch", 16.0, int | None)
    ("must be a number, got '0.1': write lr=0.1", 'must be a whole number or none, got 16.0: write batch=16')
    """
    union = typing.get_origin(kind) in (Union, types.UnionType)
    kinds = typing.get_args(kind) if union else (kind,)
    if not all(each in NOUNS or _is_part(each) for each in kinds) or any(_fits(value, each) for each in kinds):
        return ""
    wanted = " or ".join(NOUNS.get(each) or _article(each.__name__) for each in kinds)
    got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    return f"must be {wanted}, got {got}{_hint(name, value, kinds)}"


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _is_part(kind: Any) -> bool:
    """Return whether a type is a kind of part; those without a base class are protocols."""
    return isinstance(kind, type) and (issubclass(kind, CheckedFields) or bool(getattr(kind, "_is_protocol", False)))


def _fits(value: Any, kind: Any) -> bool:
    if kind in (int, float):  # numbers of NumPy count as well
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if getattr(kind, "_is_protocol", False):
        return not isinstance(value, type | str | Real)
    return isinstance(value, kind)


def _hint(name: str, value: Any, kinds: tuple[Any, ...]) -> str:
    """Return what to write instead, if it can be known."""
    if isinstance(value, type):
        return f": write {value.__name__}()"
    for kind in kinds:
        try:
            meant = read(str(value.item() if hasattr(value, "item") else value), kind)
        except (ValueError, ConfigError, RuntimeError):
            meant = int(value) if kind is int and isinstance(value, float) and value.is_integer() else None
        if meant is not None and kind in (int, float, bool):
            return f": write {name}={meant}"
    return ""


def whole_number(name: str, value: Any, least: int) -> int:
    """Return an argument as an integer; integers of NumPy and whole tensors count as well.

    >>> whole_number("clients", 3, 1)
    3
    """
    about = Setting("", name)
    if text := problem(name, value, int):
        raise ConfigError(Mistake(text, about))
    if value < least:
        raise ConfigError(Mistake(f"must be at least {least}, got {value}", about))
    return int(value)
