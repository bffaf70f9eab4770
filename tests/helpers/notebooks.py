"""Run the tutorials. ``python tests/helpers/notebooks.py`` stores their outputs anew, which the site shows."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


def execute(path: Path, folder: Path) -> NotebookNode:
    """Run all cells of a notebook in a folder, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as sockets:  # local sockets rather than ports; their paths must be short
        config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
        client = NotebookClient(
            notebook, config=config, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        return client.execute(env=environment())


def environment() -> dict[str, str]:
    """Variables with which ``!gossamer`` finds this environment's command, on one thread and without colours."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100"}


def printed(notebook: NotebookNode) -> list[str]:
    """The text that each code cell printed."""
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells if "outputs" in cell]


def main() -> None:
    """Run each tutorial in an empty folder and write it back with its outputs, without metadata of this run."""
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        before = nbformat.read(path, as_version=4)
        with TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        notebook.metadata = before.metadata
        for cell in notebook.cells:
            cell.metadata = {}
            if "outputs" in cell:  # without the progress of runs
                cell.outputs = [output for output in cell.outputs if output.output_type == "stream"]
        nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells")


if __name__ == "__main__":
    main()
