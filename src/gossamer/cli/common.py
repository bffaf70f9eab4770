"""What several commands share."""

import inspect
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from gossamer.core.errors import ConfigError, Mistakes
from gossamer.runs.records import read_about


def open_run(path: Path) -> dict[str, Any]:
    """Return the contents of the ``run.json`` of a run that the user names."""
    if not (path / "run.json").is_file():
        raise ConfigError(f"{path} is not a run: there is no run.json in it")
    return read_about(path)


def check_picture(picture: Path, flag: str = "--out") -> None:
    """Refuse a path to which no picture can be written."""
    mistakes = Mistakes()
    if picture.suffix.lower() not in (".png", ".pdf", ".svg"):
        mistakes.note(f"{flag} {picture}: must end in .png, .pdf or .svg")
    if not os.access(picture.parent, os.W_OK):
        mistakes.note(f"{flag} {picture}: there is no writable folder {picture.parent}")
    mistakes.settle()


def command(name: str, path: Path) -> str:
    """Return the command line of a command on a run."""
    return f"gossamer {name} {shlex.quote(str(path))}"


def say(line: str) -> None:
    """Print a message to standard error."""
    print(line, file=sys.stderr, flush=True)


def sentence(source: object) -> str:
    """Return the first line of a docstring, without marks for code."""
    return (inspect.getdoc(source) or "").partition("\n")[0].replace("``", "")
