"""Recipes, parts and tasks in user files, written ``file.py:name``.

An error in a user file is shown in one line, with the line of the file.
"""

import ast
import hashlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
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


def imports(file: Path) -> list[Path]:
    """Return the user's own files that a file imports, and those that these import, in order of their paths.

    A module counts if it is in the folder of the file, or in a folder of the user on ``sys.path``: not in the standard
    library, and not an installed package. Modules whose names are computed when the file runs are not found.
    """
    system = [Path(place).resolve() for place in {*sysconfig.get_paths().values(), sys.base_prefix, sys.prefix}]
    places = [Path(place).resolve() for place in sys.path if Path(place).is_dir()]
    own = [place for place in places if not any(place.is_relative_to(root) for root in system)]
    found, left = dict[Path, None](), [file.resolve()]
    while left:
        current = left.pop()
        roots = dict.fromkeys([file.resolve().parent, *own])
        new = {path for name in _imported_names(current) for root in roots for path in _parts_of(root, name)}
        left += sorted(new - found.keys() - {file.resolve()})
        found |= dict.fromkeys(sorted(new - {file.resolve()}))
    return sorted(found)


def _imported_names(file: Path) -> set[str]:
    """Return the modules that a file names in its imports, also inside of functions; none if it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return set()
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    package = file.parent.name  # of relative imports: those of a package in the folder of the user file
    bases = {node: ".".join(filter(None, (package if node.level else "", node.module or ""))) for node in parts}
    found = plain | {f"{bases[node]}.{alias.name}" for node in parts for alias in node.names} | set(bases.values())
    return {name for name in found if name.partition(".")[0] != "gossamer"}  # it may be a folder of the user as well


def _parts_of(root: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages around it, as far as they are in a folder."""
    place = root
    for part in filter(None, name.split(".")):
        place /= part
        yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())


def check_unchanged(digests: dict[str, str]) -> None:
    """Refuse files that have changed since the run was started: the rest of the run would differ."""
    for spec, wanted in digests.items():
        file = Path(spec.rpartition(":")[0])
        if file.is_file() and digest(spec) != wanted:
            raise RunError(f"{file} was changed since the run was started: restore it, or start a new run")
