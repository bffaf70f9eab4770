"""Recipes, parts and tasks in user files, written ``file.py:name``.

An error in a user file is shown in one line, with the line of the file.
"""

import ast
import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import SOURCE_SUFFIXES, all_suffixes
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar

from gossamer.cli import user_imports
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.specs import unknown

USER = "gossamer_user_"
"""The prefix of the module names of user files."""

SUFFIXES = all_suffixes()
"""The ends of the names of files that Python loads: sources, compiled sources, and compiled C."""

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
        # What the file defines: functions, classes, and tasks, methods and parts of Gossamer.
        things = [(n, getattr(thing, "__module__", None), type(thing).__module__) for n, thing in vars(module).items()]
        own = [n for n, home, kind in things if home == module.__name__ or kind.startswith("gossamer.")]
        raise ConfigError(f"{label}: {unknown('name', name, own)}")
    found: object = getattr(module, name)
    return found


def imported(path: str, label: str) -> ModuleType:
    """Import a user file, once per content and without writing compiled files; errors start with ``label``."""
    if not Path(path).is_file():
        raise ConfigError(f"{label}: there is no file {path}")
    file = Path(path).resolve()
    source = file.read_bytes()
    name = f"{USER}{file.stem}_{hashlib.sha256(bytes(file) + source).hexdigest()[:16]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(file)
        sys.modules[name] = module
        try:
            _refuse_hidden(file, label)
            user_imports.import_from(file.parent)
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
    library, and not an installed package. All files that Python could load for its name count, compiled ones too.
    Modules whose names are computed when the file runs are not found, nor are those that a compiled file imports.
    """
    file = file.resolve()
    places = [Path(place).resolve() for place in sys.path if Path(place).is_dir()]
    own = [place for place in places if not any(place.is_relative_to(root) for root in user_imports.system())]
    roots = dict.fromkeys([file.parent, *own])
    found, left = dict[Path, None](), [file]
    while left:
        current = left.pop()
        packages = {current.parent.relative_to(root).parts for root in roots if current.parent.is_relative_to(root)}
        names = {name for package in packages for name in _imported_names(current, package)}
        new = {path for name in names for root in roots for path in _parts_of(root, name)} - {file}
        left += sorted(new - found.keys())
        found |= dict.fromkeys(sorted(new))
    return sorted(found)


def _imported_names(file: Path, package: tuple[str, ...] = ()) -> set[str]:
    """Return the modules that a file of a package imports, also inside of functions; none if it is no Python."""
    if file.suffix not in SOURCE_SUFFIXES:
        return set()
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return set()
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call):
            found |= _names_in_call(node, package)
    return {name for name in found if name.partition(".")[0] != "gossamer"}  # it may be a folder of the user as well


def _names_in_call(node: ast.Call, package: tuple[str, ...]) -> set[str]:
    """Return the modules that ``import_module`` or ``__import__`` import, as far as their arguments are literals."""
    if getattr(node.func, "attr", getattr(node.func, "id", None)) not in ("import_module", "__import__"):
        return set()
    given = [each for argument in (*node.args, *(k.value for k in node.keywords)) for each in ast.walk(argument)]
    literals = [each.value for each in given if isinstance(each, ast.Constant)]
    levels = {level for level in literals if type(level) is int and level > 0} or {0}
    texts = [text for text in literals if isinstance(text, str) and not {"/", "\\", "\0"} & {*text}]
    # Which argument is the name, the package or a list of names is not told apart: a file too many does no harm.
    packages = {package, *(tuple(text.split(".")) for text in texts if not text.startswith("."))}
    bare = {(text.lstrip("."), len(text) - len(text.lstrip("."))) for text in texts}
    found = {_absolute(name, dots or level, place) for name, dots in bare for level in levels for place in packages}
    return found | {f"{name}.{text}" for name in found for text in texts}


def _absolute(name: str, level: int, package: tuple[str, ...]) -> str:
    """Return the full name of a module that a file of a package imports with ``level`` leading dots."""
    base = package[: max(0, len(package) - level + 1)] if level else ()
    return ".".join((*base, name)).strip(".")


def _parts_of(root: Path, name: str) -> Iterator[Path]:
    """Yield what Python could load for a module and the packages around it, in a folder; ``*`` is all of a package."""
    place = root
    for part in filter(None, name.split(".")):
        inside = sorted(each.name for each in place.iterdir()) if part == "*" and place.is_dir() else [part]
        stems = dict.fromkeys(stem.partition(".")[0] for stem in inside)
        files = (place / f"{stem}{end}{suffix}" for stem in stems for end in ("", "/__init__") for suffix in SUFFIXES)
        yield from (path for path in files if path.is_file())
        place /= part


def _refuse_hidden(file: Path, label: str) -> None:
    """Refuse a file that imports a module of its folder whose name finds another one: the wrong one would run."""
    own = [file, *(path for path in imports(file) if path.is_relative_to(file.parent))]
    packages = {path: path.parent.relative_to(file.parent).parts for path in own}
    names = {name.partition(".")[0] for path in own for name in _imported_names(path, packages[path])}
    for name in sorted(names):
        beside = [path.resolve() for path in _parts_of(file.parent, name) if path != file]
        try:
            found = find_spec(name) if beside else None
        except ValueError:  # a module that was made by hand
            continue
        if found and found.origin and Path(found.origin).resolve() not in beside:
            raise ConfigError(
                f"{label}: import {name} finds {found.origin}, and not {beside[0]} beside {file.name}: "
                "give your file another name"
            )


def check_unchanged(digests: dict[str, str]) -> None:
    """Refuse files that have changed since the run was started: the rest of the run would differ."""
    for spec, wanted in digests.items():
        file = Path(spec.rpartition(":")[0])
        if file.is_file() and digest(spec) != wanted:
            raise RunError(f"{file} was changed since the run was started: restore it, or start a new run")
