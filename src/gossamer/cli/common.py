"""What several commands share."""

import argparse
import inspect
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from gossamer.core.errors import ConfigError, GossamerError, Mistakes, RunError
from gossamer.runs.records import check_about, read_about
from gossamer.runs.sweeps import is_sweep


class Parser(argparse.ArgumentParser):
    """The parser of a command: flags are not abbreviated, and an error is one line."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **how})

    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError`` instead of printing the usage."""
        raise ConfigError(f"{message}: see {self.prog} --help")


TRUST = "execute the Python files of a run that you have not started on this machine; read them first"
"""The help of ``--trust``."""


def open_run(path: Path) -> dict[str, Any]:
    """Return the contents of the ``run.json`` of a run that the user names."""
    if not (path / "run.json").is_file():
        sweep = f": it is a sweep, which {command('compare', path)} shows" if is_sweep(path) else ""
        raise ConfigError(f"{path} is not a run: there is no run.json in it{sweep}")
    about = read_about(path)
    check_about(path, about)
    return about


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuse a run whose files have right digests and contents that no run writes: somebody made them up."""
    try:
        yield
    except GossamerError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RunError(f"{path} holds what this release cannot read ({what}); --debug shows the traceback") from error


def check_picture(picture: Path, flag: str = "--out") -> None:
    """Refuse a path to which no picture can be written."""
    mistakes = Mistakes()
    if picture.suffix.lower() not in (".png", ".pdf", ".svg"):
        mistakes.note(f"{flag} {picture}: must end in .png, .pdf or .svg")
    mistakes.attempt(check_folder, picture, flag)
    mistakes.settle()


def check_folder(file: Path, flag: str = "--out") -> None:
    """Refuse a path whose folder does not exist or is not writable."""
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{flag} {file}: there is no writable folder {file.parent}")


def command(name: str, path: Path) -> str:
    """Return the command line of a command on a run."""
    return f"gossamer {name} {shlex.quote(str(path))}"


def flag_word(name: str) -> str:
    """Return an option as it is typed: ``--per-round``."""
    return f"--{name.replace('_', '-')}"


def say(line: str) -> None:
    """Print a message to standard error."""
    print(line, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    say(f"gossamer: {text}")


def sentence(source: object) -> str:
    """Return the first line of a docstring, without marks for code."""
    return (inspect.getdoc(source) or "").partition("\n")[0].replace("``", "")
