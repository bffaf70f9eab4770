"""Recipes: functions with typed parameters and defaults that return a method.

Parameters that many recipes share are declared once, in a ``TypedDict`` whose keys have defaults. A recipe takes them
as ``**fields: Unpack[Averaging]``. The ``recipe`` decorator expands them into single parameters of the signature, which
users and the command line see.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, overload

from gossamer.core.method import Method
from gossamer.parts.servers.mean import Weighting

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
    whole = inspect.signature(function)
    *own, last = whole.parameters.values()
    if last.kind is not last.VAR_KEYWORD:
        _check_names(function, defaults, [])
        return function
    (kind,) = typing.get_args(last.annotation)
    shared = [
        _parameter(name, hint, defaults) for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    ]
    _check_names(function, defaults, [parameter.name for parameter in shared])
    signature = whole.replace(parameters=[*shared, *own])

    @functools.wraps(function)
    def made(*args: Any, **given: Any) -> Method:
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        bound.apply_defaults()
        return function(**bound.arguments)

    own_doc = inspect.getdoc(function) or ""
    made.__doc__ = "\n".join([own_doc, *(line for line in _meanings(kind) if line not in own_doc)])
    made.__signature__ = signature  # type: ignore[attr-defined]  # as inspect.signature reads it
    return typing.cast(R, made)


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
