"""The tutorials run, and print what is stored in them."""

import json
import re
from pathlib import Path

import pytest

from helpers.notebooks import TUTORIALS, execute, printed

NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def shape(text: str) -> list[str]:
    """Lines without their numbers and without the widths of columns: these may differ from machine to machine."""
    lines = (re.sub(r"[\d,.]*\d", "#", re.sub(r"─+", "─", line)) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines]


def test_there_are_four_tutorials() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["deploy", "first-run", "own-method", "thin-fleet"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # of Jupyter's own libraries
def test_a_tutorial_runs_and_prints_what_is_stored(path: Path, tmp_path: Path) -> None:
    stored = json.loads(path.read_text())
    expected = ["".join("".join(output["text"]) for output in c["outputs"]) for c in stored["cells"] if "outputs" in c]
    found = printed(execute(path, tmp_path))
    assert [shape(text) for text in found] == [shape(text) for text in expected], (
        "store the outputs anew: python tests/helpers/notebooks.py"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_is_stored_with_outputs_and_without_traces_of_a_machine(path: Path) -> None:
    text = path.read_text()
    cells = json.loads(text)["cells"]
    assert any(cell.get("outputs") for cell in cells)
    assert all(output["output_type"] == "stream" for cell in cells for output in cell.get("outputs", []))
    assert re.findall(r"/(?:home|root|tmp|work|Users)/\S*", text) == []
