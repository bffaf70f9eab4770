"""Recipes: functions with typed parameters and defaults that return a method.

Parameters that many recipes share are declared once, in a ``TypedDict`` whose keys have defaults. A recipe takes them
as ``**fields: Unpack[Averaging]``. The ``recipe`` decorator expands them into single parameters of the signature, which
users and the command line see. It also notes the recipe's name and the given arguments in the method, for run folders.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, overload

from gossamer.core.errors import ConfigError
from gossamer.core.fields import stray
from gossamer.core.method import Method, RecipeCall
from gossamer.core.specs import as_text, spec
from gossamer.parts.codecs import CODECS
from gossamer.parts.servers.mean import Weighting
from gossamer.parts.solvers.schedules import LR_SCHEDULES

Recipe = Callable[..., Method]
R = TypeVar("R", bound=Recipe)
F = TypeVar("F")


class Default(NamedTuple):
    """The default value of a shared parameter. A recipe can override it."""

    value: Any


class Training(TypedDict, total=False):
    """Local training: fields of ``SGD``."""

    lr: Annotated[float, Default(0.1)]
    epochs: Annotated[int, Default(5)]
    steps: Annotated[int | None, Default(None)]
    batch: Annotated[int | None, Default(16)]


class Averaging(Training, total=False):
    """Local training and aggregation weights."""

    weights: Annotated[Weighting, Default("samples")]


def pick(kind: type[F], fields: Mapping[str, Any]) -> F:
    """Return the parameters of a recipe that one ``TypedDict`` declares."""
    return typing.cast(F, {name: fields[name] for name in typing.get_type_hints(kind)})


@overload
def recipe(function: R, /) -> R: ...


@overload
def recipe(**defaults: Any) -> Callable[[R], R]: ...


def recipe(function: R | None = None, /, **defaults: Any) -> R | Callable[[R], R]:
    """Declare a recipe and expand its shared parameters in the signature.

    ``defaults`` override the defaults of shared parameters for this recipe.
    """
    if function is None:
        return lambda declared: _expanded(declared, defaults)
    return _expanded(function, {})


def _expanded(function: R, defaults: dict[str, Any]) -> R:
    signature, own_doc = inspect.signature(function), inspect.getdoc(function) or ""
    kind, own = _shared(signature)
    hints = typing.get_type_hints(kind, include_extras=True)
    _check_names(function, defaults, list(hints))
    shared = [_parameter(name, hint, defaults) for name, hint in hints.items()]
    signature = signature.replace(parameters=[*shared, *own])

    @functools.wraps(function)
    def made(*args: Any, **given: Any) -> Method:
        bound = _bound(function.__name__, signature, args, given)
        call = RecipeCall(_name(function), {name: as_typed(value) for name, value in bound.arguments.items()})
        bound.apply_defaults()
        return replace(function(**bound.arguments), recipe=call)

    made.__doc__ = "\n".join([own_doc, *(line for line in _meanings(kind) if line not in own_doc)])
    made.__signature__ = signature  # type: ignore[attr-defined]  # as inspect.signature reads it
    return typing.cast(R, made)


class Nothing(TypedDict):
    """The shared parameters of a recipe that has none."""


def _shared(signature: inspect.Signature) -> tuple[type, list[inspect.Parameter]]:
    """Return the ``TypedDict`` of a recipe's shared parameters, and its own parameters."""
    own = list(signature.parameters.values())
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return Nothing, own
    (kind,) = typing.get_args(own[-1].annotation)
    return kind, own[:-1]


def _name(function: Recipe) -> str:
    """Return the name of a recipe: that of the command line for those of the library."""
    own = function.__module__.startswith("gossamer.methods.")
    return function.__name__.replace("_", "-") if own else function.__name__


def _bound(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], given: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a recipe by parameter; refuse unknown ones."""
    if strange := [word for word in given if word not in signature.parameters]:
        raise ConfigError(*(stray(name, "parameter", word, list(signature.parameters)) for word in strange))
    try:
        return signature.bind(*args, **given)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}: it takes {', '.join(signature.parameters) or 'none'}") from None


def as_typed(value: Any) -> Any:
    """Return an argument as a value of JSON that ``gossamer run`` takes: a number, a text, or the spec of a part.

    >>> as_typed(0.5), as_typed((1.0, 0.5))
    (0.5, '1.0+0.5')
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    named = next((known for known in (CODECS, LR_SCHEDULES) if type(value) in known.values()), None)
    return spec(value, named) if named else as_text(value)


def _check_names(function: Recipe, defaults: dict[str, Any], shared: list[str]) -> None:
    if wrong := [name for name in defaults if name not in shared]:
        known = ", ".join(shared) or "none"
        raise TypeError(f"recipe {function.__name__}: unknown shared parameters {', '.join(wrong)}; it has {known}")


def _meanings(kind: type) -> list[str]:
    """Return the lines of a docstring after its summary, with a blank line before them."""
    _, _, details = (inspect.getdoc(kind) or "").partition("\n\n")
    return ["", *details.splitlines()] if details else []


def _parameter(name: str, hint: Any, defaults: dict[str, Any]) -> inspect.Parameter:
    kind, default = typing.get_args(hint)
    value = defaults.get(name, default.value)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=kind)
