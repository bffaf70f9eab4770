"""Each cell of the table "who learns what" names a test that attacks it."""

import ast
import re

import pytest

from helpers.paths import ROOT

PAGE = (ROOT / "docs/privacy.md").read_text()
WHO = ("other clients", "server", "network", "reader")
MODES = 5


def rows(heading: str) -> list[list[str]]:
    """The rows of the first table whose heading begins with these cells."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


TESTS = dict(rows("| | test in"))


def test_every_cell_names_a_test() -> None:
    table = rows("| mode | who |")
    assert [row[1] for row in table] == [*WHO] * MODES
    for row in table:
        assert len(row) == 8
        for cell in row[2:]:
            assert set(re.findall(r"\[(.)\]", cell)) & TESTS.keys(), row


def test_every_letter_is_used() -> None:
    used = {letter for row in rows("| mode | who |") for cell in row for letter in re.findall(r"\[(.)\]", cell)}
    assert used == TESTS.keys()


def named_tests(page: str) -> list[tuple[str, str]]:
    """Files and names of the tests that a page names."""
    text = (ROOT / page).read_text()
    found, last = [], ""
    for name in re.findall(r"`([\w/]*(?:\.py)?::test_\w+|[\w/]*test_\w+\.py)`", text):
        file, _, test = name.partition("::")
        last = file or last
        found.append((last, test))
    return found


@pytest.mark.parametrize("page", ["docs/privacy.md", "docs/secure-aggregation.md", "SECURITY.md"])
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named = named_tests(page)
    assert named
    for file, test in named:
        place = next(root / file for root in (ROOT, ROOT / "tests", ROOT / "tests/attacks") if (root / file).is_file())
        functions = {node.name for node in ast.parse(place.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert not test or test in functions, (file, test)
