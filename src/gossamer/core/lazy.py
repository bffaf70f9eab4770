"""Lazy imports: the public names of a package are imported on first use (PEP 562).

A package lists its public names once, as imports below ``if TYPE_CHECKING:``, where type checkers and editors read
them. ``attach`` reads the same lines at run time, and imports a module on first access to one of its names. So
``import gossamer`` does not import torch, and importing one view does not import the others.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to objects that are imported on lookup.

    Args:
        package: the package whose modules define the objects
        where: ``"module.attribute"`` within the package, for each name
    """

    def __init__(self, package: str, where: Mapping[str, str]) -> None:
        self.where = {name: _located(package, path) for name, path in where.items()}

    def __getitem__(self, name: str) -> T:
        module, attribute = self.where[name]
        return cast(T, getattr(import_module(module), attribute))

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __or__(self, other: "Registry[Any]") -> "Registry[Any]":
        """Return a registry with the names of both."""
        both = Registry[Any]("", {})
        both.where = self.where | other.where
        return both

    def __len__(self) -> int:
        return len(self.where)


def attach(package: str, *registries: Registry[Any]) -> Attached:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, from its imports below ``if TYPE_CHECKING:``.

    Args:
        package: the package's ``__name__``
        registries: registries of the package, whose objects are public names too
    """
    found = _listed(package)
    for registry in registries:
        found |= {attribute: (module, attribute) for module, attribute in registry.where.values()}
    own = [name for name in vars(sys.modules[package]) if name.isupper() and name != "TYPE_CHECKING"]
    public = sorted({*found, *own}, key=lambda name: (not name.isupper(), not name[0].isupper(), name))

    def get(name: str) -> Any:
        if name not in found:
            from gossamer.core.interface import NAMES  # imported here: it is needed after a mistake alone

            if name in NAMES:
                raise ImportError(f"{name} is now {NAMES[name]}", name=name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = found[name]
        value = getattr(import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *public}), public


def _located(package: str, path: str) -> tuple[str, str]:
    module, _, attribute = path.rpartition(".")
    return f"{package}.{module}", attribute


def _listed(package: str) -> dict[str, tuple[str, str]]:
    """Return the module and the attribute of each name that a package lists in its source."""
    source = Path(cast(str, sys.modules[package].__file__)).read_text(encoding="utf-8")
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If) and _checking(node.test)]
    found: dict[str, tuple[str, str]] = {}
    for node in (line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)):
        module = cast(str, node.module)
        for alias in node.names:
            if alias.name == "*":
                found |= {name: (module, name) for name in import_module(module).__all__}
            else:
                found[alias.asname or alias.name] = (module, alias.name)
    return found


def _checking(test: ast.expr) -> bool:
    return (test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")) == "TYPE_CHECKING"
