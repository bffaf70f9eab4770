"""One run of a sweep, in a process of its own: start it, or continue it."""

from functools import partial
from pathlib import Path

from gossamer.cli import guarded
from gossamer.cli.common import open_run, warn
from gossamer.cli.launch import read
from gossamer.cli.rebuild import reopened
from gossamer.cli.run import go, start
from gossamer.cli.run_args import RUN_VERB


def work(words: list[str], path: Path, pause: int | None) -> int:
    """Start the run of these words of ``gossamer run`` in a folder, or continue it there; return the exit status.

    Args:
        words: the words, without the folder
        path: the folder of the run
        pause: the round after which the run is interrupted; none carries it out
    """
    return guarded(partial(_work, words, path, pause))


def _work(words: list[str], path: Path, pause: int | None) -> int:
    if (path / "run.json").exists():
        simulation = reopened(path, open_run(path), warn=warn)
        return go(simulation, simulation.reopen(path), pause)
    asked = read([*words, f"--out={path}"], RUN_VERB)
    assert asked is not None  # no word asks for help
    return start(asked, pause)
