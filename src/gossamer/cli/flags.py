"""The parameters of a recipe as flags, read from its signature.

``lambda_`` becomes ``--lambda``, ``own_init`` becomes ``--own-init``; a boolean ``x`` is ``--x/--no-x``, also if its
default is none. The help of a flag is a line ``name: meaning`` in the docstring of the recipe, or of the part with a
field of that name. Parts of earlier exchanges are searched last.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Union

from gossamer.core.channel import Channel
from gossamer.core.codec import Codec
from gossamer.core.errors import ConfigError, Mistake, Mistakes, Setting
from gossamer.core.method import Exchange, Method
from gossamer.core.schedule import Schedule
from gossamer.core.specs import NONE, parse, read
from gossamer.parts.channels import CHANNELS
from gossamer.parts.codecs import CODECS
from gossamer.parts.schedules import SCHEDULES
from gossamer.parts.solvers.schedules import LR_SCHEDULES, LRSchedule

Recipe = Callable[..., Method]

REGISTRIES: dict[Any, tuple[Mapping[str, type], str]] = {
    Codec: (CODECS, "codec"),
    LRSchedule: (LR_SCHEDULES, "schedule"),
    Schedule | None: (SCHEDULES, "schedule"),
    Channel: (CHANNELS, "channel"),
}
"""Types whose values are written as specs: their registry, and the noun for errors."""

REQUIRED = inspect.Parameter.empty


class Flag(NamedTuple):
    """A flag of the command line.

    Args:
        name: the name of the parameter
        kind: the type of its value
        default: the value if the flag is not given
        meaning: the help text
        takes: the placeholder of the value in help texts
    """

    name: str
    kind: Any
    default: Any
    meaning: str
    takes: str

    @property
    def word(self) -> str:
        """The flag as it is typed: ``--own-init``."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def words(self) -> dict[str, bool | None]:
        """All spellings of the flag, and the value that each implies, if any."""
        return {self.word: True, f"--no-{self.word[2:]}": False} if switches(self.kind) else {self.word: None}

    @property
    def usage(self) -> str:
        """The flag with its placeholder, as help shows it."""
        return f"{'/'.join(self.words)} {self.takes}".strip()

    @property
    def about(self) -> str:
        """The meaning and the default, as help shows them."""
        default = shown(self.default)
        return f"{self.meaning} (default: {default})".strip() if default else self.meaning


def flags(recipe: Recipe, name: str) -> list[Flag]:
    """Return the flags of a recipe, in the order of its parameters."""
    known = meanings(recipe)
    return [_flag(parameter, known) for parameter in _parameters(recipe, name)]


def _parameters(recipe: Recipe, name: str) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(recipe, eval_str=True).parameters.values()
    except Exception as error:  # an annotation may be any expression
        raise ConfigError(f"{name}: its parameters cannot be read: {type(error).__name__}: {error}") from error
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in found):
        raise ConfigError(f"{name}: its parameters must not be positional-only")
    return [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _flag(parameter: inspect.Parameter, known: dict[str, str]) -> Flag:
    name, default, kind = parameter.name, parameter.default, parameter.annotation
    if kind is REQUIRED:  # without annotation, the type is that of the default
        kind = type(default) if type(default) in (bool, int, float, str) else Any
    meaning = known.get(name) or known.get(name.rstrip("_"), "")
    return Flag(name, kind, default, meaning, "" if switches(kind) else takes(kind))


def switches(kind: Any) -> bool:
    """Return whether a parameter is a boolean, or a boolean that may be none.

    >>> switches(bool), switches(bool | None), switches(int | None)
    (True, True, False)
    """
    return kind is bool or set(typing.get_args(kind)) == {bool, types.NoneType}


def takes(kind: Any) -> str:
    """Return the placeholder of a type in help texts.

    >>> takes(float), takes(int | None), takes(Literal["a", "b"]), takes(tuple[int, ...])
    ('X', 'N|none', 'a|b', 'N,...')
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "|".join(map(str, args))
    if origin in (Union, types.UnionType):
        return "|".join(map(takes, args))
    if origin is tuple:
        return f"{takes(args[0])},..."
    if kind in REGISTRIES:
        return "SPEC"
    if hasattr(kind, "of_text"):
        return str(getattr(kind, "takes", "FILE"))
    return {int: "N", float: "X", bool: "true|false", types.NoneType: "none"}.get(kind, "VALUE")


def meanings(recipe: Recipe) -> dict[str, str]:
    """Return the meaning of each parameter: from the recipe, then from its parts and their base classes."""
    found: dict[str, str] = {}
    extended = (kind for part in parts(defaults(recipe)) for kind in type(part).__mro__)
    for source in (recipe, *extended, Exchange, Method):
        for name, meaning in lines(source):
            found.setdefault(name, meaning)
    return found


def parts(whole: Any) -> Iterator[Any]:
    """Yield the parts of a method, recursively; those of earlier exchanges come last."""
    fields = [field for field in dataclasses.fields(whole) if field.init] if dataclasses.is_dataclass(whole) else []
    for part in reversed(whole) if isinstance(whole, tuple) else (getattr(whole, field.name) for field in fields):
        yield part
        yield from parts(part)


def lines(source: Any) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each parameter in a docstring: lines ``name: meaning``, below ``Args:`` or not."""
    for found in re.finditer(r"^(?: {4})?(\w+): (\S.*(?:\n {8}.*)*)", inspect.getdoc(source) or "", re.MULTILINE):
        yield found[1], " ".join(found[2].split())


def defaults(recipe: Recipe) -> Method | None:
    """Return the method with all parameters at their defaults, or ``None`` if it cannot be made."""
    try:
        method = recipe()
    except Exception:  # a required parameter, or a recipe that fails: running it reports the error
        return None
    return method if isinstance(method, Method) else None


def arguments(known: Sequence[Flag], given: dict[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """Return the given values, read by the types of their parameters; wrong values are noted and left out."""
    values = {}
    for flag in known:
        if flag.name in given:
            try:
                values[flag.name] = value(flag.word, given[flag.name], flag.kind)
            except ConfigError as error:
                mistakes.note(*error.mistakes)
        elif flag.default is REQUIRED:
            mistakes.note(f"{' or '.join(flag.words)} must be given")
    if "epochs" in given and "steps" in given:
        mistakes.note("--epochs and --steps were both given: choose one")
    return values


def value(word: str, text: Any, kind: Any) -> Any:
    """Read the text after a flag by its type, or as a spec if the type has one."""
    if not isinstance(text, str):  # a boolean flag, or a recorded value
        return text
    if kind in REGISTRIES:
        absent = text in NONE and types.NoneType in typing.get_args(kind)
        return None if absent else parse(text, *REGISTRIES[kind])
    try:
        return read(text, kind)
    except ConfigError as error:
        raise ConfigError(*(f"{word}: {mistake}" for mistake in error.mistakes)) from None
    except ValueError as error:
        raise ConfigError(f"{word} must be {error}, got {text!r}") from None


def by_flags(mistake: Mistake, known: Sequence[Flag], options: Sequence[str] = ()) -> tuple[str, set[str]]:
    """Return a mistake about fields, such as ``SGD.lr``, in terms of flags, and the names of these flags.

    ``options`` are names of settings that belong to no part and are flags too.
    """
    flags = {flag.name: flag for flag in known}

    def word(setting: Setting) -> str:
        if setting.field in flags:
            return _typed(flags[setting.field], setting.value)
        named = Flag(setting.field, str, None, "", "")
        return _typed(named, setting.value) if not setting.part and setting.field in options else str(setting)

    return mistake.written(word), {setting.field for setting in mistake.settings} & flags.keys()


def _typed(flag: Flag, value: object) -> str:
    """Return a flag with a value, as it is typed."""
    if isinstance(value, bool) and switches(flag.kind):
        return next(word for word, implied in flag.words.items() if implied is value)
    return flag.word if value is None else f"{flag.word} {value}"


def shown(default: Any) -> str:
    """Return a default as help shows it: as it is typed.

    >>> shown(None), shown((1.0, 0.25))
    ('none', '1,1/4')
    """
    if default is REQUIRED:
        return "required"
    if isinstance(default, tuple):
        return ",".join(map(_plainly, default))
    return "none" if default is None else str(default)


def _plainly(entry: Any) -> str:
    fraction = Fraction(entry).limit_denominator(1000) if isinstance(entry, float) else None
    return str(fraction) if fraction == entry else str(entry)
