"""The vocabulary stays small: few members to a part, and nothing that names a kind of part where parts meet."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gossamer
from gossamer.parts.codecs import Codec
from gossamer.parts.samplers import Sampler
from gossamer.parts.servers import Server
from gossamer.parts.solvers import Solver
from gossamer.parts.views import View
from gossamer.runs.report import REPORTS

SOURCE = Path(inspect.getfile(gossamer)).parent
MEETING = SOURCE / "core/bound.py"
KINDS = {
    "personal", "by_value", "own", "nested", "places", "visit", "known", "revised", "origin", "met", "masks",
}  # fmt: skip
"""Words of version 0.1 that named a kind of part."""


@pytest.mark.parametrize("base", [View, Solver, Codec, Server, Sampler])
def test_few_methods_of_a_part_must_be_written(base: Any) -> None:
    assert len(base.__abstractmethods__) <= 3, sorted(base.__abstractmethods__)


def attributes(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr


REPORTING = [
    SOURCE / "runs/report/summary.py",
    SOURCE / "cli/inspect.py",
    *(SOURCE / f"runs/report/{name}.py" for name in ("base", "page", "tables")),
]


@pytest.mark.parametrize("file", REPORTING, ids=lambda file: file.stem)
def test_tables_and_pages_name_no_figures(file: Path) -> None:
    words = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
    imported = {
        name.name.rpartition(".")[2]
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert not {*REPORTS} & (words | imported | {*attributes(file)})
    assert not KINDS & {*attributes(file)}


@pytest.mark.parametrize("file", [MEETING, *sorted((SOURCE / "engines").rglob("*.py"))], ids=lambda file: file.stem)
def test_engines_name_no_kind_of_part(file: Path) -> None:
    assert not KINDS & {*attributes(file)}
