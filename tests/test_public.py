"""What users may rely on: the public names, the version, the type marker, and how little an import needs."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from types import ModuleType
from typing import Any

import pytest

import gossamer
from gossamer.core import errors
from gossamer.core.extras import EXTRAS
from helpers.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = (
    "analysis.audit",
    "analysis.planning",
    "analysis.theory",
    "engines",
    "methods",
    "parts.adapters",
    "parts.attacks",
    "parts.channels",
    "parts.codecs",
    "parts.parametrizations",
    "parts.samplers",
    "parts.secure",
    "parts.servers",
    "parts.servers.mixing",
    "parts.solvers",
    "parts.views",
    "tasks.data",
    "tasks.nets",
    "tasks.widths",
)

BARE = """
import sys

for name in ("rich", "matplotlib", "sklearn", "scipy", "safetensors"):
    sys.modules[name] = None  # importing it now raises ImportError

import gossamer
from gossamer.testing import tiny_task

result = gossamer.simulate(gossamer.fedavg(), tiny_task(), rounds=2)
print(len(result.metrics), result.summary()["failures"])
"""


def by_kind(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("module", [gossamer, *(importlib.import_module(f"gossamer.{name}") for name in PACKAGES)])
def test_all_is_sorted_and_every_name_in_it_resolves(module: ModuleType) -> None:
    names = module.__all__
    assert list(names) == sorted(set(names), key=by_kind)
    assert [name for name in names if not hasattr(module, name)] == []


def test_all_is_complete() -> None:
    public = set(vars(gossamer)["__all__"])
    assert {name.replace("-", "_") for name in gossamer.METHODS} <= public, "every recipe can be imported by its name"
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert tree <= public, "every error can be caught by its name"


@pytest.mark.parametrize("name", vars(gossamer)["__all__"])
def test_every_public_class_and_function_has_a_docstring(name: str) -> None:
    value = getattr(gossamer, name)
    for what, where in ((value, name), *_own_methods(value, name)):
        if inspect.isclass(what) or inspect.isfunction(what):
            assert (inspect.getdoc(what) or "").strip(), f"{where} has no docstring"


def _own_methods(value: Any, name: str) -> list[tuple[Any, str]]:
    if not inspect.isclass(value):
        return []
    return [(method, f"{name}.{n}") for n, method in vars(value).items() if not n.startswith("_")]


def test_import_and_simulation_need_torch_and_numpy_alone() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "0"]


def test_the_version_is_that_of_the_project() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "gossamer.__version__"}
    heading = "Unreleased" if ".dev" in gossamer.__version__ else gossamer.__version__
    assert f"## [{heading}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_type_marker_ships() -> None:
    assert resources.files("gossamer").joinpath("py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["gossamer"]


def test_templates_ship() -> None:
    package = resources.files("gossamer")
    for folder in ("cli/template", "runs/report/templates"):
        assert f"{folder}/*" in PROJECT["tool"]["setuptools"]["package-data"]["gossamer"]
        assert list(package.joinpath(folder).iterdir())


def test_the_core_depends_on_torch_numpy_and_safetensors_alone() -> None:
    names = {re.split(r"[<>=]", wanted)[0] for wanted in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "numpy", "safetensors"}


def test_every_optional_package_names_an_extra_that_exists() -> None:
    assert set(EXTRAS.values()) <= set(PROJECT["project"]["optional-dependencies"])
