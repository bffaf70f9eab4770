"""Write a Flower app: a short module with a method and a task, which ``flwr run`` accepts as it is."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from importlib.resources import files as resources
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import gossamer
from gossamer.cli import user_files
from gossamer.cli.flags import lines
from gossamer.core.errors import ConfigError
from gossamer.core.method import Method
from gossamer.engines.flower import Settings

APP = "app"
"""The module that Flower loads."""


class Snippet(NamedTuple):
    """Source code of the app."""

    imports: frozenset[tuple[str, str]]  # pairs of module and name to import
    text: str  # the code
    files: frozenset[Path] = frozenset()  # the user files that it needs


def method_piece(recipe: Any, values: Mapping[str, Any], method: Method, file: Path | None) -> Snippet:
    """Return the call of a recipe, and the parts of the method that differ from the recipe's."""
    own = recipe(**values)
    other = {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != getattr(own, f.name)}
    module = _module(file) if file else "gossamer.methods"
    text = f"{recipe.__name__}({_written(values)})"
    if other:
        parts = "".join(f"    {name}={_shown(value)},\n" for name, value in other.items())
        text = f"{text}.with_parts(\n{parts})"
    kinds = {*_kinds({**values, **other})}
    files = {own for own in map(_file, kinds) if own} | ({file} if file else set())
    imports = {(_home(kind), kind.__name__) for kind in kinds}
    return Snippet(frozenset({(module, recipe.__name__), *imports}), text, frozenset(files))


def named_task(data: str, given: Mapping[str, Any]) -> Snippet:
    """Return a task of a built-in data set; each machine configures the folder of its files."""
    text = (
        "def task(client, settings):\n"
        '    """Return the task of a machine; its settings have the folder of data sets."""\n'
        '    data_dir = settings.get("data-dir") or None\n'
        f"    return Task.named({json.dumps(data)}, data_dir=data_dir, {_written(given)})"
    )
    return Snippet(frozenset({("gossamer", "Task")}), text)


def own_task(file: Path, name: str) -> Snippet:
    """Return a task from a user file, which is copied into the app."""
    return Snippet(frozenset({(_module(file), name if name == "task" else f"{name} as task")}), "", frozenset({file}))


def _module(file: Path) -> str:
    """Return the module name of a user file."""
    if file.stem == APP or not file.stem.isidentifier():
        raise ConfigError(f"{file.name}: the app cannot import a module of that name: rename the file")
    return file.stem


def write(folder: Path, method: Snippet, task: Snippet, settings: Settings, config: Mapping[str, Any]) -> None:
    """Write the folder of the app; ``config`` are entries of the run configuration in addition to the settings."""
    copied = {file.resolve() for file in method.files | task.files}
    if len({file.name for file in copied}) < len(copied):
        raise ConfigError(
            f"two files have the same name, and the app copies them to one folder: {', '.join(map(str, copied))}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in copied:
        shutil.copyfile(file, folder / file.name)
    (folder / f"{APP}.py").write_text(_code(settings.name, method, task))
    # A project name that Flower accepts.
    name = re.sub(r"[^a-z0-9]", "-", folder.resolve().name.lower()).strip("-") or APP
    meanings = dict(lines(Settings))
    given = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "name"}
    entries = [f"{key.replace('_', '-')} = {json.dumps(value)}  # {meanings[key]}" for key, value in given.items()]
    entries += [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    (folder / "pyproject.toml").write_text(project(name, f"{settings.name} across machines", "\n".join(entries)))
    listed = "".join(f"- `{file.name}`: your file, copied unchanged\n" for file in sorted(copied))
    known = {"project": name, "method": settings.name, "copied": listed, "nodes": str(settings.nodes)}
    (folder / "README.md").write_text(_filled("readme.md", **known))
    (folder / "nginx.conf").write_text(_template("nginx.conf"))


def project(name: str, description: str, config: str) -> str:
    """Return the project file of an app whose module ``app`` has ``server`` and ``client``.

    ``config`` is the run configuration, in TOML.
    """
    return _filled("project.toml", project=name, description=description, config=config)


def _filled(template: str, **texts: str) -> str:
    return Template(_template(template)).substitute(texts)


def _template(name: str) -> str:
    return resources("gossamer.cli").joinpath(f"template/{name}").read_text()


def _code(name: str, method: Snippet, task: Snippet) -> str:
    ours = {("gossamer.engines.flower", word) for word in ("client_app", "server_app")}
    names: dict[str, list[str]] = {}
    for module, word in sorted(method.imports | task.imports | ours, key=_place):
        names.setdefault(module, []).append(word)
    pieces = [
        f'"""{name} on Flower: the server and the nodes run the same method as a simulation."""\n',
        *(f"from {module} import {', '.join(words)}" for module, words in names.items()),
        f"\nmethod = {method.text}\n",
        *([f"\n{task.text}\n\n"] if task.text else []),
        "client = client_app(method, task)",
        f'server = server_app(method, task, name="{name}")  # rounds and other settings: pyproject.toml\n',
    ]
    return "\n".join(pieces)


def _place(imported: tuple[str, str]) -> tuple[str, bool, bool, str]:
    """Return the sort key of an import: by module, then constants, classes and functions."""
    module, word = imported
    return module, not word.isupper(), not word[0].isupper(), word


def _written(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    """Return a value as source code; a part is written with the fields that differ from their defaults."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    if not is_dataclass(value):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    given = {f.name: getattr(value, f.name) for f in fields(value) if _differs(value, f)}
    return f"{type(value).__name__}({_written(given)})"


def _kinds(values: Mapping[Any, Any]) -> Iterable[type]:
    """Yield the classes of the parts among some values."""
    for value in values.values():
        if isinstance(value, tuple):
            yield from _kinds(dict(enumerate(value)))
        elif is_dataclass(value):
            yield type(value)
            yield from _kinds({f.name: getattr(value, f.name) for f in fields(value) if _differs(value, f)})


def _home(kind: type) -> str:
    """Return the module from which a class is imported."""
    if file := _file(kind):
        return _module(file)
    return "gossamer" if getattr(gossamer, kind.__name__, None) is kind else kind.__module__


def _file(kind: type) -> Path | None:
    """Return the user file of a class, if it is in one."""
    return user_files.file_of(kind.__module__)


def _differs(value: Any, field: Field[Any]) -> bool:
    """Return whether a field of a part differs from its default."""
    return field.init and getattr(value, field.name) != field.default
