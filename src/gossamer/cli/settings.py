"""``--set part.field=value``: set any field of any part of a method."""

import dataclasses
import typing
from typing import Any

from gossamer.cli.flags import value
from gossamer.core.errors import ConfigError, listed
from gossamer.core.method import Method
from gossamer.core.specs import unknown


def assign(method: Method, setting: str) -> Method:
    """Apply a setting such as ``solver.momentum=0.9`` to a method."""
    try:
        return _assigned(method, setting)
    except ConfigError as error:
        raise ConfigError(*(f"--set {setting}: {mistake}" for mistake in error.mistakes)) from error


def settable(method: Method) -> dict[str, Any]:
    """Return the parts of a method that have fields, by name."""
    whole = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    inside = {field.name: getattr(method.training, field.name) for field in dataclasses.fields(method.training)}
    parts = {**inside, **whole}
    return {name: part for name, part in parts.items() if dataclasses.is_dataclass(part)}


def _assigned(method: Method, setting: str) -> Method:
    path, equals, text = setting.partition("=")
    name, dot, field = path.partition(".")
    if not equals or not dot:
        raise ConfigError("write it as part.field=value, such as solver.momentum=0.9")
    parts = settable(method)
    if name == "before":
        raise ConfigError("fields of earlier exchanges cannot be set: use the recipe's flags, or Python")
    if name == "adapter" and name not in parts:
        raise ConfigError("the method has no adapter: add --adapter lora, for example")
    if name not in parts:
        raise ConfigError(unknown("part", name, parts))
    return method.with_parts(**{name: _changed(parts[name], field, text)})


def _changed(part: Any, path: str, text: str) -> Any:
    """Return a part with one field changed; the field may be a part: ``codec.codec.bits``."""
    field, dot, inner = path.partition(".")
    fields = [f.name for f in dataclasses.fields(part) if f.init]
    if field not in fields:
        known = f"it has {listed(fields)}" if fields else "it has none"
        raise ConfigError(f"{type(part).__name__} has no field {field!r}: {known}")
    if not dot:
        kind = typing.get_type_hints(type(part))[field]
        return dataclasses.replace(part, **{field: value(field, text, kind)})
    if not dataclasses.is_dataclass(getattr(part, field)):
        raise ConfigError(f"{type(part).__name__}.{field} has no fields")
    return dataclasses.replace(part, **{field: _changed(getattr(part, field), inner, text)})
