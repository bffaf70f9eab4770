"""Recipes, parts and tasks in user files, written ``file.py:name``.

An error in a user file is shown in one line, with the line of the file.
"""

import hashlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar

from gossamer.core.errors import ConfigError, RunError
from gossamer.core.specs import unknown

USER = "gossamer_user_"
"""The prefix of the module names of user files."""

P = ParamSpec("P")
T = TypeVar("T")


def is_file(name: str) -> bool:
    """Return whether a name refers to a user file."""
    return name.endswith(".py") or ".py:" in name


def load(spec: str, label: str) -> object:
    """Return the object of ``file.py:name``; error messages start with ``label``."""
    path, _, name = spec.rpartition(":")
    if not path or not name:
        raise ConfigError(f"{label}: write it as file.py:name")
    module = imported(path, label)
    if not hasattr(module, name):
        own = [n for n, thing in vars(module).items() if _is_own(thing, module.__name__)]
        raise ConfigError(f"{label}: {unknown('name', name, own)}")
    found: object = getattr(module, name)
    return found


def imported(path: str, label: str) -> ModuleType:
    """Import a user file; error messages start with ``label``."""
    if not Path(path).is_file():
        raise ConfigError(f"{label}: there is no file {path}")
    return _module(Path(path).resolve(), label)


def _is_own(thing: object, module: str) -> bool:
    """Return whether a user file defines a thing: a function, a class, or a task, method or part of Gossamer."""
    return getattr(thing, "__module__", None) == module or type(thing).__module__.startswith("gossamer.")


def _module(file: Path, label: str) -> ModuleType:
    """Import a file once per content, without writing compiled files next to it."""
    source = file.read_bytes()
    name = f"{USER}{file.stem}_{hashlib.sha256(bytes(file) + source).hexdigest()[:16]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(file)
        sys.modules[name] = module
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        try:
            called(label, lambda: exec(compile(source, file, "exec"), vars(module)))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def file_of(module: str) -> Path | None:
    """Return the user file of a module, if it is one."""
    return Path(str(sys.modules[module].__file__)) if module.startswith(USER) else None


def called(label: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a user file; any error becomes a ``ConfigError`` with its line."""
    try:
        return function(*args, **kwargs)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{label} fails: {text}{place(error)}") from error


def place(error: BaseException) -> str:
    """Return the line of a user file that raised an error; a syntax error names it already."""
    known = {getattr(m, "__file__", None) for name, m in sys.modules.items() if name.startswith(USER)}
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in known]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def full(spec: str) -> str:
    """Return ``file.py:name`` with the full path of the file."""
    path, _, name = spec.rpartition(":")
    return f"{Path(path).resolve()}:{name}"


def digest(spec: str) -> str:
    """Return the SHA-256 of the file of ``file.py:name``."""
    return hashlib.sha256(Path(spec.rpartition(":")[0]).read_bytes()).hexdigest()


def check_unchanged(digests: dict[str, str]) -> None:
    """Refuse files that have changed since the run was started: the rest of the run would differ."""
    for spec, wanted in digests.items():
        file = Path(spec.rpartition(":")[0])
        if file.is_file() and digest(spec) != wanted:
            raise RunError(f"{file} was changed since the run was started: restore it, or start a new run")
